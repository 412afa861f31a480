//! Faults of a device: their kinds, the work requests that trigger them, and their encoding in
//! shared memory.

pub(crate) mod failure;
mod names;
pub(crate) mod script;
pub(crate) mod site;

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use rdma_sys::ibv_wr_opcode as op;

use crate::shm::layout::{ArmedShared, DeviceShared};

/// Packets of a device that are swallowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Packets to the device.
    In,
    /// Packets from the device.
    Out,
    /// All packets.
    Both,
}

/// What happens to the device after [`Fault::LostAck`], [`Fault::Late`] or [`Fault::Partial`] has
/// struck a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// It swallows all packets in both directions.
    #[default]
    Silent,
    /// Its link goes down.
    Down,
    /// It works on; only the struck queue pair fails.
    Alive,
}

/// The part of a message that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The first bytes, at most the whole message.
    Bytes(u64),
    /// The first percent of the bytes, 0 to 100, rounded down.
    Percent(u8),
}

/// A completion queue of the queue pair whose work request triggers [`Fault::CqError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CqOf {
    /// The completion queue of its send queue.
    Send,
    /// The completion queue of its receive queue.
    Recv,
}

/// How a completion ends (`ibv_wc`), for [`Fault::Status`] and [`Fault::RecvStatus`]. Any numbers are
/// possible, also those that no driver of today uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionStatus {
    /// `status`, `enum ibv_wc_status`. 0 is success, which is no fault.
    pub status: u32,
    /// `vendor_err`.
    pub vendor_err: u32,
}

impl From<u32> for CompletionStatus {
    /// Returns this status without a vendor error.
    fn from(status: u32) -> Self {
        Self { status, vendor_err: 0 }
    }
}

/// A fault of a device, for [`inject`](crate::inject) and [`inject_at`](crate::inject_at).
///
/// `LinkDown`, `LinkUp`, `Silence` and `DeviceFatal` concern every process of the fabric that has the
/// device. The others strike one work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The link goes down, as with [`set_link`](crate::set_link).
    LinkDown,
    /// The link comes up.
    LinkUp,
    /// The device swallows packets: the port stays active and there is no event. A WRITE or SEND whose
    /// answer is swallowed has arrived nevertheless. A READ or atomic is not executed unless both
    /// directions pass.
    Silence(Direction),
    /// A WRITE arrives in full, the completion of the receiver included, but the sender gets no answer
    /// to it.
    LostAck(Then),
    /// A WRITE is swallowed. It arrives this long after the sender's queue pair has entered ERR or was
    /// destroyed, with the bytes of the time of the post, unless the receiver's queue pair was
    /// destroyed or reset or its memory deregistered before.
    Late(Duration, Then),
    /// The first part of a WRITE arrives, and nothing after it. No aligned word arrives in part.
    Partial(Part, Then),
    /// The device fails and is removed: `IBV_EVENT_DEVICE_FATAL`, and no completion any more. After
    /// [`heal`](crate::heal) it is listed again and can be opened again.
    DeviceFatal,
    /// A completion queue fails: `IBV_EVENT_CQ_ERR`. It returns nothing any more, and its queue pairs
    /// enter ERR.
    CqError(CqOf),
    /// The queue pair of a work request fails: `IBV_EVENT_QP_FATAL`, and it enters ERR.
    QpError,
    /// The shared receive queue of the queue pair of a work request fails: `IBV_EVENT_SRQ_ERR`. Nothing
    /// takes a receive from it any more. A queue pair without one is left alone.
    SrqError,
    /// A work request is not executed: nothing of it arrives. It completes with this status, and its
    /// queue pair enters ERR. The peer's queue pair notices nothing.
    Status(CompletionStatus),
    /// The receive that a WRITE with an immediate consumes at its peer completes with this status, and
    /// the peer's queue pair enters ERR. The data has arrived. The WRITE completes with
    /// `IBV_WC_REM_OP_ERR`, and its queue pair enters ERR, too.
    RecvStatus(CompletionStatus),
}

/// The opcodes of work requests that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Opcodes {
    #[default]
    All,
    Writes,
    WritesWithImm,
}

/// The work requests that count for a fault, or for [`posted`](crate::posted).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Only {
    opcodes: Opcodes,
    remote: bool,
}

impl Only {
    /// All work requests of send queues.
    pub const ALL: Self = Self { opcodes: Opcodes::All, remote: false };
    /// RDMA WRITEs with and without an immediate.
    pub const WRITES: Self = Self { opcodes: Opcodes::Writes, remote: false };
    /// RDMA WRITEs with an immediate.
    pub const WRITES_WITH_IMM: Self = Self { opcodes: Opcodes::WritesWithImm, remote: false };

    /// Excludes work requests of queue pairs that are connected to themselves.
    #[must_use]
    pub const fn remote(mut self) -> Self {
        self.remote = true;
        self
    }

