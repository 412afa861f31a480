//! What every exported call does: keep panics in, set `errno`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::fault;

/// An errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// `errno` as the last failing system call left it.
pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn caught<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        fault!("{call}: internal error (a panic was caught); the call fails with EIO");
        Err(Errno(libc::EIO))
    })
}

/// Calls that return 0 or the errno itself.
pub(crate) fn code(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> i32 {
    match caught(call, f) {
        Ok(()) => 0,
        Err(errno) => errno.0,
    }
}

/// Calls that return 0, or -1 and set `errno`.
pub(crate) fn minus_one(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> i32 {
    match caught(call, f) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Calls that return a pointer, or NULL and set `errno`.
pub(crate) fn pointer<T>(call: &'static str, f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    match caught(call, f) {
        Ok(p) => p,
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}
