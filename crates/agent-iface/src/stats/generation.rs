//! Whose an entry is: told by a number that readers look at before and after.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Odd while the entry is in use, and another number for each use. One writer at a time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Generation(AtomicU64);

impl Generation {
    /// Ends use `odd`: readers leave the entry out. Gives the number that stands there then. The writer brings the numbers itself,
    /// so it only ever stores.
    pub fn free(&self, odd: u64) -> u64 {
        let even = odd.wrapping_add(1);
        self.0.store(even, Ordering::Relaxed);
        even
    }

    /// Begins a new use of a free entry, in which `even` stands: what is written from now on is of no older use. Gives the new
    /// use's number, for [`publish`](Self::publish).
    pub fn prepare(&self, even: u64) -> u64 {
        self.0.store(even, Ordering::Relaxed);
        // The even number is seen before anything of the new use.
        fence(Ordering::Release);
        even.wrapping_add(1)
    }

    /// The entry is whole: from now on it is of use `odd`.
    pub fn publish(&self, odd: u64) {
        self.0.store(odd, Ordering::Release);
    }

    /// What `copy` reads of the entry, and of which use it is. `None` while it is free, `Some(None)` where it was freed meanwhile.
    pub fn read<T>(&self, copy: impl FnOnce() -> T) -> Option<Option<(u64, T)>> {
        let before = self.0.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            return None;
        }
        let copied = copy();
        // All of it is read before the number is looked at again.
        fence(Ordering::Acquire);
        let same = self.0.load(Ordering::Relaxed) == before;
        Some(same.then_some((before, copied)))
    }
}
