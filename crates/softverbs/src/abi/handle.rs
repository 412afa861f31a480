//! Objects that C holds by pointer. The C struct is the first field of ours, and the pointer counts as
//! one `Arc`, so that the service thread may still use an object while C destroys it.

use std::cell::UnsafeCell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::border::Errno;

/// See the module.
///
/// # Safety
/// The type is `repr(C)` and its first field is `UnsafeCell<Self::C>`.
pub(crate) unsafe trait Handle: Sized {
    /// What C sees.
    type C;

    /// What C holds, without counting.
    fn as_c(&self) -> *mut Self::C {
        let cell: *const UnsafeCell<Self::C> = std::ptr::from_ref(self).cast();
        UnsafeCell::raw_get(cell)
    }

    /// Gives one count to C.
    fn into_c(this: Arc<Self>) -> *mut Self::C {
        Arc::into_raw(this).cast_mut().cast()
    }

    /// From what C holds; EINVAL for null.
    ///
    /// # Safety
    /// `ptr` is null or came from [`Handle::into_c`] and is not released during `'a`.
    unsafe fn from_c<'a>(ptr: *mut Self::C) -> Result<&'a Self, Errno> {
        // SAFETY: the C struct is at offset 0 of a live `Self`.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    /// As [`Handle::from_c`], counted.
    ///
    /// # Safety
    /// As there.
    unsafe fn arc_from_c(ptr: *mut Self::C) -> Result<Arc<Self>, Errno> {
        if ptr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let ptr = ptr.cast::<Self>();
        // SAFETY: `into_c` made it with `Arc::into_raw`, and C's count is still there.
        unsafe { Arc::increment_strong_count(ptr) };
        // SAFETY: the count just added is ours.
        Ok(unsafe { Arc::from_raw(ptr) })
    }

    /// Takes back the count that C had.
    ///
    /// # Safety
    /// As [`Handle::from_c`], and C does not use it again.
    unsafe fn release(ptr: *mut Self::C) {
        // SAFETY: C's count, by the caller's promise.
        drop(unsafe { Arc::from_raw(ptr.cast::<Self>()) });
    }
}

/// Events handed to the program and acknowledged by it: an object is destroyed only when they are even.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    open: Mutex<u32>,
    even: Condvar,
}

impl Acks {
    /// One more was handed over.
    pub(crate) fn delivered(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// `n` were acknowledged.
    pub(crate) fn acked(&self, n: u32) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(n);
        if *open == 0 {
            self.even.notify_all();
        }
    }

    /// Waits until all are.
    pub(crate) fn wait(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while *open > 0 {
            open = self.even.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
