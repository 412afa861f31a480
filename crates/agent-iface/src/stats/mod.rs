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
//! | 4 | 4 | version of this layout, 5; 4 is the same without communicators |
//! | 8 | 4 | bytes of the header, 512 |
//! | 12 | 4 | bytes of an entry, 2560 |
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
//! | 72 | 4 | number of port records, 64 |
//! | 76 | 4 | bytes of a port record, 768 |
//! | 80 | 4 | port records in use; a record stays in use |
//! | 84 | 4 | rails so far on ports without a record, because none was free |
//! | 88 | 8 | revision of the totals: odd while the counts of a connection are added to them |
//! | 96 | 32 | version of the plugin, UTF-8, zero-padded |
//! | 128 | 48 | async events of adapters, 8 bytes each: link down, link up, port table changed, queue failed, adapter failed or removed, others |
//! | 176 | 8 | failover episodes of connections |
//! | 184 | 8 | bytes that were sent again in them |
//! | 192 | 8 | sum of the stalls of these episodes, ns |
//! | 200 | 8 | ports and routes that came back into use |
//! | 208 | 8 | frames of control connections with a wrong authentication tag |
//! | 216 | 40 | name of the job, UTF-8, zero-padded; none: empty |
//! | 256 | 128 | totals of sends |
//! | 384 | 128 | totals of receives |
//!
//! The header is followed by the port records, these by the entries, and these by 16 communicators.
//! Totals and port records count the connections that have no entry: the closed ones and those beyond
//! the last entry. A reader adds the entries ([`StatsPage::read`]).
//!
//! | offset | bytes | totals |
//! |---|---|---|
//! | 0 | 8 | requests that isend, irecv or iflush returned |
//! | 8 | 8 | of these, requests that test reported as done |
//! | 16 | 8 | messages of done requests |
//! | 24 | 8 | bytes of these messages |
//! | 32 | 8 | calls of isend without a request, because the peer had posted no receive |
//! | 40 | 8 | calls of isend or irecv without a request, because a queue was full |
//! | 48 | 8 | calls that failed |
//!
//! | offset | bytes | port record |
//! |---|---|---|
//! | 0 | 64 | HCA and port, UTF-8, zero-padded |
//! | 64 | 8 | revision of state, since and cause: odd while they are being written |
//! | 72 | 4 | state: 0 healthy, 1 suspect, 2 down, 3 probing |
//! | 76 | 4 | connections with a rail on the port |
//! | 80 | 8 | ns since 1970: healthy: the first use or the last return; otherwise the first sign of the failure |
//! | 88 | 4 | scale of the port's weight, 0 to 1024; 1024 is the whole weight, 0 no new data |
//! | 92 | 4 | weight of the port where messages are split, relative to the other ports; 0 if not measured |
//! | 96 | 8 | goodput in the last second, bytes/s; 0 if not measured: [`Carried`] |
//! | 128 | 8 | message bytes that senders posted |
//! | 136 | 8 | messages or parts that senders posted |
//! | 144 | 8 | messages or parts that receivers received |
//! | 152 | 8 | work requests posted |
//! | 160 | 8 | work requests known to be complete |
//! | 168 | 8 | completions with an error |
//! | 192 | 64 | failover episodes of connections, 8 bytes for each reason: [`Reason`] |
//! | 256 | 8 | bytes that were sent again in them |
//! | 264 | 8 | sum of the stalls of these episodes, ns |
//! | 272 | 120 | number of these stalls in each of 15 ranges: the first up to [`STALL_BOUNDS_MS`]`[0]`, the last above all bounds |
//! | 392 | 8 | bytes of the measured parts that were completed: [`Carried`] |
//! | 400 | 8 | time in which measured parts were in flight, ns |
//! | 408 | 8 | bytes of those of them that waited for others on the port |
//! | 416 | 8 | time from the completion before them to theirs, ns |
//! | 424 | 8 | sum of the times that they have waited until then, ns |
//! | 512 | 256 | cause of a state other than healthy, UTF-8, zero-padded |
//!
//! | offset | bytes | entry: one connection, one direction |
//! |---|---|---|
//! | 0 | 8 | generation: odd while in use; each use has a different number |
//! | 8 | 4 | state: 1 open, 2 failed |
//! | 12 | 1 | direction: 1 sends, 2 receives |
//! | 13 | 1 | islands: 0 unknown, 1 same island, 2 two islands |
//! | 14 | 1 | data: 0 on all rails, 1 on one rail, 2 split over SOUT and SUP |
//! | 15 | 1 | number of rails, with those that are left out |
//! | 16 | 8 | time of connection, ns since 1970 |
//! | 24 | 8 | time of failure, ns since 1970, or 0 |
//! | 32 | 1 | traffic: 0 messages, 1 windows |
//! | 40 | 8 | what it waits for, in the lowest byte: 0 nothing, 1 a receive of the peer, 2 data, 3 a rail, 4 room in a queue; above: since when, ms since 1970. A plugin that does not know this writes 0 |
//! | 64 | 128 | name of the peer, UTF-8, zero-padded |
//! | 192 | 8 | requests that isend, irecv or iflush returned |
//! | 200 | 8 | of these, requests that test reported as done |
//! | 208 | 8 | messages of done requests |
//! | 216 | 8 | bytes of these messages |
//! | 224 | 8 | calls of isend without a request, because the peer had posted no receive |
//! | 232 | 8 | calls of isend or irecv without a request, because a queue was full |
//! | 240 | 8 | calls that failed |
//! | 248 | 4 | last share of SUP, in parts per 1024; 0xffffffff if no share applies |
//! | 256 + 256 i | 256 | rail i |
//! | 2304 | 256 | reason of the failure, UTF-8, zero-padded |
//!
//! | offset | bytes | rail |
//! |---|---|---|
//! | 0 | 8 | message bytes posted; 0 on a receiver, which does not know how many bytes each rail delivered |
//! | 8 | 8 | sender: messages or parts posted; receiver: parts received |
//! | 16 | 8 | work requests posted |
//! | 24 | 8 | work requests known to be complete |
//! | 32 | 8 | completions with an error |
//! | 40 | 4 | index of the rail in its device: 0 SOUT, 1 SUP |
//! | 44 | 4 | port record of the rail, from 1; 0 if it has none |
//! | 48 | 8 | since when the connection lacks the rail, ns since 1970; 0 while it is in use |
//! | 56 | 8 | why the connection lacks the rail: [`Lack`]: 1 it is left out, 2 it has not worked since the connection was made, 3 + n it was given up for [`Reason`] n; 0 while it is in use |
//! | 64 | 64 | HCA and port, UTF-8, zero-padded |
//! | 128 | 128 | why the connection lacks the rail, UTF-8, zero-padded |
//!
//! | offset | bytes | communicator of NCCL's, if its profiler is this plugin |
//! |---|---|---|
//! | 0 | 8 | generation: odd while in use; each use has a different number |
//! | 8 | 8 | NCCL's number of the communicator, equal on all ranks |
//! | 16 | 8 | since when the process has it, ns since 1970 |
//! | 24 | 8 | operations so far |
//! | 32 | 8 | of these, operations that were not recorded, because the place of the oldest one was in use |
//! | 40 | 4 | rank of the process |
//! | 44 | 4 | number of ranks; 0 if it is unknown |
//! | 48 | 64 | name, UTF-8, zero-padded; none: empty |
//! | 112 | 32 | number of the port record, from 1, of rail i of the operations: 4 bytes each; 0 if there is none |
//! | 144 | 8 | since when the first of the slowest operations is searched, ns of CLOCK_MONOTONIC |
//! | 152 | 1 | whether messages are counted |
//! | 256 + 256 i | 256 | slowest operation i of those that were overwritten: of this minute, and of the one before |
//! | 768 + 256 i | 256 | operation i, 0 to 127: the last ones, in turn |
//!
//! | offset | bytes | operation |
//! |---|---|---|
//! | 0 | 8 | generation: odd while in use; each use has a different number |
//! | 8 | 8 | number among the operations of its name |
//! | 16 | 8 | when the program asked for it, ns since 1970 |
//! | 24 | 8 | when its first data moved, ns of CLOCK_MONOTONIC; 0 if NCCL has reported none |
//! | 32 | 8 | when its last data moved, ns of CLOCK_MONOTONIC; 0 if NCCL has reported none |
//! | 40 | 8 | bytes of the count that the program passes, of a reduce-scatter those that a rank receives; 0 if that is unknown |
//! | 48 | 16 | name, UTF-8, zero-padded |
//! | 64 | 16 | algorithm, likewise; of sends and receives empty |
//! | 80 | 8 | protocol, likewise; of sends and receives empty |
//! | 88 | 4 | channels |
//! | 92 | 4 | parts of it that NCCL's proxy has begun and not ended |
//! | 96 | 16 | failover episodes: the number in the header when its first data moved, and how many came until its last |
//! | 112 | 16 | the same of the stalls in ns |
//! | 128 + 16 i | 16 | rail i: bytes sent, and the sum of the times for which its messages were in flight, ns |
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
//!
//! A communicator is read in the same way, with its operations. An operation that is overwritten during
//! the copy is the oldest one, and may mix what it was with what it is. Its numbers grow while its data
//! moves: several threads add to them.
//!
//! # Reading totals
//!
//! A connection that closes moves its counts from its entry to the totals. Read the revision of the
//! totals before and after totals, port records and entries. If it is odd or has changed, read them
//! again. Then totals plus entries never decrease. Connections without an entry add their counts to
//! the totals four times a second, and when they close.
//!
//! Everything else of a port record is complete without the entries: a reader that needs only
//! states and goodput reads only records, which costs the same for any number of connections.

