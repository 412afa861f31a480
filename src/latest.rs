//! A value that is replaced while other threads read it. A read takes no lock.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

/// The latest of a few values. The earlier ones stay as long as the object, for their readers.
pub(crate) struct Latest<T> {
    latest: AtomicPtr<T>,
    /// Boxes of this object, among them the latest one.
    all: Mutex<Vec<NonNull<T>>>,
}

// SAFETY: the object owns what it points to, and shares it as `&T`.
unsafe impl<T: Send + Sync> Send for Latest<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Latest<T> {}

impl<T> Latest<T> {
    pub(crate) fn new(value: T) -> Self {
        let first = NonNull::from(Box::leak(Box::new(value)));
        Self { latest: AtomicPtr::new(first.as_ptr()), all: Mutex::new(vec![first]) }
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
        let next = NonNull::from(Box::leak(Box::new(value)));
        let mut all = self.all.lock();
        all.push(next);
        self.latest.store(next.as_ptr(), Ordering::Release);
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        for value in self.all.get_mut().drain(..) {
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
