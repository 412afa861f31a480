//! Wrappers for exported functions: they catch panics and set `errno`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::fault;

/// An `errno` value. 0: the call fails and leaves `errno` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    if errno.0 == 0 {
        return;
    }
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Returns the `errno` of the last failed system call.
pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn caught<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        fault!("{call}: internal error (a panic was caught); the call fails with EIO");
        Err(Errno(libc::EIO))
    })
}

/// Wraps a function that returns 0 or the error code.
pub(crate) fn code(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> i32 {
    match caught(call, f) {
        Ok(()) => 0,
        Err(errno) => errno.0,
    }
}

/// Wraps a function that returns 0, or -1 with `errno`.
pub(crate) fn minus_one(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> i32 {
    match caught(call, f) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Wraps a function that returns a pointer, or NULL with `errno`.
pub(crate) fn pointer<T>(call: &'static str, f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    match caught(call, f) {
        Ok(p) => p,
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}
