//! The state of one request: a lock-free cell between the thread that makes progress on a comm
//! and the thread that calls `test`.
//!
//! The thread that holds the comm's state begins a request and completes it. `test` collects the
//! result without that lock, so a completed request costs `test` one load and one store, even if
//! the comm has failed in the meantime.
//!
//! ```text
//!              begin                complete                collect
//!      FREE ----------> IN_FLIGHT ------------> DONE + n ------------> FREE
//!                         |   ^                    ^
//!        complete_ahead   |   | revoke             | data_arrived
//!                         v   |                    |
//!                    COMPLETED_AHEAD --------------+
//!                         |
//!                         | collect (size 0)
//!                         v           data_arrived
//!                    COLLECTED_AHEAD ---------------> FREE
//! ```
//!
//! The lower half is for receives whose completion NCCL calls optional: NCCL may collect the
//! request before its data has arrived, and the slot stays in use until it has.

use crate::sync::{AtomicU32, Ordering};
use mpib_proto::MAX_RECVS;

const FREE: u32 = 0;
const IN_FLIGHT: u32 = 1;
/// Completed. The number of sizes is added to it.
const DONE: u32 = 2;
/// One message is completed: the usual case.
const DONE_ONE: u32 = DONE + 1;
/// NCCL may collect the request; its data has not arrived.
const COMPLETED_AHEAD: u32 = 16;
/// NCCL has collected the request; its data has not arrived.
const COLLECTED_AHEAD: u32 = 17;

/// The state of one request, and the sizes of its messages once it is completed. A size fits into
/// 32 bits: NCCL gets it as an `int`.
// Aligned: state and first size never lie in two cache lines.
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct RequestCell {
    state: AtomicU32,
    sizes: [AtomicU32; MAX_RECVS],
}

/// What [`RequestCell::completed`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The request is in flight, or completed ahead of its data.
    Pending,
    /// The request is completed with so many messages, none for a flush.
    Done(usize),
    /// NCCL has no such request: it has collected it before.
    Stale,
}

impl RequestCell {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(FREE), sizes: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Collects a request of one message and returns its size; the request is free afterwards. Also
    /// collects a request that is completed ahead of its data, with size 0. Returns `None` in all
    /// other states.
    #[inline]
    pub(crate) fn collect_one(&self) -> Option<usize> {
        let state = self.state.load(Ordering::Acquire);
        if state != DONE_ONE {
            let ahead = state == COMPLETED_AHEAD && self.change(COMPLETED_AHEAD, COLLECTED_AHEAD);
            return ahead.then_some(0);
        }
        let size = self.sizes[0].load(Ordering::Relaxed);
        self.free();
        Some(size as usize)
    }

    /// Returns whether the request is completed. [`sizes`](Self::sizes) then has the sizes, and
    /// [`free`](Self::free) collects it.
    pub(crate) fn completed(&self) -> Found {
        match self.state.load(Ordering::Acquire) {
            // `collect_one` has refused a request that was completed ahead only if its comm has
            // failed since, or its data has arrived since.
            IN_FLIGHT | COMPLETED_AHEAD => Found::Pending,
            FREE | COLLECTED_AHEAD => Found::Stale,
            state => Found::Done((state - DONE) as usize),
        }
    }

    /// Yields the size in bytes of each message of a completed request.
    #[inline]
    pub(crate) fn sizes(&self, count: usize) -> impl Iterator<Item = usize> {
        self.sizes.iter().take(count).map(|size| size.load(Ordering::Relaxed) as usize)
    }

    /// Makes the request available for the next operation.
    #[inline]
    pub(crate) fn free(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    #[inline]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IN_FLIGHT
    }

    /// Returns whether the request was completed [ahead](Self::complete_ahead) and its data has not
    /// arrived.
    #[inline]
    pub(crate) fn awaits_data(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), COMPLETED_AHEAD | COLLECTED_AHEAD)
    }

    /// Starts a free request, before NCCL gets it.
    #[inline]
    pub(crate) fn begin(&self) {
        self.state.store(IN_FLIGHT, Ordering::Relaxed);
    }

    /// Completes a request of one message of `size` bytes.
    #[inline]
    pub(crate) fn complete_one(&self, size: usize) {
        self.sizes[0].store(size as u32, Ordering::Relaxed);
        self.state.store(DONE_ONE, Ordering::Release);
    }

    /// Completes a request of at most [`MAX_RECVS`] messages; a flush has none.
    pub(crate) fn complete(&self, sizes: &[usize]) {
        let count = sizes.len().min(MAX_RECVS);
        for (place, size) in self.sizes.iter().zip(sizes) {
            place.store(*size as u32, Ordering::Relaxed);
        }
        self.state.store(DONE + count as u32, Ordering::Release);
    }

    /// Completes a request of one message for NCCL, with size 0, although its data has not arrived.
    #[inline]
    pub(crate) fn complete_ahead(&self) {
        self.state.store(COMPLETED_AHEAD, Ordering::Release);
    }

    /// Records the arrival of the data of a request that was completed ahead: the request becomes
    /// free if NCCL has collected it, else it is completed with its size.
    #[inline]
    pub(crate) fn data_arrived(&self, size: usize) {
        if self.state.load(Ordering::Relaxed) == COLLECTED_AHEAD || !self.complete_instead(size) {
            self.free();
        }
    }

    /// Replaces the completion ahead by one with the size. Returns `false` if NCCL has collected
    /// the request.
    #[cold]
    fn complete_instead(&self, size: usize) -> bool {
        self.sizes[0].store(size as u32, Ordering::Relaxed);
        self.change(COMPLETED_AHEAD, DONE_ONE)
    }

    /// Takes a completion ahead back if NCCL has not collected it: the comm has failed, and the
    /// request must report that.
    pub(crate) fn revoke(&self) {
        self.change(COMPLETED_AHEAD, IN_FLIGHT);
    }

    /// Changes the state from `from` to `to`. Returns `false` if another thread has changed it
    /// first.
    #[inline]
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
