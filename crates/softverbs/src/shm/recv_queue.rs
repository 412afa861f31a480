//! A receive queue in shared memory: the owner posts receives, the connected peer takes them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rdma_sys as sys;

use crate::limits::MAX_SGE;
use crate::shm::layout::RecvQueue;
use crate::shm::mutex::Guard;
use crate::shm::peer::Peer;

/// One item of a scatter/gather list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A receive taken from a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) wr_id: u64,
    count: usize,
    sges: [Sge; MAX_SGE as usize],
}

impl Taken {
    /// Returns the scatter list.
    pub(crate) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or(&[])
    }
}

/// Why a receive is not in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// All entries, of this number, are in use.
    Full(u32),
    /// It has more SGEs than this.
    Sges(u32),
    /// The queue has no such slot.
    Broken,
}

/// A view of a receive queue in a segment.
#[derive(Clone, Copy)]
pub(crate) struct Receives<'a> {
    peer: &'a Peer,
    rq: &'a RecvQueue,
    words: &'a [AtomicU64],
    stride: usize,
}

/// Returns the 64-bit words of a slot: `wr_id`, number of items, then two words for each item.
pub(crate) fn stride(max_sge: u32) -> usize {
    2 + 2 * max_sge as usize
}

/// Returns the number of slots. It is a power of two: the running numbers may wrap.
fn slots(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

/// Returns the size of a queue's slots in bytes.
pub(crate) fn bytes(depth: u32, max_sge: u32) -> usize {
    slots(depth) * stride(max_sge) * size_of::<u64>()
}

impl<'a> Receives<'a> {
    /// Returns `None` if the queue has no slots.
    pub(crate) fn new(peer: &'a Peer, rq: &'a RecvQueue) -> Option<Self> {
        let stride = stride(rq.max_sge.load(Relaxed));
        let depth = rq.depth.load(Relaxed);
        if depth == 0 {
            return None;
        }
        let offset = usize::try_from(rq.offset.load(Relaxed)).ok()?;
        Some(Self { peer, rq, words: peer.slice(offset, slots(depth) * stride)?, stride })
    }

    /// Empties the queue and sets its size. The caller is the owner, and nothing else uses the
    /// queue.
    pub(crate) fn reset(rq: &RecvQueue, offset: usize, depth: u32, max_sge: u32) {
        rq.offset.store(offset as u64, Relaxed);
        rq.depth.store(depth, Relaxed);
        rq.max_sge.store(max_sge, Relaxed);
        for field in [&rq.head, &rq.tail, &rq.outstanding, &rq.limit, &rq.taker] {
            field.store(0, Relaxed);
        }
    }

    fn slot(&self, index: u32) -> &'a [AtomicU64] {
        let at = index as usize % (self.words.len() / self.stride) * self.stride;
        self.words.get(at..at + self.stride).unwrap_or(&[])
    }

    /// Locks the queue. If the previous holder died, completes its operation.
    pub(crate) fn lock(&self) -> Guard<'a> {
        let guard = self.rq.lock.lock();
        if guard.died {
            self.finish_taking();
        }
        guard
    }

    /// Gives the receive at `taken_from` to `taker`, if there is one. Each step can be repeated.
    fn finish_taking(&self) {
        let rq = self.rq;
        let Some(taker) = rq.taker.load(Relaxed).checked_sub(1) else { return };
        let from = rq.taken_from.load(Relaxed);
        // Release throughout: a process may die between any two of these stores.
        if let (Some(qp), [wr_id, ..]) = (self.peer.qp(taker), self.slot(from)) {
            qp.taken_wr_id.store(wr_id.load(Relaxed), Release);
            qp.taken.store(1, Release);
        }
        rq.head.store(from.wrapping_add(1), Release);
        rq.taker.store(0, Release);
    }

    /// Appends a receive.
    ///
    /// # Safety
    /// `wr.sg_list` has `wr.num_sge` items.
    pub(crate) unsafe fn post(&self, wr: &sys::ibv_recv_wr) -> Result<(), NotQueued> {
        let rq = self.rq;
        let most = rq.max_sge.load(Relaxed);
        let count = usize::try_from(wr.num_sge).ok().filter(|count| *count <= most as usize);
        let count = count.ok_or(NotQueued::Sges(most))?;
        let _guard = self.lock();
        let depth = rq.depth.load(Relaxed);
        if rq.outstanding.load(Acquire) >= depth {
            return Err(NotQueued::Full(depth));
        }
        let tail = rq.tail.load(Relaxed);
        let [wr_id, n, pieces @ ..] = self.slot(tail) else { return Err(NotQueued::Broken) };
        wr_id.store(wr.wr_id, Relaxed);
        n.store(count as u64, Relaxed);
        for (i, words) in pieces.chunks_exact(2).take(count).enumerate() {
            // SAFETY: `i` is below `num_sge`.
            let sge = unsafe { &*wr.sg_list.add(i) };
            words[0].store(sge.addr, Relaxed);
            words[1].store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Relaxed);
        }
        rq.outstanding.fetch_add(1, AcqRel);
        rq.tail.store(tail.wrapping_add(1), Release);
        Ok(())
    }

    /// Returns the number of posted receives. Without the lock this is a hint.
    pub(crate) fn waiting(&self) -> u32 {
        self.rq.tail.load(Acquire).wrapping_sub(self.rq.head.load(Acquire))
    }

    /// Takes all posted receives, which no QP records; `take` gets their `wr_id`s in order.
    pub(crate) fn take_all(&self, mut take: impl FnMut(u64)) {
        let rq = self.rq;
        let _guard = self.lock();
        let (mut head, tail) = (rq.head.load(Relaxed), rq.tail.load(Relaxed));
        while head != tail {
            if let [wr_id, ..] = self.slot(head) {
                take(wr_id.load(Relaxed));
            }
            head = head.wrapping_add(1);
        }
        rq.head.store(head, Release);
    }

    /// Takes the oldest receive for the QP with this index, which records it. The flag reports that
    /// the armed limit was reached.
    pub(crate) fn take(&self, qp: u32) -> Option<(Taken, bool)> {
        let rq = self.rq;
        let _guard = self.lock();
        let head = rq.head.load(Relaxed);
        let tail = rq.tail.load(Relaxed);
        if head == tail {
            return None;
        }
        let [wr_id, n, pieces @ ..] = self.slot(head) else { return None };
        let mut taken =
            Taken { wr_id: wr_id.load(Relaxed), count: 0, sges: [Sge::default(); MAX_SGE as usize] };
        let count = usize::try_from(n.load(Relaxed)).unwrap_or(0);
        for (sge, words) in taken.sges.iter_mut().zip(pieces.chunks_exact(2)).take(count) {
            let second = words[1].load(Relaxed);
            let (len, lkey) = (second as u32, (second >> 32) as u32);
            *sge = Sge { addr: words[0].load(Relaxed), len, lkey };
            taken.count += 1;
        }
        rq.taken_from.store(head, Release);
        rq.taker.store(qp + 1, Release);
        self.finish_taking();
        let limit = rq.limit.load(Relaxed);
        let reached = limit > 0 && tail.wrapping_sub(head.wrapping_add(1)) < limit;
        if reached {
            rq.limit.store(0, Relaxed);
        }
        Some((taken, reached))
    }
}

/// Frees the slot of a receive whose completion was polled.
pub(crate) fn polled(rq: &RecvQueue) {
    // Never below zero, even if a peer wrote a wrong value.
    let _ = rq.outstanding.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
}
