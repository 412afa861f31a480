//! The layout of a segment and of the fabric file. All integers are atomics, because other
//! processes write them. Each field documents who may write it.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::map::Shared;
use super::mutex::RobustMutex;
use crate::config::call::CALLS;
use crate::limits::{MAX_CQ, MAX_DEVICES, MAX_GIDS, MAX_MR, MAX_QP, MAX_SRQ};

/// Identifies files of this layout. Change the number with the layout.
pub(crate) const MAGIC: u64 = 0x736f_6674_7665_000d;
/// Slots of the event ring.
pub(crate) const EVENTS: usize = 1024;
/// Classes of work requests for `DeviceShared::posted`.
pub(crate) const CLASSES: usize = 6;
/// Faults that can be armed for a device of a process at the same time.
pub(crate) const ARMED: usize = 8;
/// Size of the label of a device.
pub(crate) const LABEL: usize = 128;
/// Pieces of WRITEs that can wait in a process (`wire::placement`).
pub(crate) const PIECES: usize = 1024;
/// Most bytes of a piece.
pub(crate) const PIECE_BYTES: usize = 4096;
/// Bytes per bounce copy.
pub(crate) const BOUNCE: usize = 1 << 18;

/// The start of a segment.
#[repr(C)]
pub(crate) struct Header {
    /// The owner writes it last.
    pub(crate) magic: AtomicU64,
    pub(crate) device_count: AtomicU32,
    /// Number of MR table entries ever used. Only these have memory.
    pub(crate) registrations: AtomicU32,
    /// Serialises remote atomics on the memory of this process.
    pub(crate) atomics: RobustMutex,
    /// Protects the event ring.
    pub(crate) event_lock: RobustMutex,
    pub(crate) event_head: AtomicU32,
    pub(crate) event_tail: AtomicU32,
    pub(crate) events: [EventSlot; EVENTS],
    pub(crate) bounce: Bounce,
    /// Pieces of WRITEs that have not landed, and 1 if the owner's service thread wakes for one of them.
    /// Peers write both.
    pub(crate) pieces: AtomicU32,
    pub(crate) pieces_timed: AtomicU32,
    /// Held by a thread that lands pieces.
    pub(crate) piece_lock: RobustMutex,
    /// The owner writes it before any QP exists.
    pub(crate) devices: [DeviceShared; MAX_DEVICES],
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for Header {}

/// An asynchronous event that the owner has not yet delivered.
#[repr(C)]
pub(crate) struct EventSlot {
    /// `enum ibv_event_type`
    pub(crate) kind: AtomicU32,
    /// Index in the table of QPs, CQs or SRQs, by kind.
    pub(crate) index: AtomicU32,
    /// QP number, or use count of the entry. Identifies the object.
    pub(crate) id: AtomicU32,
}

/// A piece of a WRITE on its way into the memory of the owner. Who has moved `state` from free fills the
/// other fields.
#[repr(C, align(64))]
pub(crate) struct PieceSlot {
    /// State of `wire::placement`.
    pub(crate) state: AtomicU32,
    /// Index of the responding QP.
    pub(crate) qp: AtomicU32,
    /// Index of the memory region.
    pub(crate) mr: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// Its number in the QP (`QpShared::placed`).
    pub(crate) number: AtomicU64,
    /// When it lands at the latest.
    pub(crate) due: AtomicU64,
    /// Address in the memory of the owner.
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
}
// SAFETY: repr(C), atomics only.
unsafe impl Shared for PieceSlot {}

/// A copy that the owner's service thread does for a peer without permission to copy directly.
#[repr(C)]
pub(crate) struct Bounce {
    /// The peer holds it during a whole copy.
    pub(crate) lock: RobustMutex,
    /// State of `wire::bounce`; a futex.
    pub(crate) state: AtomicU32,
    /// 0: bounce area to `addr`; 1: `addr` to bounce area.
    pub(crate) read: AtomicU32,
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
}

/// The properties of a device that peers need.
#[repr(C)]
pub(crate) struct DeviceShared {
    /// Base LID; 0 on Ethernet.
    pub(crate) lid: AtomicU32,
    pub(crate) gid_count: AtomicU32,
    /// Index in the fabric's link table.
    pub(crate) link: AtomicU32,
    /// Devices on other wires are unreachable.
    pub(crate) wire: AtomicU32,
    /// Largest packet payload that the port and the network behind it accept.
    pub(crate) mtu: AtomicU32,
    /// LID mask control: the port has 2 to this power LIDs.
    pub(crate) lmc: AtomicU32,
    /// 1 if the port drops packets without a GRH.
    pub(crate) grh_required: AtomicU32,
    /// 1 if packets of the port to itself arrive.
    pub(crate) loopback: AtomicU32,
    /// The number of its profile (`config::quirks`).
    pub(crate) quirks: AtomicU32,
    /// Index of the first port of the device. All ports of a device have the same life.
    pub(crate) adapter: AtomicU32,
    /// Bytes per second, 0 for unlimited.
    pub(crate) rate: AtomicU64,
    pub(crate) latency_ns: AtomicU64,
    /// Nanoseconds after which completions of receives become visible.
    pub(crate) cqe_delay_ns: AtomicU64,
    /// `config::order::Order`, and the state of its random numbers. Peers write the latter.
    pub(crate) order: AtomicU32,
    pub(crate) _pad: AtomicU32,
    pub(crate) order_random: AtomicU64,
    pub(crate) gids: [GidShared; MAX_GIDS],
    /// Work requests that the owner has posted, by class (`fault::Class`). Only the owner writes it.
    pub(crate) posted: [AtomicU64; CLASSES],
    /// Number of armed faults that have struck. Only the owner writes it.
    pub(crate) struck: AtomicU64,
    /// Number of armed faults. The lock of the fabric protects it and `armed_faults`.
    pub(crate) armed: AtomicU32,
    /// WRITEs into DMA-BUFs whose data has not landed (`wire::landing`), and by when all has. Peers
    /// write both.
    pub(crate) landing: AtomicU32,
    pub(crate) landed_by: AtomicU64,
    pub(crate) armed_faults: [ArmedShared; ARMED],
    /// Calls of the owner that fail or take time, by `config::call::Call`. The lock of the fabric
    /// protects them.
    pub(crate) calls: [CallShared; CALLS],
}

/// How the next calls of the owner fail (`fault::failure`).
#[repr(C)]
pub(crate) struct CallShared {
    /// How many calls fail; 0: none, `u32::MAX`: all.
    pub(crate) times: AtomicU32,
    /// 0: they take time and succeed.
    pub(crate) errno: AtomicU32,
    /// How many calls pass before.
    pub(crate) after: AtomicU64,
    pub(crate) takes_ns: AtomicU64,
}

/// A fault that waits for a work request of the owner, encoded by `fault`.
#[repr(C)]
pub(crate) struct ArmedShared {
    /// 0 if the entry is free.
    pub(crate) kind: AtomicU32,
    pub(crate) then: AtomicU32,
    pub(crate) value: AtomicU64,
    /// The work requests that count.
    pub(crate) only: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// How many more of them are posted until the fault strikes, the struck one included.
    pub(crate) left: AtomicU64,
}

/// A GID as two halves, converted with `from_be_bytes`; zero if the entry is empty.
#[repr(C)]
pub(crate) struct GidShared {
    pub(crate) high: AtomicU64,
    pub(crate) low: AtomicU64,
    pub(crate) prefix: AtomicU64,
    /// `enum ibv_gid_type`
    pub(crate) kind: AtomicU64,
}

/// The receive queue of a QP or SRQ. `lock` protects all fields except `outstanding`.
#[repr(C)]
pub(crate) struct RecvQueue {
    pub(crate) lock: RobustMutex,
    /// Offset of the slots in the segment.
    pub(crate) offset: AtomicU64,
    pub(crate) depth: AtomicU32,
    pub(crate) max_sge: AtomicU32,
    pub(crate) head: AtomicU32,
    pub(crate) tail: AtomicU32,
    /// Receives that are posted and not yet polled. As in hardware, these count against `depth`.
    pub(crate) outstanding: AtomicU32,
    /// SRQ limit; 0 means not armed.
    pub(crate) limit: AtomicU32,
    /// The QP that is taking the receive at `taken_from`, as index + 1; 0 is none. From this store
    /// on the receive counts as taken. If the process dies, the next holder of the lock completes
    /// the operation.
    pub(crate) taker: AtomicU32,
    pub(crate) taken_from: AtomicU32,
}

/// The properties of a QP that its peer needs.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    /// The peer holds it while it executes a work request here, the owner while it changes the
    /// state.
    pub(crate) lock: RobustMutex,
    /// Whether the locks are initialised. This happens once per entry: a slow peer may still hold
    /// one.
    pub(crate) locks_made: AtomicU32,
    /// 0 if the entry is free.
    pub(crate) qpn: AtomicU32,
    /// `enum ibv_qp_state`
    pub(crate) state: AtomicU32,
    /// Counts connections. A peer detects from it that its cached data is stale.
    pub(crate) generation: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) rq_psn: AtomicU32,
    pub(crate) dgid_high: AtomicU64,
    pub(crate) dgid_low: AtomicU64,
    pub(crate) dlid: AtomicU32,
    /// 1 if its packets carry a GRH.
    pub(crate) global: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) device: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    /// Index + 1, 0 for none.
    pub(crate) srq: AtomicU32,
    pub(crate) min_rnr_timer: AtomicU32,
    pub(crate) max_dest_rd_atomic: AtomicU32,
    /// `LinkSlot::life` when the context of the QP was opened.
    pub(crate) life: AtomicU32,
    /// 1 if IBV_EVENT_COMM_EST was raised for this connection.
    pub(crate) established: AtomicU32,
    /// 1 if the next request of the peer finds the QP in ERR and gets a NAK; others get no answer.
    pub(crate) owes_nak: AtomicU32,
    /// 1 if a peer has taken a receive and not yet completed it; `taken_wr_id` is its `wr_id`.
    pub(crate) taken: AtomicU32,
    /// Number of send work requests whose completion the program has polled. Only the owner uses
    /// it.
    pub(crate) sends_done: AtomicU32,
    pub(crate) taken_wr_id: AtomicU64,
    /// Number of the last piece of a WRITE (`wire::placement`), and when the last one lands that keeps the
    /// order. The peer writes both.
    pub(crate) placed: AtomicU64,
    pub(crate) placed_by: AtomicU64,
    pub(crate) rq: RecvQueue,
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for QpShared {}

