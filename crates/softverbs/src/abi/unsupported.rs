//! Functions of libibverbs that are not implemented. They exist because programs that refer to them
//! must link and load. Each fails in the way that its callers expect.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::sync::Mutex;

use crate::abi::border::{Errno, set_errno};
use crate::log::fault;

/// Logs the first call of each function.
fn log_once(name: &CStr) {
    static LOGGED: Mutex<Vec<Box<CStr>>> = Mutex::new(Vec::new());
    let mut logged = LOGGED.lock().unwrap_or_else(|e| e.into_inner());
    if !logged.iter().any(|n| **n == *name) {
        logged.push(name.into());
        fault!("{}: not supported by this library; the call fails with EOPNOTSUPP", name.to_string_lossy());
    }
}

/// Called by the stubs for old symbol versions, which `build-libibverbs.sh` generates.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn softverbs_unsupported(name: *const c_char) {
    // SAFETY: as the caller guarantees.
    log_once(unsafe { CStr::from_ptr(name) });
    set_errno(Errno(libc::EOPNOTSUPP));
}

macro_rules! unsupported {
    ($($name:ident $answer:ident $report:ident;)*) => {
        $(unsupported!(@define $name $answer $report);)*
    };
    (@define $name:ident errno $report:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            unsupported!(@$report $name);
            libc::EOPNOTSUPP
        }
    };
    (@define $name:ident null $report:ident) => { unsupported!(@value $name $report *mut c_void, ptr::null_mut()); };
    (@define $name:ident minus1 $report:ident) => { unsupported!(@value $name $report c_int, -1); };
    (@define $name:ident zero $report:ident) => { unsupported!(@value $name $report u64, 0); };
    (@define $name:ident void $report:ident) => { unsupported!(@value $name $report (), ()); };
    (@value $name:ident $report:ident $type:ty, $value:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> $type {
            unsupported!(@$report $name);
            set_errno(Errno(libc::EOPNOTSUPP));
            $value
        }
    };
    (@logged $name:ident) => { log_once(crate::abi::unsupported::c_name(concat!(stringify!($name), "\0"))) };
    (@silent $name:ident) => {};
}

/// Returns the text up to the NUL that the macro appends.
const fn c_name(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"?",
    }
}

include!(concat!(env!("OUT_DIR"), "/unsupported_calls.rs"));

/// A variable that providers set. Nothing here reads it.
#[unsafe(no_mangle)]
static mut verbs_allow_disassociate_destroy: bool = false;

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn each_kind_fails_in_its_own_way() {
        assert_eq!(ibv_attach_mcast(), libc::EOPNOTSUPP);
        let clear = || set_errno(Errno(0));
        clear();
        assert!(ibv_import_device().is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        clear();
        assert_eq!(ibv_rereg_mr(), -1);
        assert_eq!(errno(), libc::EOPNOTSUPP);
        clear();
        ibv_unimport_mr();
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
}
