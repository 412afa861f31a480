//! Records the core's calls of the dynamic linker, in order. Only the core's own imports of dlopen,
//! dlsym and dlclose are replaced: other libraries' calls are not recorded.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// A recorded call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// `dlopen`; the name is empty for the program itself, the handle 0 if the file was not found.
    Opened { name: String, handle: usize },
    /// `dlsym`; the address is 0 if there is no such symbol.
    LookedUp { symbol: String, address: usize },
    /// `dlclose`
    Closed { handle: usize },
    /// Not a call: this step of the script begins.
    Step(usize),
}

static ALL: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

/// Appends a call.
pub(crate) fn note(seen: Seen) {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
}

/// Returns all calls so far.
pub(crate) fn all() -> Vec<Seen> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the replaced imports and their replacements.
pub(crate) fn hooks() -> [(&'static str, *const c_void); 3] {
    [
        ("dlopen", dlopen as *const c_void),
        ("dlsym", dlsym as *const c_void),
        ("dlclose", dlclose as *const c_void),
    ]
}

fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the core passes C strings.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Calls dlopen from this program instead of from the library. The difference matters only for a
/// search path in the library's file, and NCCL has none.
extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the core's own arguments.
    let handle = unsafe { libc::dlopen(name, flags) };
    note(Seen::Opened { name: text(name), handle: handle as usize });
    handle
}

extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    // SAFETY: the core's own arguments. The core passes handles that it opened, never RTLD_NEXT.
    let address = unsafe { libc::dlsym(handle, symbol) };
    note(Seen::LookedUp { symbol: text(symbol), address: address as usize });
    address
}

extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    note(Seen::Closed { handle: handle as usize });
    // SAFETY: the core's own argument.
    unsafe { libc::dlclose(handle) }
}
