//! The revision of data that is written rarely: readers check it before and after copying the data.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Odd while the data is being written. There is one writer at a time, and all data is atomic.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Revision(AtomicU64);

impl Revision {
    /// Calls `write`. Readers that copy the data meanwhile notice the change.
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let even = self.0.load(Ordering::Relaxed) & !1;
        self.0.store(even.wrapping_add(1), Ordering::Relaxed);
        // Readers must see the odd number before any of the new data.
        fence(Ordering::Release);
        let result = write();
        self.0.store(even.wrapping_add(2), Ordering::Release);
        result
    }

    /// Returns a number that changes with each write.
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `copy` and returns its result. `number` reads the number of the data that `copy` reads.
    /// Returns `None` if the data was written meanwhile.
    pub fn read<T>(number: impl Fn() -> u64, copy: impl FnOnce() -> T) -> Option<T> {
        let before = number();
        if !before.is_multiple_of(2) {
            return None;
        }
        // The number must be read before the data.
        fence(Ordering::Acquire);
        let copied = copy();
        // The data must be read before the number is read again.
        fence(Ordering::Acquire);
        (number() == before).then_some(copied)
    }
}
