//! The messages by which both ends make the queue pairs of dead rails again.
//!
//! The sender begins each attempt and counts them. An attempt concerns all rails of the connection
//! that join the same two ports. All messages may be repeated. Those of another attempt or epoch are
//! ignored.

use super::episode::EPOCH;
use super::wire::{
    Codec, DecodeError, Layout, Nested, REASON_BYTES, Reader, Writer, layout, list, some_rails, text, within,
};
use super::{RailInfo, SLOTS, Sequence, Wiring};

layout! {
    /// Names an attempt.
    #[derive(Copy)]
    pub struct Attempt {
        /// Counts the attempts of a connection, from 1.
        pub number: u32 = within("attempt", 1..=u32::MAX as u64, "at least 1"),
        /// The sender's epoch when the attempt began.
        pub epoch: u32 = EPOCH,
    }
}

layout! {
    /// UP: the receiver's probes have arrived, and it uses the rails.
    pub struct Up {
        /// The attempt.
        pub attempt: Attempt = Nested,
        /// The groups whose data is outstanding, and the [checksum](super::checksum_of_keys) of the
        /// keys in the CTS entries of each.
        pub entries: Vec<(Sequence, u32)> = list("groups", SLOTS, (Nested, "checksum of keys")),
    }
}

layout! {
    /// REBUILD and REBUILT: what one end has made for an attempt.
    pub struct NewRails {
        /// The attempt.
        pub attempt: Attempt = Nested,
        /// The rails; never zero.
        pub rails: u8 = some_rails("rails that come back"),
        /// Their port and queue pairs.
        pub offer: Offer = Nested,
    }
}

layout! {
    /// The port and the new queue pairs of one end: a HELLO and a WIRING about one port.
    pub struct Offer {
        /// The present port of the end.
        pub port: RailInfo = Nested,
        /// One route for each rail, in order. Each joins rail 0 to rail 0: the ports of the two ends.
        pub wiring: Wiring = Nested,
    }
}

layout! {
    /// REBUILD_FAILED: the receiver gives the attempt up.
    pub struct RebuildFailed {
        /// The attempt.
        pub attempt: Attempt = Nested,
        /// Why, for the operator.
        pub reason: String = text("reason", REASON_BYTES),
    }
}
