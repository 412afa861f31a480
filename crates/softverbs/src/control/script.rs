//! Faults as text, for programs in other languages.

use std::ffi::{CStr, c_char, c_int};

use super::faults::run_faults;
use crate::log::fault;

/// [`run_faults`] for other languages: 0, or -1 after an error, which is logged.
///
/// # Safety
/// `script` is null or a NUL-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_run_faults(script: *const c_char) -> c_int {
    if script.is_null() {
        fault!("softverbs_run_faults: the script is null");
        return -1;
    }
    // SAFETY: guaranteed by the caller.
    let script = unsafe { CStr::from_ptr(script) }.to_string_lossy();
    match std::panic::catch_unwind(|| run_faults(&script)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            fault!("softverbs_run_faults: {error}");
            -1
        }
        Err(_) => -1,
    }
}
