//! A value that is replaced while other threads read it. A read takes no lock.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

/// The latest of a few values. The earlier ones stay as long as the object, for their readers.
pub(crate) struct Latest<T> {
    latest: AtomicPtr<T>,
    /// Boxes of this object, as the latest one is.
    earlier: Mutex<Vec<NonNull<T>>>,
}

// SAFETY: the object owns what it points to, and shares it as `&T`.
unsafe impl<T: Send + Sync> Send for Latest<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Latest<T> {}

impl<T> Latest<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { latest: AtomicPtr::new(Box::into_raw(Box::new(value))), earlier: Mutex::default() }
    }

    /// Returns the latest value.
    #[inline(always)]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: one of the boxes, which are freed when the object is dropped. Nobody borrows them
        // mutably.
        unsafe { &*self.latest.load(Ordering::Acquire) }
    }

    /// Replaces the value.
    pub(crate) fn set(&self, value: T) {
        let next = Box::into_raw(Box::new(value));
        let mut earlier = self.earlier.lock();
        earlier.extend(NonNull::new(self.latest.swap(next, Ordering::AcqRel)));
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        let latest = NonNull::new(*self.latest.get_mut());
        for value in self.earlier.get_mut().drain(..).chain(latest) {
            // SAFETY: leaked by `new` or `set`, and freed once. No borrow of the object is left.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn readers_keep_what_they_have_read_and_all_ends_with_the_object() {
        let values = [1, 2, 3].map(Arc::new);
        let latest = Latest::new(Arc::clone(&values[0]));
        let first = latest.get();
        latest.set(Arc::clone(&values[1]));
        let second = latest.get();
        latest.set(Arc::clone(&values[2]));
        assert_eq!((**first, **second, **latest.get()), (1, 2, 3));
        drop(latest);
        assert_eq!(values.map(|value| Arc::strong_count(&value)), [1; 3]);
    }

    #[test]
    fn a_thread_reads_values_in_their_order() {
        let last = if cfg!(miri) { 20 } else { 2000 };
        let latest = Latest::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=last).for_each(|value| latest.set(value)));
            let mut before = 0;
            while before < last {
                let now = *latest.get();
                assert!(now >= before);
                before = now;
            }
        });
    }
}
