//! The layout of a process's segment and of the fabric file. All integers are atomics because other
//! processes write them; who may write what is said at each field.

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::map::Shared;
use super::mutex::RobustMutex;
use crate::limits::{MAX_CQ, MAX_DEVICES, MAX_GIDS, MAX_MR, MAX_QP, MAX_SRQ};

/// Says that a file is ours and of this layout. Change the number with the layout.
pub(crate) const MAGIC: u64 = 0x736f_6674_7665_0006;
/// Slots of the event ring.
pub(crate) const EVENTS: usize = 1024;
/// Bytes that one bounce carries.
pub(crate) const BOUNCE: usize = 1 << 18;

/// Start of a segment.
#[repr(C)]
pub(crate) struct Header {
    /// Written last by the owner.
    pub(crate) magic: AtomicU64,
    pub(crate) device_count: AtomicU32,
    /// Entries of the table of registrations that were ever used, and so have memory.
    pub(crate) registrations: AtomicU32,
    /// Makes remote atomics on this process's memory atomic among themselves.
    pub(crate) atomics: RobustMutex,
    /// Protects the event ring.
    pub(crate) event_lock: RobustMutex,
    pub(crate) event_head: AtomicU32,
    pub(crate) event_tail: AtomicU32,
    pub(crate) events: [EventSlot; EVENTS],
    pub(crate) bounce: Bounce,
    /// Written by the owner before a QP exists.
    pub(crate) devices: [DeviceShared; MAX_DEVICES],
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for Header {}

/// An async event on its way to the owner.
#[repr(C)]
pub(crate) struct EventSlot {
    /// `enum ibv_event_type`
    pub(crate) kind: AtomicU32,
    /// Index in the table of QPs, CQs or SRQs, by kind.
    pub(crate) index: AtomicU32,
    /// QP number, or the entry's generation: tells whether it is still the same object.
    pub(crate) id: AtomicU32,
}

/// A copy that the owner's service thread does for a peer that may not.
#[repr(C)]
pub(crate) struct Bounce {
    /// Held by the peer for one whole copy.
    pub(crate) lock: RobustMutex,
    /// 0 idle, 1 asked for, 2 done; a futex.
    pub(crate) state: AtomicU32,
    /// 0: bounce area to `addr`; 1: `addr` to bounce area.
    pub(crate) read: AtomicU32,
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
}

/// A device as peers must know it.
#[repr(C)]
pub(crate) struct DeviceShared {
    pub(crate) lid: AtomicU32,
    pub(crate) gid_count: AtomicU32,
    /// Index in the fabric's link table.
    pub(crate) link: AtomicU32,
    /// Others than this are out of reach.
    pub(crate) wire: AtomicU32,
    /// The longest payload of a packet that the port takes, and the network behind it lets through.
    pub(crate) mtu: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// Bytes per second, 0 for unlimited.
    pub(crate) rate: AtomicU64,
    pub(crate) latency_ns: AtomicU64,
    pub(crate) gids: [GidShared; MAX_GIDS],
}

/// A GID in two big-endian halves, as loaded by `from_be_bytes`; all zero where the place is empty.
#[repr(C)]
pub(crate) struct GidShared {
    pub(crate) high: AtomicU64,
    pub(crate) low: AtomicU64,
    pub(crate) prefix: AtomicU64,
    /// `enum ibv_gid_type`
    pub(crate) kind: AtomicU64,
}

/// A queue of receives: of a QP or of an SRQ. All but `outstanding` is protected by `lock`.
#[repr(C)]
pub(crate) struct RecvQueue {
    pub(crate) lock: RobustMutex,
    /// Offset of the slots in the segment.
    pub(crate) offset: AtomicU64,
    pub(crate) depth: AtomicU32,
    pub(crate) max_sge: AtomicU32,
    pub(crate) head: AtomicU32,
    pub(crate) tail: AtomicU32,
    /// Posted and not yet polled: what counts against `depth`, as in hardware.
    pub(crate) outstanding: AtomicU32,
    /// SRQ limit; 0 is not armed.
    pub(crate) limit: AtomicU32,
    /// The QP that is taking the receive at `taken_from`, as its index + 1; 0 is none. Once it
    /// stands here the receive is taken: if its process dies, whoever has the lock next does the
    /// rest.
    pub(crate) taker: AtomicU32,
    pub(crate) taken_from: AtomicU32,
}

/// A QP as its peer must know it.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    /// Held by the peer while it executes a WR here, and by the owner while it changes state.
    pub(crate) lock: RobustMutex,
    /// The locks are made once per entry, never again: a late peer may still hold one.
    pub(crate) locks_made: AtomicU32,
    /// 0 is free.
    pub(crate) qpn: AtomicU32,
    /// `enum ibv_qp_state`
    pub(crate) state: AtomicU32,
    /// Counts connections, so that a peer sees that what it has cached is old.
    pub(crate) generation: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) rq_psn: AtomicU32,
    pub(crate) dgid_high: AtomicU64,
    pub(crate) dgid_low: AtomicU64,
    pub(crate) access: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) device: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    /// Index + 1, 0 for none.
    pub(crate) srq: AtomicU32,
    pub(crate) min_rnr_timer: AtomicU32,
    pub(crate) max_dest_rd_atomic: AtomicU32,
    /// IBV_EVENT_COMM_EST was raised for this connection.
    pub(crate) established: AtomicU32,
    /// The receive that a peer has taken and not yet completed: 1 and its `wr_id`.
    pub(crate) taken: AtomicU32,
    /// Send WRs whose end the program has polled, counted from the QP's birth. The owner's own.
    pub(crate) sends_done: AtomicU32,
    pub(crate) taken_wr_id: AtomicU64,
    pub(crate) rq: RecvQueue,
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for QpShared {}

