//! A completion, and its representation in an entry of the shared list.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::shm::layout::CqEntry;

/// The queue whose work request a completion ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Queue {
    /// The send queue of the QP with this index, and the number of its work requests that are
    /// complete.
    Send(u32, u32),
    /// The receive queue of the QP with this index.
    Recv(u32),
    /// The SRQ with this index.
    Srq(u32),
    /// No queue.
    #[default]
    None,
}

/// A completion.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Completion {
    /// When it becomes visible: CLOCK_MONOTONIC nanoseconds, 0 for immediately.
    pub(crate) ready_at: u64,
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) vendor_err: u32,
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
    /// Network byte order, as in the work request.
    pub(crate) imm: u32,
    pub(crate) qpn: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) solicited: bool,
    /// The last piece of its QP that a receive covers (`wire::placement`).
    pub(crate) covers: u64,
    pub(crate) queue: Queue,
    /// The QP whose taken receive it completes, as index + 1; 0 is none.
    pub(crate) ends: u32,
}

/// Codes of `Queue` in an entry; those of the queues of a QP are below.
const SRQ: u32 = 2;
const NONE: u32 = 3;

pub(super) fn get(index: &AtomicU32) -> u32 {
    index.load(Relaxed)
}

pub(super) fn fill(entry: &CqEntry, c: &Completion, ready_at: u64) {
    let (queue, owner, done) = match c.queue {
        Queue::Send(qp, done) => (0, qp, done),
        Queue::Recv(qp) => (1, qp, 0),
        Queue::Srq(srq) => (SRQ, srq, 0),
        Queue::None => (NONE, 0, 0),
    };
    entry.ready_at.store(ready_at, Relaxed);
    entry.wr_id.store(c.wr_id, Relaxed);
    entry.covers.store(c.covers, Relaxed);
    entry.announced.store(0, Relaxed);
    entry.status.store(c.status, Relaxed);
    entry.vendor_err.store(c.vendor_err, Relaxed);
    entry.opcode.store(c.opcode, Relaxed);
    entry.byte_len.store(c.byte_len, Relaxed);
    entry.imm.store(c.imm, Relaxed);
    entry.qpn.store(c.qpn, Relaxed);
    entry.src_qp.store(c.src_qp, Relaxed);
    entry.wc_flags.store(c.wc_flags, Relaxed);
    entry.solicited.store(u32::from(c.solicited), Relaxed);
    entry.queue.store(queue, Relaxed);
    entry.owner.store(owner, Relaxed);
    entry.done.store(done, Relaxed);
}

/// Detaches an entry from a queue of a QP.
pub(super) fn disown(entry: &CqEntry) {
    if get(&entry.queue) < SRQ {
        entry.queue.store(NONE, Relaxed);
    }
}

pub(super) fn read(entry: &CqEntry) -> Completion {
    let owner = get(&entry.owner);
    Completion {
        ready_at: entry.ready_at.load(Relaxed),
        wr_id: entry.wr_id.load(Relaxed),
        status: get(&entry.status),
        vendor_err: get(&entry.vendor_err),
        opcode: get(&entry.opcode),
        byte_len: get(&entry.byte_len),
        imm: get(&entry.imm),
        qpn: get(&entry.qpn),
        src_qp: get(&entry.src_qp),
        wc_flags: get(&entry.wc_flags),
        solicited: get(&entry.solicited) != 0,
        covers: entry.covers.load(Relaxed),
        queue: match get(&entry.queue) {
            0 => Queue::Send(owner, get(&entry.done)),
            1 => Queue::Recv(owner),
            SRQ => Queue::Srq(owner),
            _ => Queue::None,
        },
        ends: 0,
    }
}
