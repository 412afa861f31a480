//! The messages by which both ends give up rails of a connection and agree on what is sent again.
//!
//! A *part* is what one rail was to carry of a group: its bytes and its immediate. The sender
//! counts the changes of the set of rails in an epoch. All messages may be repeated.

use super::wire::{DecodeError, Reader, Writer};
use super::{MAX_RAILS, SLOTS, Sequence};

/// STATE: the sender has given up rails. None of its queue pairs on them exists any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SenderState {
    /// Counts the STATE messages of a connection, from 1.
    pub epoch: u32,
    /// All rails that are given up, also those of earlier epochs.
    pub dead: u8,
    /// The next group that the sender will post.
    pub next: Sequence,
    /// The groups that are posted and not completed, at most one per slot.
    pub open: Vec<OpenGroup>,
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

/// VERDICT: the receiver has given up the same rails, and knows what has arrived over them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The epoch of the STATE that it answers.
    pub epoch: u32,
    /// The parts to be sent again, by group. All other lost parts are done.
    pub again: Vec<(Sequence, u8)>,
}

impl SenderState {
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        out.u32(self.epoch).u8(self.dead).u64(self.next.number());
        out.list(&self.open, SLOTS, "open groups", |out, group| {
            out.u64(group.seq.number()).u8(group.mask).u8(group.lost).u8(group.size.is_some().into());
            if let Some(size) = group.size {
                out.u64(size);
            }
            Ok(())
        })
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            epoch: epoch(from)?,
            dead: some_rails(from, "given-up rails")?,
            next: sequence(from)?,
            open: from.list(SLOTS, "open groups", |from| {
                let (seq, mask) = (sequence(from)?, some_rails(from, "rails of a group")?);
                let lost = from.u8("lost parts")?;
                if lost & !mask != 0 {
                    let expected = "a subset of the group's rails";
                    return Err(DecodeError::Range { what: "lost parts", found: lost.into(), expected });
                }
                let size = if from.flag("size")? { Some(from.u64("size")?) } else { None };
                Ok(OpenGroup { seq, mask, lost, size })
            })?,
        })
    }
}

impl Verdict {
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        out.u32(self.epoch);
        out.list(&self.again, SLOTS, "groups to be sent again", |out, (seq, parts)| {
            out.u64(seq.number()).u8(*parts);
            Ok(())
        })
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let epoch = epoch(from)?;
        let again = from.list(SLOTS, "groups to be sent again", |from| {
            Ok((sequence(from)?, some_rails(from, "parts to be sent again")?))
        })?;
        Ok(Self { epoch, again })
    }
}

/// Reads a mask of at least one rail.
pub(super) fn some_rails(from: &mut Reader<'_>, what: &'static str) -> Result<u8, DecodeError> {
    match from.u8(what)? {
        0 => Err(DecodeError::Range { what, found: 0, expected: "at least one rail" }),
        mask => Ok(mask),
    }
}

pub(super) fn epoch(from: &mut Reader<'_>) -> Result<u32, DecodeError> {
    match from.u32("epoch")? {
        0 => Err(DecodeError::Range { what: "epoch", found: 0, expected: "at least 1" }),
        epoch => Ok(epoch),
    }
}

fn sequence(from: &mut Reader<'_>) -> Result<Sequence, DecodeError> {
    match from.u64("sequence number")? {
        0 => Err(DecodeError::Range { what: "sequence number", found: 0, expected: "at least 1" }),
        number => Ok(Sequence::from_number(number)),
    }
}

const _: () = assert!(MAX_RAILS == u8::BITS as usize);