/// A shared receive queue.
#[repr(C, align(64))]
pub(crate) struct SrqShared {
    pub(crate) locks_made: AtomicU32,
    /// 0 if the entry is free; otherwise the use count.
    pub(crate) id: AtomicU32,
    pub(crate) pd: AtomicU32,
    /// 1 after a failure: nobody takes a receive any more.
    pub(crate) failed: AtomicU32,
    pub(crate) rq: RecvQueue,
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for SrqShared {}

/// A completion queue: a list of entries in the order in which they become visible. `lock` protects
/// all fields except the atomic counters.
#[repr(C, align(64))]
pub(crate) struct CqShared {
    pub(crate) lock: RobustMutex,
    pub(crate) locks_made: AtomicU32,
    /// 0 if the entry is free; otherwise the use count.
    pub(crate) id: AtomicU32,
    /// Offset of the entries in the segment.
    pub(crate) offset: AtomicU64,
    pub(crate) depth: AtomicU32,
    /// Index + 1 of the first entry, 0 for none. A single store to `head`, or to `next` of the
    /// preceding entry, adds an entry to the list.
    pub(crate) head: AtomicU32,
    pub(crate) last: AtomicU32,
    pub(crate) free: AtomicU32,
    /// Entries in the list. Pollers read it without the lock.
    pub(crate) count: AtomicU32,
    /// Entries that were not yet considered for an event, because they are not yet visible.
    pub(crate) unannounced: AtomicU32,
    /// 0 not armed, 1 armed for solicited completions, 2 armed for all.
    pub(crate) armed: AtomicU32,
    /// Not 0 after a failure (`shm::cq_ring`): the CQ accepts no more entries.
    pub(crate) failed: AtomicU32,
    /// Events that the owner must still put into the channel.
    pub(crate) events: AtomicU32,
    /// The QP whose taken receive the entry `ending_with` (index + 1) completes, as index + 1; 0 is
    /// none. From the insertion of that entry on the receive counts as completed. If the process
    /// dies, the next holder of the lock completes the operation.
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
    /// For a receive: the last piece of its QP that it covers (`wire::placement`).
    pub(crate) covers: AtomicU64,
    pub(crate) next: AtomicU32,
    /// 1 after it was considered for an event.
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
    /// For a send: number of work requests of the queue that are complete with this one.
    pub(crate) done: AtomicU32,
    pub(crate) vendor_err: AtomicU32,
}
// SAFETY: repr(C), atomics only.
unsafe impl Shared for CqEntry {}

/// A memory region. The owner writes the fields first and `key` last.
#[repr(C, align(64))]
pub(crate) struct MrShared {
    /// lkey and rkey; 0 if invalid.
    pub(crate) key: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    /// WRITEs whose data has not landed. Peers write it.
    pub(crate) landing: AtomicU32,
    /// First address in work requests.
    pub(crate) iova: AtomicU64,
    pub(crate) len: AtomicU64,
    /// First address in the memory of the owner.
    pub(crate) addr: AtomicU64,
    /// Nanoseconds from the completion of a WRITE until its data lands; 0: at once.
    pub(crate) posted_ns: AtomicU64,
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
pub(crate) const PIECE_SLOTS: usize = after(BOUNCE_AREA, BOUNCE);
pub(crate) const PIECE_AREA: usize = after(PIECE_SLOTS, PIECES * size_of::<PieceSlot>());
/// Receive queues and completion queues.
pub(crate) const HEAP: usize = after(PIECE_AREA, PIECES * PIECE_BYTES);
/// Size of a segment. The file is sparse: only used parts need memory.
pub(crate) const SEGMENT: usize = HEAP + (1 << 30);

/// Queue pairs of a fabric.
pub(crate) const QPNS: usize = 1 << 16;
/// Processes of a fabric.
pub(crate) const PROCESSES: usize = 1024;
/// Devices of a fabric, over all processes.
pub(crate) const LINKS: usize = 1024;

/// The fabric file.
#[repr(C)]
pub(crate) struct FabricShared {
    pub(crate) magic: AtomicU64,
    /// Protects the allocation of entries in all three tables, and the GID tables.
    pub(crate) lock: RobustMutex,
    pub(crate) processes: [ProcessSlot; PROCESSES],
    pub(crate) links: [LinkSlot; LINKS],
    pub(crate) qpns: [QpnSlot; QPNS],
}
// SAFETY: repr(C), atomics and locks only.
unsafe impl Shared for FabricShared {}

/// A process and the identity of its segment.
#[repr(C)]
pub(crate) struct ProcessSlot {
    /// 0 if the slot is free.
    pub(crate) nonce: AtomicU64,
    /// Start time of the process, from /proc.
    pub(crate) started: AtomicU64,
    pub(crate) pid: AtomicU32,
    pub(crate) _pad: AtomicU32,
}

/// Location of a QP. `qpn` is stored last and cleared first.
#[repr(C)]
pub(crate) struct QpnSlot {
    pub(crate) qpn: AtomicU32,
    /// Last use count, kept when the number is freed.
    pub(crate) uses: AtomicU32,
    /// Index of the link of the adapter that has numbered the QP.
    pub(crate) adapter: AtomicU32,
    pub(crate) process: AtomicU32,
    pub(crate) index: AtomicU32,
}

/// The clocks of a device's link, shared by all processes that use the device.
#[repr(C)]
pub(crate) struct LinkSlot {
    pub(crate) high: AtomicU64,
    /// 0, together with `high` 0, if the slot is free.
    pub(crate) low: AtomicU64,
    /// CLOCK_MONOTONIC nanoseconds from which each direction is free.
    pub(crate) tx_free: AtomicU64,
    pub(crate) rx_free: AtomicU64,
    /// Total nanoseconds for which each direction was busy.
    pub(crate) tx_busy: AtomicU64,
    pub(crate) rx_busy: AtomicU64,
    /// Bytes per second of each direction; 0 while the configured rate of each process is in effect.
    pub(crate) rate: AtomicU64,
    /// The faults in effect (`shm::link_state`), and the number of removals of the device.
    pub(crate) state: AtomicU32,
    /// How often the faults of the device were ended.
    pub(crate) heals: AtomicU32,
    /// Flapping (`process::flap`): the state of the random numbers, 0 if the link does not flap, and
    /// the time of the next change. Protected by the lock of the fabric, as the four limits are.
    pub(crate) flap_seed: AtomicU64,
    pub(crate) flap_next: AtomicU64,
    /// Shortest and longest time down, then up, in nanoseconds.
    pub(crate) flap_limits: [AtomicU64; 4],
    /// The counters of `process::hw_counters`.
    pub(crate) hw_counters: [AtomicU64; 4],
    /// `NAME@ADDRESS`, filled with zeros. Written when the slot is allocated.
    pub(crate) label: [AtomicU8; LABEL],
    /// Where the adapter with this first port looks for its next QP number.
    pub(crate) next_qpn: AtomicU32,
    /// Entries of `gids`; 0 while the configured table is in effect.
    pub(crate) gid_count: AtomicU32,
    /// Replaces the table of each process. Protected by the lock of the fabric.
    pub(crate) gids: [GidShared; MAX_GIDS],
}
