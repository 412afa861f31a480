//! The messages by which both ends make the queue pairs of dead rails anew.
//!
//! The sender begins each attempt and counts them. An attempt concerns all rails of the connection
//! that join the same two ports. All messages may be repeated. Those of another attempt or epoch are
//! ignored.

use super::episode::EPOCH;
use super::wire::{Codec, DecodeError, Layout, REASON_BYTES, Reader, Writer, some_rails};
use super::{MAX_RAILS, RailInfo, RouteWiring};

/// Names an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Counts the attempts of a connection, from 1.
    pub number: u32,
    /// The sender's epoch when the attempt began.
    pub epoch: u32,
}

/// REBUILD and REBUILT: the port, the new queue pairs and the keys of one end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewRails {
    /// The attempt.
    pub attempt: Attempt,
    /// The rails; never zero.
    pub rails: u8,
    /// The present port of the end.
    pub port: RailInfo,
    /// The queue pairs of each rail, in order. Both rails of a route are the index of the rail in
    /// the connection.
    pub routes: Vec<RouteWiring>,
    /// The remote key of the end's control memory on each rail, in order.
    pub rkeys: Vec<u32>,
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
        self.port.write(out);
        out.list(&self.routes, MAX_RAILS, "routes", |out, route| route.write(out));
        out.list(&self.rkeys, MAX_RAILS, "remote keys", |out, rkey| _ = out.u32(*rkey));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            attempt: Attempt::read(from)?,
            rails: some_rails("rails that come back").read(from)?,
            port: RailInfo::read(from)?,
            routes: from.list(MAX_RAILS, "routes", RouteWiring::read)?,
            rkeys: from.list(MAX_RAILS, "remote keys", |from| from.u32("remote key"))?,
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
