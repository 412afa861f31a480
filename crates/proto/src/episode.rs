//! The messages by which both ends give up rails of a connection and agree on what is sent again.
//!
//! A *part* is what one rail was to carry of a group: its bytes and its immediate. The sender
//! counts the changes of the set of rails in an epoch. All messages may be repeated.

use super::wire::{
    Codec, DecodeError, Layout, Nested, Optional, Reader, Within, Writer, layout, list, some_rails, within,
};
use super::{MAX_RAILS, SLOTS, Sequence};

/// The codec of an epoch.
pub(super) const EPOCH: Within = within("epoch", 1..=u32::MAX as u64, "at least 1");

layout! {
    /// STATE: the sender has given up rails. None of its queue pairs on them exists any more.
    pub struct SenderState {
        /// Counts the STATE messages of a connection, from 1.
        pub epoch: u32 = EPOCH,
        /// All rails that are given up, also those of earlier epochs.
        pub dead: u8 = some_rails("given-up rails"),
        /// The next group that the sender will post.
        pub next: Sequence = Nested,
        /// The groups that are posted and not completed, at most one per slot.
        pub open: Vec<OpenGroup> = list("open groups", SLOTS, Nested),
    }
}

/// A group of sends that is posted and not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenGroup {
    /// Its sequence number.
    pub seq: Sequence,
    /// Its parts, by the rail that was to carry each; never zero.
    pub mask: u8,
    /// The parts whose last carrier is given up, acknowledged or not.
    pub lost: u8,
    /// The message's size in bytes. `None` if it is in the completion record.
    pub size: Option<u64>,
}

const SIZE: Optional<&str> = Optional("size", "size");

impl Layout for OpenGroup {
    fn write(&self, out: &mut Writer) {
        self.seq.write(out);
        SIZE.write(&self.size, out.u8(self.mask).u8(self.lost));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (seq, mask): (_, u8) = (Nested, some_rails("rails of a group")).read(from)?;
        let lost = from.u8("lost parts")?;
        if lost & !mask != 0 {
            let expected = "a subset of the group's rails";
            return Err(DecodeError::Range { what: "lost parts", found: lost.into(), expected });
        }
        Ok(Self { seq, mask, lost, size: SIZE.read(from)? })
    }
}

layout! {
    /// VERDICT: the receiver has given up the same rails, and knows what has arrived over them.
    pub struct Verdict {
        /// The epoch of the STATE that it answers.
        pub epoch: u32 = EPOCH,
        /// The parts to be sent again, by group. All other lost parts are done.
        pub again: Vec<(Sequence, u8)> =
            list("groups to be sent again", SLOTS, (Nested, some_rails("parts to be sent again"))),
    }
}

const SEQUENCE: Within = within("sequence number", 1..=u64::MAX, "at least 1");

impl Layout for Sequence {
    fn write(&self, out: &mut Writer) {
        SEQUENCE.write(&self.number(), out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        SEQUENCE.read(from).map(Self::from_number)
    }
}

const _: () = assert!(MAX_RAILS == u8::BITS as usize);
