//! The send queue of a QP: preallocated slots and the attributes of the connection. It does not
//! execute work requests.

use std::collections::VecDeque;

use rdma_sys as sys;
use rdma_sys::ibv_wr_opcode as op;

use crate::limits::PIECE;
use crate::shm::recv_queue::Sge;
use crate::wire::late::Late;
use crate::wire::link::Passage;
use crate::wire::reach::Reached;
use crate::wire::strike::{Struck, Unacked};

pub(crate) const SIGNALED: u32 = 1 << 1;
pub(crate) const SOLICITED: u32 = 1 << 2;
pub(crate) const INLINE: u32 = 1 << 3;

/// A posted work request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Network byte order, as in the work request.
    pub(crate) imm: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Total length in bytes.
    pub(crate) len: u64,
    pub(crate) sges: u32,
    /// Time of the post.
    pub(crate) posted_at: u64,
}

impl Wqe {
    /// Returns whether it is executed in pieces. A SEND is not, because it would have to hold its
    /// receive during all pieces.
    pub(crate) fn is_large(&self) -> bool {
        let by_address = matches!(
            self.opcode,
            op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM | op::IBV_WR_RDMA_READ
        );
        by_address && self.len > PIECE
    }
}

/// Progress of the head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partial {
    /// Bytes that have been copied.
    pub(crate) done: u64,
    pub(crate) passage: Passage,
}

/// Why the head is blocked, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Whether no receive was posted; otherwise there was no answer.
    pub(crate) rnr: bool,
    /// Retries left. With `rnr`, 7 means infinite.
    pub(crate) left: u32,
    pub(crate) until: u64,
    /// When the work request first got no answer.
    pub(crate) since: u64,
    /// When the adapter sends it again before the timeout expires.
    pub(crate) resend_at: u64,
}

/// The attributes of the QP that the send queue needs.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) dest_qpn: u32,
    /// The QP is connected to itself.
    pub(crate) loopback: bool,
    pub(crate) dgid: [u8; 16],
    /// The GID of our `sgid_index` at the time when the attributes were set.
    pub(crate) sgid: [u8; 16],
    pub(crate) global: bool,
    pub(crate) dlid: u16,
    pub(crate) max_rd_atomic: u8,
    pub(crate) sq_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    /// Maximum payload of a packet in bytes.
    pub(crate) path_mtu: u32,
}

/// See the module. Slots, scatter/gather lists and inline data are allocated at creation.
pub(crate) struct SendQueue {
    pub(crate) wqes: Box<[Wqe]>,
    pub(crate) sges: Box<[Sge]>,
    pub(crate) inline: Box<[u8]>,
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) block: Option<Block>,
    /// Progress of a head that was started.
    pub(crate) partial: Option<Partial>,
    /// When the queue was last blocked: nothing can have started earlier.
    pub(crate) not_before: u64,
    pub(crate) connection: Connection,
    pub(crate) reached: Option<Reached>,
    /// The head was executed, but its answer is lost.
    pub(crate) unacked: Option<Unacked>,
    /// The work requests behind such a head that were executed, too.
    pub(crate) ahead: VecDeque<Unacked>,
    /// Work requests that a fault strikes, in order. Nearly always empty.
    pub(crate) struck: VecDeque<Struck>,
    /// Swallowed WRITEs that arrive when the QP has ended, with their running numbers.
    pub(crate) swallowed: Vec<(u32, Late)>,
}

impl SendQueue {
    /// Creates an empty queue without a connection.
    pub(crate) fn new(cap: &sys::ibv_qp_cap) -> Self {
        // A power of two: the running numbers may wrap.
        let slots = cap.max_send_wr.next_power_of_two() as usize;
        let (max_sge, max_inline) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
        let connection = Connection {
            dest_qpn: 0,
            loopback: false,
            dgid: [0; 16],
            sgid: [0; 16],
            global: false,
            dlid: 0,
            max_rd_atomic: 0,
            sq_psn: 0,
            timeout: 0,
            retry: 0,
            rnr_retry: 0,
            path_mtu: 0,
        };
        Self {
            wqes: vec![Wqe::default(); slots].into(),
            sges: vec![Sge::default(); slots * max_sge].into(),
            inline: vec![0; slots * max_inline].into(),
            max_sge,
            max_inline,
            head: 0,
            tail: 0,
            block: None,
            partial: None,
            not_before: 0,
            connection,
            reached: None,
            unacked: None,
            ahead: VecDeque::new(),
            struck: VecDeque::new(),
            swallowed: Vec::new(),
        }
    }

