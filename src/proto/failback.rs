//! The messages by which both ends make the queue pairs of dead rails again.
//!
//! The sender begins each attempt and counts them. An attempt concerns all rails of the connection
//! that join the same two ports. All messages may be repeated. Those of another attempt or epoch are
//! ignored.

use super::episode::EPOCH;
use super::wire::{Codec, DecodeError, Layout, REASON_BYTES, Reader, Writer, some_rails};
use super::{RailInfo, Wiring};

/// Names an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Counts the attempts of a connection, from 1.
    pub number: u32,
    /// The sender's epoch when the attempt began.
    pub epoch: u32,
}

/// REBUILD and REBUILT: what one end has made for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewRails {
    /// The attempt.
    pub attempt: Attempt,
    /// The rails; never zero.
    pub rails: u8,
    /// Their port and queue pairs.
    pub offer: Offer,
}

/// The port and the new queue pairs of one end: a HELLO and a WIRING about one port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The present port of the end.
    pub port: RailInfo,
    /// One route for each rail, in order. Each joins rail 0 to rail 0: the ports of the two ends.
    pub wiring: Wiring,
}

/// REBUILD_FAILED: the receiver gives the attempt up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RebuildFailed {
    /// The attempt.
    pub attempt: Attempt,
    /// Why, for the operator.
    pub reason: String,
}

impl Attempt {
    pub(super) fn write(self, out: &mut Writer) {
        out.u32(self.number).u32(self.epoch);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u32("attempt")? {
            0 => Err(DecodeError::Range { what: "attempt", found: 0, expected: "at least 1" }),
            number => Ok(Self { number, epoch: EPOCH.read(from)? }),
        }
    }
}

impl NewRails {
    pub(super) fn write(&self, out: &mut Writer) {
        self.attempt.write(out);
        out.u8(self.rails);
        self.offer.port.write(out);
        self.offer.wiring.write(out);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            attempt: Attempt::read(from)?,
            rails: some_rails("rails that come back").read(from)?,
            offer: Offer { port: RailInfo::read(from)?, wiring: Wiring::read(from)? },
        })
    }
}

impl RebuildFailed {
    pub(super) fn write(&self, out: &mut Writer) {
        self.attempt.write(out);
        out.text(&self.reason, REASON_BYTES);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { attempt: Attempt::read(from)?, reason: from.text(REASON_BYTES, "reason")? })
    }
}