#[cfg(not(loom))]
mod find;
mod generation;
mod lack;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod operations;
#[cfg(not(loom))]
mod page;
#[cfg(not(loom))]
mod ports;
#[cfg(not(loom))]
mod reader;
mod revision;
#[cfg(not(loom))]
mod totals;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use find::{NoPage, pages_of, processes};
pub use generation::Generation;
pub use lack::Lack;
#[cfg(not(loom))]
pub use layout::{Entry, RailEntry};
#[cfg(not(loom))]
pub use operations::{
    Communicator, NewOperation, Operation, OperationPlace, OperationRail, Operations, monotonic,
};
#[cfg(not(loom))]
pub use ports::{Carried, Measured, Port, PortRecord, PortTotals};
#[cfg(not(loom))]
pub use reader::{BadPage, Connection, Rail, Sender, Statistics, StatsPage, Summary, Wait};
pub use revision::Revision;
#[cfg(not(loom))]
pub use totals::Totals;
#[cfg(not(loom))]
pub use writer::{ConnectionEntry, NewConnection, StatsWriter, UnlistedEntry};

/// Name of the memfd; its link in `/proc/PID/fd` is `/memfd:mpib-stats (deleted)`.
pub const MEMFD_NAME: &str = "mpib-stats";
/// First word of the page.
pub const STATS_MAGIC: u32 = 0x4D50_4953;
/// Version of the layout. Readers reject other versions but [`STATS_VERSION_WITHOUT_OPERATIONS`].
pub const STATS_VERSION: u32 = 5;
/// The version before. It is the same without communicators at the end.
pub const STATS_VERSION_WITHOUT_OPERATIONS: u32 = 4;
/// Size of the header in bytes.
pub const STATS_HEADER_SIZE: usize = 512;
/// Size of a port record in bytes.
pub const STATS_PORT_SIZE: usize = 768;
/// Number of port records of a page.
pub const STATS_PORTS: usize = 64;
/// Size of an entry in bytes.
pub const STATS_ENTRY_SIZE: usize = 2560;
/// Number of entries of a page.
pub const STATS_ENTRIES: usize = 1024;
/// Number of rails of an entry: the maximum of the wire protocol.
pub const STATS_RAILS: usize = 8;
/// Number of event counters, one per [`Event`].
pub const STATS_EVENTS: usize = 6;
/// Number of communicators of a page.
pub const STATS_COMMUNICATORS: usize = 16;
/// Number of operations of a communicator.
pub const STATS_OPERATIONS: usize = 128;
/// Number of the slowest operations that are kept.
pub const STATS_SLOWEST: usize = 2;
/// Size of an operation in bytes.
pub const STATS_OPERATION_SIZE: usize = 256;
/// Size of a communicator in bytes.
pub const STATS_COMMUNICATOR_SIZE: usize = STATS_OPERATION_SIZE * (1 + STATS_SLOWEST + STATS_OPERATIONS);
/// Size of a page without communicators in bytes.
pub const STATS_SIZE_WITHOUT_OPERATIONS: usize =
    STATS_HEADER_SIZE + STATS_PORTS * STATS_PORT_SIZE + STATS_ENTRIES * STATS_ENTRY_SIZE;