    /// Drops all work requests and the cached responder.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail, self.block, self.reached) = (0, 0, None, None);
        (self.partial, self.not_before, self.unacked) = (None, 0, None);
        self.ahead.clear();
        self.struck.clear();
        self.swallowed.clear();
    }

    /// Removes the head.
    pub(crate) fn advance(&mut self) {
        while self.struck.front().is_some_and(|struck| struck.number == self.head) {
            self.struck.pop_front();
        }
        self.head = self.head.wrapping_add(1);
        (self.block, self.partial, self.unacked) = (None, None, self.ahead.pop_front());
    }

    /// Returns the head, its scatter/gather list and its inline data. The queue must not be empty.
    pub(crate) fn first(&self) -> (Wqe, &[Sge], &[u8]) {
        self.at(self.head)
    }

    /// Returns a work request by its running number, like `first`.
    pub(crate) fn at(&self, number: u32) -> (Wqe, &[Sge], &[u8]) {
        let slot = self.slot(number);
        let wqe = self.wqes[slot];
        let sges = &self.sges[slot * self.max_sge..][..wqe.sges as usize];
        (wqe, sges, &self.inline[slot * self.max_inline..][..self.max_inline])
    }

    /// Returns when the next piece of a large head is due. Returns `None` if the head is not large
    /// or is blocked.
    pub(crate) fn next_piece(&self) -> Option<u64> {
        if self.head == self.tail || self.block.is_some() {
            return None;
        }
        let wqe = &self.wqes[self.slot(self.head)];
        wqe.is_large().then(|| match &self.partial {
            Some(Partial { done, passage }) => passage.sent_at(*done, wqe.len),
            None => wqe.posted_at.max(self.not_before),
        })
    }

    /// Returns the first work request behind a head whose answer is lost that was not executed and may
    /// be. The answer of a READ or an atomic is its result: these wait.
    pub(crate) fn next_ahead(&self) -> Option<u32> {
        let number = self.head.wrapping_add(1 + self.ahead.len() as u32);
        if self.unacked.is_none() || number.wrapping_sub(self.head) >= self.tail.wrapping_sub(self.head) {
            return None;
        }
        let struck = self.struck.iter().any(|struck| struck.number == number);
        let opcode = self.wqes[self.slot(number)].opcode;
        (!struck && opcode != op::IBV_WR_RDMA_READ && !is_atomic(opcode)).then_some(number)
    }

    /// Sets the attributes of the connection and the GID of its `sgid_index`.
    pub(crate) fn connect(&mut self, attr: &sys::ibv_qp_attr, sgid: [u8; 16], loopback: bool) {
        self.reached = None;
        self.connection = Connection {
            dest_qpn: attr.dest_qp_num,
            loopback,
            // SAFETY: any bytes are a valid GID.
            dgid: unsafe { attr.ah_attr.grh.dgid.raw },
            sgid,
            global: attr.ah_attr.is_global != 0,
            dlid: attr.ah_attr.dlid,
            max_rd_atomic: attr.max_rd_atomic,
            sq_psn: attr.sq_psn & 0xff_ffff,
            timeout: attr.timeout,
            retry: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            path_mtu: 128 << attr.path_mtu.min(5),
        };
    }

    /// Returns the slot of a running number.
    pub(crate) fn slot(&self, number: u32) -> usize {
        number as usize & (self.wqes.len() - 1)
    }

    /// Appends a validated work request.
    ///
    /// # Safety
    /// `wr.sg_list` has `pieces` items. With the inline flag they name readable memory.
    pub(crate) unsafe fn push(&mut self, wr: &sys::ibv_send_wr, pieces: usize, len: u64, posted_at: u64) {
        let slot = self.slot(self.tail);
        let inline = wr.send_flags & INLINE != 0;
        let mut at = slot * self.max_inline;
        for i in 0..pieces {
            // SAFETY: `i` is below `pieces`.
            let sge = unsafe { &*wr.sg_list.add(i) };
            if inline {
                let len = sge.length as usize;
                let from: *const u8 = std::ptr::with_exposed_provenance(sge.addr as usize);
                // SAFETY: readable as the caller guarantees; the sum of lengths was checked against
                // the room.
                unsafe { std::ptr::copy_nonoverlapping(from, self.inline[at..at + len].as_mut_ptr(), len) };
                at += len;
            } else {
                self.sges[slot * self.max_sge + i] = Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey };
            }
        }
        let mut wqe = Wqe {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            // SAFETY: both fields of the union are 32-bit integers.
            imm: unsafe { wr.imm_data_invalidated_rkey_union.imm_data },
            len,
            sges: if inline { 0 } else { pieces as u32 },
            posted_at,
            ..Wqe::default()
        };
        // SAFETY: both fields of the union hold integers only, and every bit pattern of them is
        // valid.
        unsafe {
            if is_atomic(wr.opcode) {
                let atomic = wr.wr.atomic;
                (wqe.remote_addr, wqe.rkey) = (atomic.remote_addr, atomic.rkey);
                (wqe.compare_add, wqe.swap) = (atomic.compare_add, atomic.swap);
            } else {
                let rdma = wr.wr.rdma;
                (wqe.remote_addr, wqe.rkey) = (rdma.remote_addr, rdma.rkey);
            }
        }
        self.wqes[slot] = wqe;
        self.tail = self.tail.wrapping_add(1);
    }
}

/// Returns whether the work request is an atomic operation.
pub(crate) fn is_atomic(opcode: u32) -> bool {
    matches!(opcode, op::IBV_WR_ATOMIC_CMP_AND_SWP | op::IBV_WR_ATOMIC_FETCH_AND_ADD)
}
