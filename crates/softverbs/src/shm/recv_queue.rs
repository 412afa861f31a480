//! Receive work requests in shared memory: the owner posts, the connected peer takes.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rdma_sys as sys;

use crate::abi::border::Errno;
use crate::limits::MAX_SGE;
use crate::shm::layout::RecvQueue;
use crate::shm::mutex::Guard;
use crate::shm::peer::Peer;

/// One piece of a gather or scatter list.
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
    /// Where the message goes.
    pub(crate) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or(&[])
    }
}

/// A receive queue seen through a segment.
#[derive(Clone, Copy)]
pub(crate) struct Receives<'a> {
    peer: &'a Peer,
    rq: &'a RecvQueue,
    words: &'a [AtomicU64],
    stride: usize,
}

/// 64-bit words of a slot: `wr_id`, number of pieces, then two for each piece.
pub(crate) fn stride(max_sge: u32) -> usize {
    2 + 2 * max_sge as usize
}

/// A power of two, so that the running numbers may wrap.
fn slots(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

/// Bytes of a queue's slots.
pub(crate) fn bytes(depth: u32, max_sge: u32) -> usize {
    slots(depth) * stride(max_sge) * size_of::<u64>()
}

impl<'a> Receives<'a> {
    /// `None` if the queue has no slots.
    pub(crate) fn new(peer: &'a Peer, rq: &'a RecvQueue) -> Option<Self> {
        let stride = stride(rq.max_sge.load(Relaxed));
        let depth = rq.depth.load(Relaxed);
        if depth == 0 {
            return None;
        }
        let offset = usize::try_from(rq.offset.load(Relaxed)).ok()?;
        Some(Self { peer, rq, words: peer.slice(offset, slots(depth) * stride)?, stride })
    }

    /// Empties it and sets its size. The caller is its owner, and nobody else uses it yet.
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

    /// The lock; what a process was doing that died with it is done.
    pub(crate) fn lock(&self) -> Guard<'a> {
        let guard = self.rq.lock.lock();
        if guard.died {
            self.finish_taking();
        }
        guard
    }

    /// Gives the receive at `taken_from` to `taker`, if there is one. Each step may have been done
    /// before.
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

    /// Adds one; ENOMEM when it is full, EINVAL for too many pieces.
    ///
    /// # Safety
    /// `wr.sg_list` has `wr.num_sge` pieces.
    pub(crate) unsafe fn post(&self, wr: &sys::ibv_recv_wr) -> Result<(), Errno> {
        let rq = self.rq;
        let count = usize::try_from(wr.num_sge).map_err(|_| Errno(libc::EINVAL))?;
        if count > rq.max_sge.load(Relaxed) as usize {
            return Err(Errno(libc::EINVAL));
        }
        let _guard = self.lock();
        if rq.outstanding.load(Acquire) >= rq.depth.load(Relaxed) {
            return Err(Errno(libc::ENOMEM));
        }
        let tail = rq.tail.load(Relaxed);
        let [wr_id, n, pieces @ ..] = self.slot(tail) else { return Err(Errno(libc::EIO)) };
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

    /// Receives that wait; a hint when taken without the lock.
    pub(crate) fn waiting(&self) -> u32 {
        self.rq.tail.load(Acquire).wrapping_sub(self.rq.head.load(Acquire))
    }

    /// Takes the oldest for the QP with this index, which remembers it. The flag says that the
    /// armed limit was reached.
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

/// One receive was polled: its place is free again.
pub(crate) fn polled(rq: &RecvQueue) {
    // Never below zero, whatever a peer wrote there.
    let _ = rq.outstanding.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
}
