//! The state of a receive slot, and the checks of what the peer sends for it.

use std::sync::atomic::Ordering;

use nccl_net_versions::Buffer;

use crate::proto::{Arrivals, Imm, MAX_RECVS, RECORD_BYTES, RecordError, SizeQ, Step, Violation};
use crate::transport::comm::Comm;

/// One group of receives.
// In this order: all that a group of one needs is in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    count: u8,
    arrivals: Arrivals,
    size: SizeQ,
    /// The buffer of each receive.
    buffers: [Buffer; MAX_RECVS],
}

/// The placeholder for unused entries.
const NO_BUFFER: Buffer = Buffer { addr: 0, len: 0 };

/// Why an immediate breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArrivalError {
    #[error("an immediate that no sender makes")]
    Word,
    #[error("data arrived for slot {0}, where no receive waits")]
    Idle(u8),
    #[error("data for slot {0} arrived on a queue pair that does not carry it")]
    Queue(u8),
    #[error("slot {0}: rails carry different sizes, {1:?} and {2:?}")]
    Sizes(u8, SizeQ, SizeQ),
    #[error("slot {0}: a group of {1} receives got one size")]
    OneSize(u8, u8),
    #[error("slot {0}: {1}")]
    Mask(u8, Violation),
    #[error("slot {slot}: {size} bytes arrived for a receive of {room}")]
    TooLarge { slot: u8, size: usize, room: usize },
    #[error("slot {0}: {1}")]
    Record(u8, RecordError),
    #[error("slot {0}: part {1} was sent again and not requested")]
    Unrequested(u8, u8),
}

impl Slot {
    pub(crate) const EMPTY: Self =
        Self { count: 0, arrivals: Arrivals::NONE, size: SizeQ::RECORD, buffers: [NO_BUFFER; MAX_RECVS] };

    /// Starts a group of at most [`MAX_RECVS`] receives. [`set_buffer`](Self::set_buffer) must follow
    /// for each.
    #[inline]
    pub(crate) fn begin(&mut self, count: usize) {
        (self.count, self.arrivals) = (count as u8, Arrivals::NONE);
    }

    /// Sets the buffer of one receive.
    #[inline]
    pub(crate) fn set_buffer(&mut self, index: usize, buffer: Buffer) {
        self.buffers[index] = buffer;
    }

    /// Returns the buffer of each receive.
    pub(crate) fn buffers(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.count)]
    }

    /// Returns the number of receives.
    pub(crate) fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns the buffer size of each receive. Those beyond the group's [`count`](Self::count) mean
    /// nothing.
    pub(crate) fn rooms(&self) -> [usize; MAX_RECVS] {
        self.buffers.map(|buffer| buffer.len)
    }

    /// Returns whether the buffer of a receive of the group begins at `addr`.
    pub(crate) fn is_into(&self, addr: usize) -> bool {
        self.buffers().iter().any(|buffer| buffer.addr == addr)
    }

    /// Returns the rails that have carried data of the group.
    pub(crate) fn carriers(&self) -> u8 {
        self.arrivals.seen()
    }

    /// Returns the rails whose parts have arrived, and those of the other parts that an immediate has
    /// announced.
    pub(crate) fn parts(&self) -> (u8, u8) {
        let got = self.arrivals.seen();
        (got, self.arrivals.expected() & !got)
    }

    /// Returns whether a part is announced and has not arrived.
    pub(crate) fn awaits(&self, part: u8) -> bool {
        let (_, missing) = self.parts();
        part < 8 && missing >> part & 1 == 1
    }

    /// Handles the only immediate of a group of one, which arrived on `rail`. Otherwise returns
    /// `false` and changes nothing.
    #[inline(always)]
    pub(crate) fn arrived_whole(&mut self, rail: usize, size: usize) -> bool {
        let whole = self.count == 1 && self.arrivals.expected() == 0 && size <= self.buffers[0].len;
        if whole {
            self.arrivals = Arrivals::whole(rail);
        }
        whole
    }

    /// Handles an immediate that arrived on `rail` for this slot, which must be in use. Returns the
    /// size once the immediates of all rails have arrived.
    pub(crate) fn arrived(&mut self, imm: Imm, rail: usize) -> Result<Option<SizeQ>, ArrivalError> {
        let Imm { slot, mask, size } = imm;
        if self.arrivals.expected() != 0 && self.size != size {
            return Err(ArrivalError::Sizes(slot, self.size, size));
        }
        match self.arrivals.on_arrival(mask, rail as u8) {
            Step::Waiting => {
                self.size = size;
                return Ok(None);
            }
            Step::Violation(why) => return Err(ArrivalError::Mask(slot, why)),
            Step::Complete => {}
        }
        self.check_size(slot, size)?;
        Ok(Some(size))
    }

    fn check_size(&self, slot: u8, size: SizeQ) -> Result<(), ArrivalError> {
        match (size.bytes(), self.buffers[0].len) {
            (Some(_), _) if self.count != 1 => Err(ArrivalError::OneSize(slot, self.count)),
            (Some(size), room) if size > room => Err(ArrivalError::TooLarge { slot, size, room }),
            _ => Ok(()),
        }
    }

    /// Learns the parts and the size of the group from the sender's STATE.
    pub(crate) fn learn(&mut self, slot: u8, mask: u8, size: SizeQ) -> Result<(), ArrivalError> {
        let learned = self.arrivals.expected();
        if learned != 0 && self.size != size {
            return Err(ArrivalError::Sizes(slot, self.size, size));
        }
        if !self.arrivals.learn(mask) {
            return Err(ArrivalError::Mask(slot, Violation::Changed { learned, mask }));
        }
        self.size = size;
        self.check_size(slot, size)
    }

    /// Handles the arrival of parts that other rails were to carry. Returns the size once all parts
    /// have arrived.
    pub(crate) fn add(&mut self, parts: u8) -> Option<SizeQ> {
        self.arrivals.add(parts).then_some(self.size)
    }

    /// Returns whether the buffers of the two groups have bytes in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: &Buffer, b: &Buffer| {
            a.len > 0
                && b.len > 0
                && a.addr < b.addr.saturating_add(b.len)
                && b.addr < a.addr.saturating_add(a.len)
        };
        self.buffers().iter().any(|ours| other.buffers().iter().any(|theirs| meet(ours, theirs)))
    }
}

/// Reads the completion record of a slot. It is complete: the leader's immediate arrived after it.
pub(crate) fn read_record(comm: &Comm, slot: u8) -> [u8; RECORD_BYTES] {
    let start = usize::from(slot) * RECORD_BYTES / 8;
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(&comm.region.words()[start..]) {
        place.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
    }
    bytes
}
