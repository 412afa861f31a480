//! The statistics page: counters of every connection of a process.
//!
//! The plugin writes the page ([`StatsWriter`]); other processes read it ([`pages_of`],
//! [`StatsPage`]).
//!
//! The page is a memfd named [`MEMFD_NAME`], which readers find in `/proc/PID/fd`. It is sealed
//! against shrinking and growing, which makes mapping it safe. It disappears with its process. All
//! numbers have the byte order of the machine.
//!
//! | offset | bytes | header |
//! |---|---|---|
//! | 0 | 4 | magic, 0x4D504953; written last |
//! | 4 | 4 | version of this layout, 1 |
//! | 8 | 4 | bytes of the header, 256 |
//! | 12 | 4 | bytes of an entry, 1536 |
//! | 16 | 4 | number of entries, 1024 |
//! | 20 | 4 | rails in an entry, 8 |
//! | 24 | 8 | bytes of the page, header included |
//! | 32 | 4 | process id, in the PID namespace of the process |
//! | 40 | 8 | creation time of the page, ns since 1970 |
//! | 48 | 8 | connections made so far |
//! | 56 | 4 | connections that exist now |
//! | 60 | 4 | of these, connections without an entry, because none was free |
//! | 64 | 4 | number of entries ever used; all later ones are free |
//! | 68 | 4 | connections made so far that use a rail of another device than NCCL requested |
//! | 96 | 32 | version of the plugin, UTF-8, zero-padded |
//! | 128 | 48 | async events of adapters, 8 bytes each: link down, link up, port table changed, queue failed, adapter failed or removed, others |
//! | 176 | 8 | failover episodes of connections |
//! | 184 | 8 | bytes that were sent again in them |
//! | 192 | 8 | sum of the stalls of these episodes, ns |
//! | 200 | 8 | ports and routes that came back into use |
//!
//! | offset | bytes | entry: one connection, one direction |
//! |---|---|---|
//! | 0 | 8 | generation: odd while in use; each use has a different number |
//! | 8 | 4 | state: 1 open, 2 failed |
//! | 12 | 1 | direction: 1 sends, 2 receives |
//! | 13 | 1 | islands: 0 unknown, 1 same island, 2 two islands |
//! | 14 | 1 | data: 0 on all rails, 1 on one rail, 2 split over SOUT and SUP |
//! | 15 | 1 | number of rails |
//! | 16 | 8 | time of connection, ns since 1970 |
//! | 24 | 8 | time of failure, ns since 1970, or 0 |
//! | 64 | 128 | name of the peer, UTF-8, zero-padded |
//! | 192 | 8 | requests that isend, irecv or iflush returned |
//! | 200 | 8 | of these, requests that test reported as done |
//! | 208 | 8 | messages of done requests |
//! | 216 | 8 | bytes of these messages |
//! | 224 | 8 | calls of isend without a request, because the peer had posted no receive |
//! | 232 | 8 | calls of isend or irecv without a request, because a queue was full |
//! | 240 | 8 | calls that failed |
//! | 248 | 4 | last share of SUP, in parts per 1024; 0xffffffff if no share applies |
//! | 256 + 128 i | 128 | rail i |
//! | 1280 | 256 | reason of the failure, UTF-8, zero-padded |
//!
//! | offset | bytes | rail |
//! |---|---|---|
//! | 0 | 8 | message bytes posted; 0 on a receiver, which does not know how many bytes each rail delivered |
//! | 8 | 8 | sender: messages or parts posted; receiver: parts received |
//! | 16 | 8 | work requests posted |
//! | 24 | 8 | work requests known to be complete |
//! | 32 | 8 | completions with an error |
//! | 40 | 4 | index of the rail in its device: 0 SOUT, 1 SUP |
//! | 48 | 8 | since when the connection has given the rail up, ns since 1970; 0 while it is in use |
//! | 64 | 64 | HCA and port, UTF-8, zero-padded |
//!
//! Other bytes are zero.
//!
//! # Reading an entry
//!
//! 1. Read the generation. Even means free.
//! 2. Copy the entry. Read each "done" counter before its total: then the difference (in flight) is
//!    never negative.
//! 3. Read the generation again, after an acquire fence. If it changed, the copy mixes two
//!    connections: discard it and retry.
//!
//! Each number of a copy was correct at some time between the two readings of the generation.
//! Counters never decrease within one generation. The plugin writes the reason of a failure before
//! the state "failed".

#[cfg(not(loom))]
mod find;
mod generation;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod page;
#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use find::{NoPage, pages_of, processes};
pub use generation::Generation;
#[cfg(not(loom))]
pub use layout::{Entry, RailEntry};
#[cfg(not(loom))]
pub use reader::{BadPage, Connection, Rail, StatsPage, Summary};
#[cfg(not(loom))]
pub use writer::{ConnectionEntry, NewConnection, StatsWriter, UnlistedEntry};

/// Name of the memfd; its link in `/proc/PID/fd` is `/memfd:mpib-stats (deleted)`.
pub const MEMFD_NAME: &str = "mpib-stats";
/// First word of the page.
pub const STATS_MAGIC: u32 = 0x4D50_4953;
/// Version of the layout. Readers reject other versions.
pub const STATS_VERSION: u32 = 1;
/// Size of the header in bytes.
pub const STATS_HEADER_SIZE: usize = 256;
/// Size of an entry in bytes.
pub const STATS_ENTRY_SIZE: usize = 1536;
/// Number of entries of a page.
pub const STATS_ENTRIES: usize = 1024;
/// Number of rails of an entry: the maximum of the wire protocol.
pub const STATS_RAILS: usize = 8;
/// Number of event counters, one per [`Event`].
pub const STATS_EVENTS: usize = 6;
/// Size of a page in bytes.
pub const STATS_SIZE: usize = STATS_HEADER_SIZE + STATS_ENTRIES * STATS_ENTRY_SIZE;
/// Value of the share where no share applies.
pub const NO_SHARE: u32 = u32::MAX;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $code:literal, $word:literal;)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// Returns the number that is used in the page.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns the value for a number, or `None` if the number is unknown.
            pub const fn of(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// Returns a short text for tables and JSON.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    )+};
}

codes! {
    /// State of a connection.
    State {
        /// Usable.
        Open = 1, "open";
        /// Failed permanently, but not yet closed by NCCL.
        Failed = 2, "failed";
    }
    /// Direction of the data.
    Direction {
        /// Sends: the process called connect.
        Send = 1, "send";
        /// Receives: the process called accept.
        Receive = 2, "recv";
    }
    /// Location of the peer.
    Islands {
        /// Unknown: the device does not consist of SOUT and SUP.
        Unknown = 0, "-";
        /// The peer is in the same island.
        Same = 1, "intra";
        /// The peer is in another island.
        Two = 2, "inter";
    }
    /// Rails that may carry data.
    Data {
        /// All rails.
        Plain = 0, "plain";
        /// One rail.
        OneRail = 1, "one rail";
        /// SOUT and SUP, split by a share.
        Split = 2, "split";
    }
    /// Async events of adapters. The code is the index of the counter.
    Event {
        /// A link went down.
        LinkDown = 0, "link down";
        /// A link came up.
        LinkUp = 1, "link up";
        /// The GID or P_Key table, or the LID of a port changed.
        Table = 2, "table changed";
        /// A queue failed.
        Queue = 3, "queue failed";
        /// An adapter failed, or was removed.
        Device = 4, "adapter failed";
        /// Anything else.
        Other = 5, "other";
    }
}
