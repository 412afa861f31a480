//! What a receiver knows of a slot, and judges arrivals by: whatever is wrong with one is the peer's doing.

use std::sync::atomic::Ordering;

use crate::proto::{Arrivals, Imm, MAX_RECVS, RECORD_BYTES, RecordError, SizeQ, Step, Violation};
use crate::transport::comm::Comm;

/// One group of receives. Its CTS entries stay in the control memory, so that they could be sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    count: u8,
    /// Room per receive.
    rooms: [usize; MAX_RECVS],
    arrivals: Arrivals,
    size: SizeQ,
}

/// What is wrong with an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("an immediate that no sender of ours makes")]
    Word,
    #[error("data arrived for slot {0}, where no receive waits")]
    Idle(u8),
    #[error("slot {0}: rails tell different sizes, {1:?} and {2:?}")]
    Sizes(u8, SizeQ, SizeQ),
    #[error("slot {0}: a group of {1} receives was told one size")]
    OneSize(u8, u8),
    #[error("slot {0}: {1}")]
    Mask(u8, Violation),
    #[error("slot {slot}: {size} bytes came for a receive of {room}")]
    TooLarge { slot: u8, size: usize, room: usize },
    #[error("slot {0}: {1}")]
    Record(u8, RecordError),
}

impl Slot {
    pub(crate) const EMPTY: Self =
        Self { count: 0, rooms: [0; MAX_RECVS], arrivals: Arrivals::NONE, size: SizeQ::RECORD };

    /// A new group of at most [`MAX_RECVS`] receives, whose rooms are to be told.
    #[inline]
    pub(crate) fn begin(&mut self, count: usize) {
        (self.count, self.arrivals) = (count as u8, Arrivals::NONE);
    }

    /// The room of one of its receives.
    #[inline]
    pub(crate) fn set_room(&mut self, index: usize, room: usize) {
        self.rooms[index] = room;
    }

    /// Of each receive.
    pub(crate) fn rooms(&self) -> &[usize] {
        &self.rooms[..usize::from(self.count)]
    }

    /// Takes an immediate that came on `rail` for this slot, which waits for it. The size, once all rails have told theirs.
    #[inline]
    pub(crate) fn arrived(&mut self, imm: Imm, rail: usize) -> Result<Option<SizeQ>, Wrong> {
        let Imm { slot, mask, size } = imm;
        if self.arrivals.seen() != 0 && self.size != size {
            return Err(Wrong::Sizes(slot, self.size, size));
        }
        match self.arrivals.on_arrival(mask, rail as u8) {
            Step::Waiting => {
                self.size = size;
                return Ok(None);
            }
            Step::Violation(why) => return Err(Wrong::Mask(slot, why)),
            Step::Complete => {}
        }
        match (size.bytes(), self.rooms[0]) {
            (Some(_), _) if self.count != 1 => Err(Wrong::OneSize(slot, self.count)),
            (Some(size), room) if size > room => Err(Wrong::TooLarge { slot, size, room }),
            _ => Ok(Some(size)),
        }
    }
}

/// The completion record of a slot. The leader's immediate came after it.
pub(crate) fn read_record(comm: &Comm, slot: u8) -> [u8; RECORD_BYTES] {
    let start = usize::from(slot) * RECORD_BYTES / 8;
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(&comm.region.words()[start..]) {
        place.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
    }
    bytes
}
