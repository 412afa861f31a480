//! A queue with a file descriptor for `poll(2)`, used by completion channels and async events.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::abi::border::{Errno, last_errno};

/// A queue with a descriptor that is readable while something is in it. The program may set
/// O_NONBLOCK.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// Empty.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: takes integers, gives a descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: just opened, and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, queue: Mutex::default() })
    }

    /// For `poll(2)`.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds one.
    pub(crate) fn push(&self, item: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        let one = 1_u64;
        // SAFETY: eight readable bytes, as an eventfd wants. It cannot be full: that takes 2^64
        // events.
        unsafe { libc::write(self.fd(), (&raw const one).cast::<c_void>(), 8) };
    }

    /// Waits for one, unless the descriptor is non-blocking (EAGAIN).
    pub(crate) fn pop(&self) -> Result<T, Errno> {
        loop {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes, as an eventfd wants.
            let n = unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
            if n != 8 {
                return Err(last_errno());
            }
            // Empty if what was announced has been withdrawn.
            if let Some(item) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return Ok(item);
            }
        }
    }

    /// Withdraws what is not to be kept.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(keep);
        for _ in queue.len()..before {
            self.take_back();
        }
    }

    /// Keeps the descriptor from being readable for an item that is gone.
    fn take_back(&self) {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } > 0 {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes. Another reader may come first: then it loops in `pop`.
            unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
        }
    }
}