/// Size of a page in bytes.
pub const STATS_SIZE: usize = STATS_SIZE_WITHOUT_OPERATIONS + STATS_COMMUNICATORS * STATS_COMMUNICATOR_SIZE;
/// Upper bounds of the ranges of stalls, in ms. A stall of exactly a bound is in the bound's range.
/// The last range has no bound.
pub const STALL_BOUNDS_MS: [u64; 14] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000];
/// Number of ranges of stalls.
pub const STALL_RANGES: usize = STALL_BOUNDS_MS.len() + 1;
/// Number of reasons of episodes, one per [`Reason`].
pub const STATS_REASONS: usize = 6;
/// The whole weight of a port, as its scale.
pub const FULL_SCALE: u32 = 1024;
/// Value of the share where no share applies.
pub const NO_SHARE: u32 = u32::MAX;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $code:literal, $word:literal;)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

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
    /// What a connection is for.
    Traffic {
        /// Messages: sends and receives of NCCL's network table.
        Messages = 0, "messages";
        /// Windows: puts, gets and signals of NCCL's tables for one-sided traffic.
        Windows = 1, "window";
    }
    /// What a connection waits for.
    Awaited {
        /// The peer's receive: isend returns no request until it is posted.
        Receive = 1, "receive";
        /// Data: requests are outstanding, and none of them completes. A sender waits for the
        /// adapter, whose writes the peer's adapter acknowledges.
        Data = 2, "data";
        /// A rail: none is left, or what a failed one has lost is not sent again yet.
        Rail = 3, "rail";
        /// Room: a queue or the table of requests is full.
        Room = 4, "room";
    }
    /// State of a port.
    PortState {
        /// Usable, as far as is known.
        Healthy = 0, "healthy";
        /// An event reported that the link went down, and a query found the port usable. Rails on
        /// the port are still in use.
        Suspect = 1, "suspect";
        /// Given up: no rail uses the port.
        Down = 2, "down";
        /// Reachable again. Rails return to the port when their probes succeed.
        Probing = 3, "probing";
    }
    /// Why a connection gave a rail up. The code is the index of the counter.
    Reason {
        /// The port cannot be used: its link went down, or the adapter failed.
        Port = 0, "port";
        /// A work request failed.
        Completion = 1, "completion";
        /// The rail completed nothing while other rails did.
        Stall = 2, "stall";
        /// An event of the adapter: a queue failed.
        Event = 3, "event";
        /// The local address is no longer in the port's GID table.
        Address = 4, "address";
        /// The peer gave the rail up.
        Peer = 5, "peer";
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

impl Awaited {
    /// Returns what a connection with this peer waits for, in words.
    pub fn of_peer(self, direction: Option<Direction>, peer: &str) -> String {
        match (self, direction) {
            (Self::Receive, _) => format!("a receive of {peer}"),
            (Self::Data, Some(Direction::Send)) => format!("acknowledgements of {peer}"),
            (Self::Data, _) => format!("data of {peer}"),
            (Self::Rail, _) => format!("a rail to {peer}"),
            (Self::Room, _) => format!("room in a queue to {peer}"),
        }
    }
}

#[expect(clippy::derivable_impls, reason = "the enum comes from a macro")]
impl Default for PortState {
    fn default() -> Self {
        Self::Healthy
    }
}
