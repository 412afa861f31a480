//! The generation of an entry: readers check it before and after copying the entry.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Odd while the entry is in use, with a different number for each use. There is one writer at a
/// time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Generation(AtomicU64);

impl Generation {
    /// Ends use `odd`: readers skip the entry from now on. Returns the new, even number. The writer
    /// keeps the numbers itself: these functions store and never load.
    pub fn free(&self, odd: u64) -> u64 {
        let even = odd.wrapping_add(1);
        self.0.store(even, Ordering::Relaxed);
        even
    }

    /// Prepares a free entry with number `even` for a new use. Returns the number of the new use,
    /// for [`publish`](Self::publish). Call this before writing the entry.
    pub fn prepare(&self, even: u64) -> u64 {
        self.0.store(even, Ordering::Relaxed);
        // Readers must see the even number before any data of the new use.
        fence(Ordering::Release);
        even.wrapping_add(1)
    }

    /// Publishes the complete entry as use `odd`.
    pub fn publish(&self, odd: u64) {
        self.0.store(odd, Ordering::Release);
    }

    /// Returns the number.
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `copy` and returns its result with the number of the use. `number` reads the number of
    /// the entry that `copy` reads. Returns `None` if the entry is free, and `Some(None)` if its use
    /// ended during the copy.
    pub fn read<T>(number: impl Fn() -> u64, copy: impl FnOnce() -> T) -> Option<Option<(u64, T)>> {
        let before = number();
        if before.is_multiple_of(2) {
            return None;
        }
        // The number must be read before the entry.
        fence(Ordering::Acquire);
        let copied = copy();
        // The entry must be read before the number is read again.
        fence(Ordering::Acquire);
        Some((number() == before).then_some((before, copied)))
    }
}
