//! The peers of this process whose HELLO has come, and whose handshake is not over.
//!
//! Each of them has a descriptor, and queue pairs once its handshake has begun. NCCL makes one
//! connector for each listener, so a listener needs few seats. If the process has many in all, each
//! listener gets no more than it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::resource::{Resource, getrlimit};

/// From this many seats on they are scarce, if the process may have enough descriptors.
const MOST: usize = 1024;
/// From this many seats on they are scarce, however few descriptors the process may have.
const LEAST: usize = 64;
/// One of this many descriptors of the process may be a seat before they are scarce, and one a
/// half-open connection.
const SHARE: u64 = 8;
/// What each listener gets if seats are scarce: one for its connector, and one beside it.
const OF_LISTENER: usize = 2;

/// The seats of a process.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: AtomicUsize,
    scarce_from: usize,
}

/// One peer. Its drop ends that.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Seats>);

impl Seats {
    /// Makes those of this process.
    pub(super) fn of_process() -> Arc<Self> {
        Self::scarce_from(share_of_descriptors(LEAST, MOST))
    }

    fn scarce_from(scarce_from: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), scarce_from })
    }

    /// Takes one. A listener that has as many as its [`limit`](Self::limit) takes none.
    pub(super) fn take(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Seat(Arc::clone(self))
    }

    /// Returns how many seats a listener may have that usually has up to `usual`.
    pub(crate) fn limit(&self, usual: usize) -> usize {
        let scarce = self.taken.load(Ordering::Relaxed) >= self.scarce_from;
        if scarce { usual.min(OF_LISTENER) } else { usual }
    }
}

/// Returns how many of this process's descriptors one purpose may take, at least `least` and at most
/// `most`.
pub(super) fn share_of_descriptors(least: usize, most: usize) -> usize {
    // A process without a limit has enough.
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(descriptors / SHARE).unwrap_or(most).clamp(least, most)
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= reach.md: a process has a bound on peers whose handshake is not over
    #[test]
    fn a_listener_gets_little_if_seats_are_scarce() {
        let seats = Seats::scarce_from(3);
        let mut taken: Vec<Seat> = (0..2).map(|_| seats.take()).collect();
        assert_eq!(seats.limit(8), 8);
        taken.push(seats.take());
        assert_eq!((seats.limit(8), seats.limit(1)), (2, 1));
        taken.pop();
        assert_eq!(seats.limit(8), 8);
    }
}