/// A shared receive queue.
#[repr(C, align(64))]
pub(crate) struct SrqShared {
    pub(crate) locks_made: AtomicU32,
    /// 0 is free; else counts its uses.
    pub(crate) id: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) _pad: AtomicU32,
    pub(crate) rq: RecvQueue,
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for SrqShared {}

/// A completion queue: a list of entries in order of the time at which they become visible.
/// All but the atomically counted fields is protected by `lock`.
#[repr(C, align(64))]
pub(crate) struct CqShared {
    pub(crate) lock: RobustMutex,
    pub(crate) locks_made: AtomicU32,
    /// 0 is free; else counts its uses.
    pub(crate) id: AtomicU32,
    /// Offset of the entries in the segment.
    pub(crate) offset: AtomicU64,
    pub(crate) depth: AtomicU32,
    /// Index + 1 of the first entry, 0 for none; what makes an entry part of the list is the single
    /// store to `head` or to the `next` of the one before it.
    pub(crate) head: AtomicU32,
    pub(crate) last: AtomicU32,
    pub(crate) free: AtomicU32,
    /// Entries in the list; read without the lock by pollers.
    pub(crate) count: AtomicU32,
    /// Entries that have not yet been considered for an event, since their time has not come.
    pub(crate) unannounced: AtomicU32,
    /// 0 not armed, 1 for solicited ones, 2 for any.
    pub(crate) armed: AtomicU32,
    /// Overrun: takes nothing more.
    pub(crate) failed: AtomicU32,
    /// Events that the owner has yet to put into the channel.
    pub(crate) events: AtomicU32,
    /// The QP whose taken receive the entry `ending_with` (index + 1) completes, as its index + 1;
    /// 0 is none. Once that entry is in the list the receive is completed: if the process dies that
    /// put it there, whoever has the lock next does the rest.
    pub(crate) ending: AtomicU32,
    pub(crate) ending_with: AtomicU32,
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for CqShared {}

/// A completion.
#[repr(C)]
pub(crate) struct CqEntry {
    pub(crate) ready_at: AtomicU64,
    pub(crate) wr_id: AtomicU64,
    pub(crate) next: AtomicU32,
    /// 1 once considered for an event.
    pub(crate) announced: AtomicU32,
    pub(crate) status: AtomicU32,
    pub(crate) opcode: AtomicU32,
    pub(crate) byte_len: AtomicU32,
    pub(crate) imm: AtomicU32,
    pub(crate) qpn: AtomicU32,
    pub(crate) src_qp: AtomicU32,
    pub(crate) wc_flags: AtomicU32,
    pub(crate) solicited: AtomicU32,
    /// 0 send queue of QP `owner`, 1 its receive queue, 2 SRQ `owner`.
    pub(crate) queue: AtomicU32,
    pub(crate) owner: AtomicU32,
    /// For a send: WRs of the queue that are over with this one.
    pub(crate) done: AtomicU32,
    pub(crate) _pad: AtomicU32,
}
// SAFETY: repr(C), atomics only.
unsafe impl Shared for CqEntry {}

/// A registration. Written by the owner: the fields, then `key`.
#[repr(C, align(64))]
pub(crate) struct MrShared {
    /// lkey and rkey; 0 is invalid.
    pub(crate) key: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// First address in work requests.
    pub(crate) iova: AtomicU64,
    pub(crate) len: AtomicU64,
    /// First address in the owner's memory.
    pub(crate) addr: AtomicU64,
}
// SAFETY: repr(C), atomics only.
unsafe impl Shared for MrShared {}

const PAGE: usize = 4096;
const fn after(offset: usize, size: usize) -> usize {
    (offset + size).next_multiple_of(PAGE)
}
/// Offsets of the tables in a segment.
pub(crate) const QPS: usize = after(0, size_of::<Header>());
pub(crate) const CQS: usize = after(QPS, MAX_QP as usize * size_of::<QpShared>());
pub(crate) const SRQS: usize = after(CQS, MAX_CQ as usize * size_of::<CqShared>());
pub(crate) const MRS: usize = after(SRQS, MAX_SRQ as usize * size_of::<SrqShared>());
pub(crate) const BOUNCE_AREA: usize = after(MRS, MAX_MR as usize * size_of::<MrShared>());
/// Queues and rings.
pub(crate) const HEAP: usize = after(BOUNCE_AREA, BOUNCE);
/// Size of a segment; a sparse file, so only what is used costs memory.
pub(crate) const SEGMENT: usize = HEAP + (1 << 30);

/// QP numbers of a fabric: index in the low 16 bits, use count in the high 8.
pub(crate) const QPNS: usize = 1 << 16;
/// Processes of a fabric.
pub(crate) const PROCESSES: usize = 1024;
/// Devices of a fabric, over all processes.
pub(crate) const LINKS: usize = 1024;

/// The fabric file.
#[repr(C)]
pub(crate) struct FabricShared {
    pub(crate) magic: AtomicU64,
    /// Protects the allocation of entries in all three tables.
    pub(crate) lock: RobustMutex,
    pub(crate) next_qpn: AtomicU32,
    pub(crate) _pad: AtomicU32,
    pub(crate) processes: [ProcessSlot; PROCESSES],
    pub(crate) links: [LinkSlot; LINKS],
    pub(crate) qpns: [QpnSlot; QPNS],
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for FabricShared {}

/// A process and the name of its segment.
#[repr(C)]
pub(crate) struct ProcessSlot {
    /// 0 is free.
    pub(crate) nonce: AtomicU64,
    /// Start time of the process, from /proc.
    pub(crate) started: AtomicU64,
    pub(crate) pid: AtomicU32,
    pub(crate) _pad: AtomicU32,
}

/// Where a QP lives. `qpn` is stored last and cleared first.
#[repr(C)]
pub(crate) struct QpnSlot {
    pub(crate) qpn: AtomicU32,
    /// Last use count, kept over frees.
    pub(crate) uses: AtomicU32,
    pub(crate) process: AtomicU32,
    pub(crate) index: AtomicU32,
}

/// The clocks of a device's link, shared by all processes that use the device.
#[repr(C)]
pub(crate) struct LinkSlot {
    pub(crate) high: AtomicU64,
    /// 0 with `high` 0 is free.
    pub(crate) low: AtomicU64,
    /// CLOCK_MONOTONIC nanoseconds at which each direction is free again.
    pub(crate) tx_free: AtomicU64,
    pub(crate) rx_free: AtomicU64,
    /// Nanoseconds for which each direction was busy, in all.
    pub(crate) tx_busy: AtomicU64,
    pub(crate) rx_busy: AtomicU64,
    /// 1 while it carries nothing.
    pub(crate) down: AtomicU32,
    /// Entries of `gids`; 0 while the table is that of the configuration.
    pub(crate) gid_count: AtomicU32,
    /// In place of each process's own. Protected by the fabric's lock.
    pub(crate) gids: [GidShared; MAX_GIDS],
}