    /// Excludes work requests other than WRITEs.
    const fn writes_only(mut self) -> Self {
        if matches!(self.opcodes, Opcodes::All) {
            self.opcodes = Opcodes::Writes;
        }
        self
    }

    /// Excludes all of them that a fault cannot strike.
    const fn for_fault(self, fault: Fault) -> Self {
        match fault {
            Fault::RecvStatus(_) => Self { opcodes: Opcodes::WritesWithImm, ..self },
            _ if fault.strikes_a_write() => self.writes_only(),
            _ => self,
        }
    }

    const fn code(self) -> u32 {
        self.opcodes as u32 | (self.remote as u32) << 2
    }

    const fn from_code(code: u32) -> Self {
        let opcodes = match code & 3 {
            1 => Opcodes::Writes,
            2 => Opcodes::WritesWithImm,
            _ => Opcodes::All,
        };
        Self { opcodes, remote: code & 4 != 0 }
    }

    /// Returns whether work requests of a class count.
    pub(crate) fn has(self, class: Class) -> bool {
        let (kind, loopback) = (class.0 % 3, class.0 >= 3);
        let opcode = match self.opcodes {
            Opcodes::All => true,
            Opcodes::Writes => kind > 0,
            Opcodes::WritesWithImm => kind == 2,
        };
        opcode && !(self.remote && loopback)
    }
}

/// The class of a work request, as an index of `DeviceShared::posted`: other, WRITE and WRITE with
/// immediate, first of queue pairs with a peer, then of those that are connected to themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class(usize);

impl Class {
    /// Returns the class of a work request.
    pub(crate) fn new(opcode: u32, loopback: bool) -> Self {
        let kind = match opcode {
            op::IBV_WR_RDMA_WRITE => 1,
            op::IBV_WR_RDMA_WRITE_WITH_IMM => 2,
            _ => 0,
        };
        Self(kind + if loopback { 3 } else { 0 })
    }

    /// Counts a work request of this class.
    pub(crate) fn count(self, device: &DeviceShared) {
        device.posted[self.0].fetch_add(1, Relaxed);
    }
}

/// Returns how many of the work requests that count were posted.
pub(crate) fn posted(device: &DeviceShared, only: Only) -> u64 {
    let counted = (0..).map(Class).zip(&device.posted).filter(|(class, _)| only.has(*class));
    counted.map(|(_, n)| n.load(Relaxed)).sum()
}

impl Then {
    const ALL: [Self; 3] = [Self::Silent, Self::Down, Self::Alive];

    const fn code(self) -> u32 {
        self as u32
    }

    fn from_code(code: u32) -> Self {
        Self::ALL.get(code as usize).copied().unwrap_or_default()
    }
}

impl CompletionStatus {
    fn code(self) -> u64 {
        u64::from(self.status) | u64::from(self.vendor_err) << 32
    }

    const fn from_code(code: u64) -> Self {
        Self { status: code as u32, vendor_err: (code >> 32) as u32 }
    }
}

impl Fault {
    /// Returns whether it strikes a WRITE, rather than the device or a queue.
    const fn strikes_a_write(self) -> bool {
        matches!(self, Self::LostAck(_) | Self::Late(..) | Self::Partial(..))
    }

    /// Returns whether it needs a work request to strike.
    pub(crate) const fn needs_work(self) -> bool {
        let is_of_the_device =
            matches!(self, Self::LinkDown | Self::LinkUp | Self::Silence(_) | Self::DeviceFatal);
        !is_of_the_device
    }

    /// Returns kind, value and `then`.
    fn encode(self) -> (u32, u64, Then) {
        let none = Then::default();
        match self {
            Self::LinkDown => (1, 0, none),
            Self::LinkUp => (2, 0, none),
            Self::Silence(direction) => (3, direction as u64, none),
            Self::LostAck(then) => (4, 0, then),
            Self::Late(after, then) => (5, u64::try_from(after.as_nanos()).unwrap_or(u64::MAX), then),
            Self::Partial(Part::Bytes(n), then) => (6, n, then),
            Self::Partial(Part::Percent(n), then) => (7, n.into(), then),
            Self::DeviceFatal => (8, 0, none),
            Self::CqError(of) => (9, of as u64, none),
            Self::Status(with) => (10, with.code(), none),
            Self::RecvStatus(with) => (11, with.code(), none),
            Self::QpError => (12, 0, none),
            Self::SrqError => (13, 0, none),
        }
    }

