//! The send queue of a QP: slots made once, and what is known of the peer. Knows nothing of
//! execution.

use rdma_sys as sys;
use rdma_sys::ibv_wr_opcode as op;

use crate::limits::PIECE;
use crate::shm::recv_queue::Sge;
use crate::wire::link::Passage;
use crate::wire::reach::Reached;

pub(crate) const SIGNALED: u32 = 1 << 1;
pub(crate) const SOLICITED: u32 = 1 << 2;
pub(crate) const INLINE: u32 = 1 << 3;

/// A posted work request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// As in the WR: network byte order.
    pub(crate) imm: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Bytes in all.
    pub(crate) len: u64,
    pub(crate) sges: u32,
    /// When the doorbell rang.
    pub(crate) posted_at: u64,
}

impl Wqe {
    /// Whether it is carried out in pieces. A SEND is not: its receive would have to be held over
    /// all of them.
    pub(crate) fn is_large(&self) -> bool {
        let by_address = matches!(
            self.opcode,
            op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM | op::IBV_WR_RDMA_READ
        );
        by_address && self.len > PIECE
    }
}

/// How far the head has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partial {
    /// Bytes that have landed.
    pub(crate) done: u64,
    pub(crate) passage: Passage,
}

/// What keeps the head from being done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// No receive was posted, else: no answer.
    pub(crate) rnr: bool,
    /// Tries left; 7 is for ever with `rnr`.
    pub(crate) left: u32,
    pub(crate) until: u64,
}

/// What the send queue needs of the QP's attributes.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) dest_qpn: u32,
    pub(crate) dgid: [u8; 16],
    /// Of our `sgid_index`, as it was when the attributes were set.
    pub(crate) sgid: [u8; 16],
    pub(crate) global: bool,
    pub(crate) dlid: u16,
    pub(crate) max_rd_atomic: u8,
    pub(crate) sq_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    /// Payload of a full packet, in bytes.
    pub(crate) path_mtu: u32,
}

/// See the module. Slots, pieces and inline data are made once, at creation.
pub(crate) struct SendQueue {
    pub(crate) wqes: Box<[Wqe]>,
    pub(crate) sges: Box<[Sge]>,
    pub(crate) inline: Box<[u8]>,
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) block: Option<Block>,
    /// Of a head that was begun.
    pub(crate) partial: Option<Partial>,
    /// When the queue was last kept from going on: nothing of it can have begun before.
    pub(crate) not_before: u64,
    pub(crate) connection: Connection,
    pub(crate) reached: Option<Reached>,
}

impl SendQueue {
    /// Empty, not connected.
    pub(crate) fn new(cap: &sys::ibv_qp_cap) -> Self {
        // A power of two, so that the running numbers may wrap.
        let slots = cap.max_send_wr.next_power_of_two() as usize;
        let (max_sge, max_inline) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
        let connection = Connection {
            dest_qpn: 0,
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
        }
    }

    /// Forgets all work requests and the peer.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail, self.block, self.reached) = (0, 0, None, None);
        (self.partial, self.not_before) = (None, 0);
    }

    /// The head is over, however it ended.
    pub(crate) fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        (self.block, self.partial) = (None, None);
    }

    /// The head, its pieces and its inline data. There is a head.
    pub(crate) fn first(&self) -> (Wqe, &[Sge], &[u8]) {
        let slot = self.slot(self.head);
        let wqe = self.wqes[slot];
        let sges = &self.sges[slot * self.max_sge..][..wqe.sges as usize];
        (wqe, sges, &self.inline[slot * self.max_inline..][..self.max_inline])
    }

    /// When the next piece of a large head is to be carried out; `None` where something else has to
    /// be done first.
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

    /// Takes over attributes, and the GID of their `sgid_index`.
    pub(crate) fn connect(&mut self, attr: &sys::ibv_qp_attr, sgid: [u8; 16]) {
        self.reached = None;
        self.connection = Connection {
            dest_qpn: attr.dest_qp_num,
            // SAFETY: any bytes make a GID.
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

    /// The slot of a running number.
    pub(crate) fn slot(&self, number: u32) -> usize {
        number as usize & (self.wqes.len() - 1)
    }

    /// Takes a work request that was found good.
    ///
    /// # Safety
    /// `wr.sg_list` has `wr.num_sge` pieces, and with the inline flag they are readable memory.
    pub(crate) unsafe fn push(&mut self, wr: &sys::ibv_send_wr, pieces: usize, len: u64, posted_at: u64) {
        let slot = self.slot(self.tail);
        let inline = wr.send_flags & INLINE != 0;
        let mut at = slot * self.max_inline;
        for i in 0..pieces {
            // SAFETY: `i` is below `num_sge`.
            let sge = unsafe { &*wr.sg_list.add(i) };
            if inline {
                let len = sge.length as usize;
                let from: *const u8 = std::ptr::with_exposed_provenance(sge.addr as usize);
                // SAFETY: readable by the caller's promise; the sum of lengths was checked against
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

/// Whether the work request is an atomic.
pub(crate) fn is_atomic(opcode: u32) -> bool {
    matches!(opcode, op::IBV_WR_ATOMIC_CMP_AND_SWP | op::IBV_WR_ATOMIC_FETCH_AND_ADD)
}
