//! Objects that C holds by pointer. The C struct is the first field of the Rust struct. The pointer
//! counts as one `Arc`: the service thread may still use an object while C destroys it.

use std::cell::UnsafeCell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::border::Errno;

/// See the module.
///
/// # Safety
/// The type is `repr(C)` and its first field is `UnsafeCell<Self::C>`.
pub(crate) unsafe trait Handle: Sized {
    /// The C struct.
    type C;

    /// Returns the pointer for C, without adding a reference.
    fn as_c(&self) -> *mut Self::C {
        let cell: *const UnsafeCell<Self::C> = std::ptr::from_ref(self).cast();
        UnsafeCell::raw_get(cell)
    }

    /// Hands one reference to C.
    fn into_c(this: Arc<Self>) -> *mut Self::C {
        Arc::into_raw(this).cast_mut().cast()
    }

    /// Returns the object for a pointer from C; EINVAL for null.
    ///
    /// # Safety
    /// `ptr` is null or came from [`Handle::into_c`] and is not released during `'a`.
    unsafe fn from_c<'a>(ptr: *mut Self::C) -> Result<&'a Self, Errno> {
        // SAFETY: the C struct is at offset 0 of a live `Self`.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    /// Like [`Handle::from_c`], with a new reference.
    ///
    /// # Safety
    /// As for [`Handle::from_c`].
    unsafe fn arc_from_c(ptr: *mut Self::C) -> Result<Arc<Self>, Errno> {
        if ptr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let ptr = ptr.cast::<Self>();
        // SAFETY: `into_c` used `Arc::into_raw`, and C still holds its reference.
        unsafe { Arc::increment_strong_count(ptr) };
        // SAFETY: consumes the reference that was just added.
        Ok(unsafe { Arc::from_raw(ptr) })
    }

    /// Drops the reference of C.
    ///
    /// # Safety
    /// As for [`Handle::from_c`], and C does not use the pointer again.
    unsafe fn release(ptr: *mut Self::C) {
        // SAFETY: the reference of C, as the caller guarantees.
        drop(unsafe { Arc::from_raw(ptr.cast::<Self>()) });
    }
}

/// Counts events that the program has received and not yet acknowledged. An object is destroyed
/// only when there are none.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    unacknowledged: Mutex<u32>,
    none: Condvar,
}

impl Acks {
    /// Counts a delivered event.
    pub(crate) fn delivered(&self) {
        *self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Counts `n` acknowledged events.
    pub(crate) fn acked(&self, n: u32) {
        let mut count = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