    fn decode(kind: u32, value: u64, then: Then) -> Option<Self> {
        Some(match kind {
            1 => Self::LinkDown,
            2 => Self::LinkUp,
            3 => Self::Silence(match value {
                0 => Direction::In,
                1 => Direction::Out,
                _ => Direction::Both,
            }),
            4 => Self::LostAck(then),
            5 => Self::Late(Duration::from_nanos(value), then),
            6 => Self::Partial(Part::Bytes(value), then),
            7 => Self::Partial(Part::Percent(u8::try_from(value).unwrap_or(100)), then),
            8 => Self::DeviceFatal,
            9 => Self::CqError(if value == 0 { CqOf::Send } else { CqOf::Recv }),
            10 => Self::Status(CompletionStatus::from_code(value)),
            11 => Self::RecvStatus(CompletionStatus::from_code(value)),
            12 => Self::QpError,
            13 => Self::SrqError,
            _ => return None,
        })
    }
}

/// Arms a fault for the `at`-th work request from now on. Returns `false` if too many are armed. The
/// fabric is locked.
fn arm(device: &DeviceShared, fault: Fault, at: u64, only: Only) -> bool {
    let Some(free) = device.armed_faults.iter().find(|armed| armed.kind.load(Relaxed) == 0) else {
        return false;
    };
    let only = only.for_fault(fault);
    let (kind, value, then) = fault.encode();
    free.value.store(value, Relaxed);
    free.then.store(then.code(), Relaxed);
    free.only.store(only.code(), Relaxed);
    free.left.store(at.max(1), Relaxed);
    free.kind.store(kind, Relaxed);
    device.armed.fetch_add(1, Release);
    true
}

/// Disarms all faults of a device of one process that wait for a work request. The fabric is locked.
fn disarm_all(device: &DeviceShared) {
    for armed in &device.armed_faults {
        armed.kind.store(0, Relaxed);
    }
    device.armed.store(0, Release);
}

/// Counts a work request, and returns the faults that it triggers. The fabric is locked.
pub(crate) fn triggered(device: &DeviceShared, class: Class) -> Vec<Fault> {
    let count = |armed: &ArmedShared| {
        let kind = armed.kind.load(Relaxed);
        if kind == 0 || !Only::from_code(armed.only.load(Relaxed)).has(class) {
            return None;
        }
        let left = armed.left.load(Relaxed).saturating_sub(1);
        armed.left.store(left, Relaxed);
        if left > 0 {
            return None;
        }
        armed.kind.store(0, Relaxed);
        device.armed.fetch_sub(1, Release);
        device.struck.fetch_add(1, Relaxed);
        Fault::decode(kind, armed.value.load(Relaxed), Then::from_code(armed.then.load(Relaxed)))
    };
    device.armed_faults.iter().filter_map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_survives_its_encoding() {
        let thens = Then::ALL;
        let mut all =
            vec![Fault::LinkDown, Fault::LinkUp, Fault::DeviceFatal, Fault::QpError, Fault::SrqError];
        all.extend([Direction::In, Direction::Out, Direction::Both].map(Fault::Silence));
        all.extend([CqOf::Send, CqOf::Recv].map(Fault::CqError));
        let status = CompletionStatus { status: u32::MAX, vendor_err: 0x8001_0002 };
        all.extend([Fault::Status(status), Fault::RecvStatus(status), Fault::Status(2.into())]);
        all.extend(thens.map(Fault::LostAck));
        all.extend(thens.map(|then| Fault::Late(Duration::from_micros(7), then)));
        all.extend(thens.map(|then| Fault::Partial(Part::Bytes(1 << 40), then)));
        all.extend(thens.map(|then| Fault::Partial(Part::Percent(50), then)));
        for fault in all {
            let (kind, value, then) = fault.encode();
            let coded = Then::from_code(then.code());
            assert_eq!(Fault::decode(kind, value, coded), Some(fault));
        }
    }

    #[test]
    fn a_class_counts_where_it_should() {
        let write = Class::new(op::IBV_WR_RDMA_WRITE, false);
        let imm = Class::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, true);
        let send = Class::new(op::IBV_WR_SEND, false);
        let counts = |only: Only| [write, imm, send].map(|class| only.has(class));
        assert_eq!(counts(Only::ALL), [true, true, true]);
        assert_eq!(counts(Only::WRITES), [true, true, false]);
        assert_eq!(counts(Only::WRITES.remote()), [true, false, false]);
        assert_eq!(counts(Only::WRITES_WITH_IMM), [false, true, false]);
        assert_eq!(counts(Only::ALL.for_fault(Fault::LostAck(Then::Down))), counts(Only::WRITES));
        assert_eq!(counts(Only::ALL.for_fault(Fault::Status(2.into()))), counts(Only::ALL));
        assert_eq!(
            counts(Only::WRITES.for_fault(Fault::RecvStatus(2.into()))),
            counts(Only::WRITES_WITH_IMM)
        );
        for only in [Only::ALL, Only::WRITES, Only::WRITES_WITH_IMM.remote()] {
            assert_eq!(Only::from_code(only.code()), only);
        }
    }
}
