//! What this project's plugin reports about the host, through the C functions that it exports for
//! `mpib doctor`.

use std::{
    ffi::{CStr, c_char, c_void},
    path::Path,
    ptr::NonNull,
};

use crate::failure::{Failure, Kind};
use crate::plugin;

/// No document of a host is larger.
const LARGEST: usize = 64 << 20;

/// Returns the plugin's report on this host; `None` if the plugin does not export the function: it
/// is another plugin, or an older one.
pub(super) fn report(path: &Path) -> Result<Option<String>, Failure> {
    const NAME: &CStr = c"mpib_doctor_v1";
    type Ask = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let plugin = plugin::open(path, None)?;
    let Some(function) = plugin.symbol(NAME) else { return Ok(None) };
    // SAFETY: only the plugin of this project exports this name, as a function of this type.
    let ask = unsafe { std::mem::transmute::<NonNull<c_void>, Ask>(function) };
    // SAFETY: writes at most the given length, a NUL included.
    document(NAME, |out, cap| unsafe { ask(out, cap) }).map(Some)
}

/// Returns the plugin's routes between two hosts, from the `hello` of each one's report; `None` as
/// for [`report`].
pub(super) fn routes(path: &Path, ours: &str, theirs: &str) -> Result<Option<String>, Failure> {
    const NAME: &CStr = c"mpib_doctor_routes_v1";
    type Ask = unsafe extern "C" fn(*const c_char, usize, *const c_char, usize, *mut c_char, usize) -> usize;
    let plugin = plugin::open(path, None)?;
    let Some(function) = plugin.symbol(NAME) else { return Ok(None) };
    // SAFETY: only the plugin of this project exports this name, as a function of this type.
    let ask = unsafe { std::mem::transmute::<NonNull<c_void>, Ask>(function) };
    document(NAME, |out, cap| {
        // SAFETY: reads the two strings, and writes at most the given length, a NUL included.
        unsafe { ask(ours.as_ptr().cast(), ours.len(), theirs.as_ptr().cast(), theirs.len(), out, cap) }
    })
    .map(Some)
}

/// Reads a document from a function that writes as much as there is room for and returns the room
/// that it needs.
fn document(name: &CStr, ask: impl Fn(*mut c_char, usize) -> usize) -> Result<String, Failure> {
    let mut room = vec![0u8; 1 << 20];
    let document = loop {
        match ask(room.as_mut_ptr().cast(), room.len()) {
            0 => break Err("it has no document; that is a bug of the plugin".to_owned()),
            n if n > LARGEST => {
                break Err(format!("its document takes {n} bytes, expected at most {LARGEST}"));
            }
            n if n > room.len() => room.resize(n + (64 << 10), 0),
            n => break String::from_utf8(room[..n - 1].to_vec()).map_err(|e| e.to_string()),
        }
    };
    document.map_err(|e| Failure::new(Kind::Call, format!("the plugin's {}: {e}", name.to_string_lossy())))
}
