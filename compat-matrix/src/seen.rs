//! What the core asks of the dynamic linker, in order. The core's own imports of dlopen, dlsym and
//! dlclose lead here, so that nobody else's calls are seen.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// `dlopen`; the name is empty for the program itself, the handle 0 where the file was not
    /// found.
    Opened { name: String, handle: usize },
    /// `dlsym`; the address is 0 where the symbol is not there.
    LookedUp { symbol: String, address: usize },
    /// `dlclose`
    Closed { handle: usize },
    /// Not a call: the step of the script with this number begins.
    Step(usize),
}

static ALL: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

/// Adds one.
pub(crate) fn note(seen: Seen) {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
}

/// All so far.
pub(crate) fn all() -> Vec<Seen> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The imports that are watched, and what takes their place.
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

/// The call comes from this program now and no longer from the library: that matters for a search
/// path in the library's file, of which NCCL has none.
extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the core's own arguments.
    let handle = unsafe { libc::dlopen(name, flags) };
    note(Seen::Opened { name: text(name), handle: handle as usize });
    handle
}

extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    // SAFETY: the core's own arguments; it uses handles of its own, never RTLD_NEXT.
    let address = unsafe { libc::dlsym(handle, symbol) };
    note(Seen::LookedUp { symbol: text(symbol), address: address as usize });
    address
}

extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    note(Seen::Closed { handle: handle as usize });
    // SAFETY: the core's own argument.
    unsafe { libc::dlclose(handle) }
}
