//! A queue with a file descriptor for `poll(2)`, used by completion channels and async events.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::abi::border::{Errno, last_errno};

/// A queue with a descriptor that is readable while the queue is not empty. The program may set
/// O_NONBLOCK.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: takes integers, returns a descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, queue: Mutex::default() })
    }

    /// Returns the descriptor for `poll(2)`.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Appends an item.
    pub(crate) fn push(&self, item: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        let one = 1_u64;
        // SAFETY: eight readable bytes, as eventfd requires. The counter cannot overflow before
        // 2^64 events.
        unsafe { libc::write(self.fd(), (&raw const one).cast::<c_void>(), 8) };
    }

    /// Removes the first item. Waits for one, or fails with EAGAIN if the descriptor is
    /// non-blocking. `count` is called under the queue's lock: who calls [`Self::retain`] afterwards
    /// and does not find the item sees what `count` did.
    pub(crate) fn pop(&self, count: impl Fn(&T)) -> Result<T, Errno> {
        loop {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes, as eventfd requires.
            let n = unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
            if n != 8 {
                return Err(last_errno());
            }
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            // Empty if the item was withdrawn.
            if let Some(item) = queue.pop_front() {
                count(&item);
                return Ok(item);
            }
        }
    }

    /// Withdraws the items for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(keep);
        for _ in queue.len()..before {
            self.clear_one();
        }
    }

    /// Whether the descriptor is readable.
    pub(crate) fn is_ready(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// Consumes the readiness of a withdrawn item.
    fn clear_one(&self) {
        if self.is_ready() {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes. If another reader comes first, it loops in `pop`.
            unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise an object could be destroyed between the removal of its event and the count of
    /// events that its destruction waits for.
    #[test]
    fn an_item_is_counted_before_others_see_its_removal() {
        let queue = EventQueue::new().unwrap();
        queue.push(7);
        let counted = std::cell::Cell::new(false);
        let item = queue.pop(|item| {
            assert_eq!(*item, 7);
            assert!(queue.queue.try_lock().is_err());
            counted.set(true);
        });
        assert_eq!((item.ok(), counted.get()), (Some(7), true));
        assert!(queue.queue.try_lock().is_ok_and(|queue| queue.is_empty()));
    }
}
