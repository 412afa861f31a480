//! The statistics page: what each connection of a process has done, written by the process and read by others.
//!
//! The page is a memfd of the process, [`MEMFD_NAME`], which others find in `/proc/PID/fd`. It can neither shrink nor grow
//! (sealed), so that mapping it is safe; it leaves nothing behind when its process ends. All numbers have the machine's byte order.
//!
//! | offset | bytes | header |
//! |---|---|---|
//! | 0 | 4 | magic, 0x4D504953; written last |
//! | 4 | 4 | version of this layout, 1 |
//! | 8 | 4 | bytes of the header, 256 |
//! | 12 | 4 | bytes of an entry, 1536 |
//! | 16 | 4 | number of entries, 1024 |
//! | 20 | 4 | rails in an entry, 8 |
//! | 24 | 8 | bytes of the page: header and entries |
//! | 32 | 4 | process id, as the process itself sees it |
//! | 40 | 8 | when the page was made, ns since 1970 |
//! | 48 | 8 | connections made so far |
//! | 56 | 4 | connections there are now |
//! | 60 | 4 | how many of them found no entry free |
//! | 64 | 4 | entries that were ever used: all others are free |
//! | 68 | 4 | connections made so far by a rail that is not of the device that NCCL asked for |
//! | 96 | 32 | version of the plugin, UTF-8, zeros behind |
//! | 128 | 48 | events that adapters reported, 8 bytes each: a link went down, a link came up, a table of a port changed, a queue failed, an adapter failed or was removed, others |
//!
//! | offset | bytes | entry: one connection, one direction |
//! |---|---|---|
//! | 0 | 8 | generation: odd while in use, and another number for each use |
//! | 8 | 4 | state: 1 open, 2 failed |
//! | 12 | 1 | direction: 1 sends, 2 receives |
//! | 13 | 1 | islands: 0 none known, 1 same island, 2 two islands |
//! | 14 | 1 | data: 0 whatever rails there are, 1 all on one rail, 2 split over both |
//! | 15 | 1 | rails |
//! | 16 | 8 | connected, ns since 1970 |
//! | 24 | 8 | failed, ns since 1970, or 0 |
//! | 64 | 128 | the peer, UTF-8, zeros behind |
//! | 192 | 8 | requests that isend, irecv or iflush gave |
//! | 200 | 8 | of these, done: told by test |
//! | 208 | 8 | messages in those that are done |
//! | 216 | 8 | their bytes |
//! | 224 | 8 | calls of isend that gave no request, since no receive was offered |
//! | 232 | 8 | calls of isend or irecv that gave no request, since a queue was full |
//! | 240 | 8 | calls that failed |
//! | 248 | 4 | share of SUP used last, in parts per 1024, or 0xffffffff: no share decides |
//! | 256 + 128 i | 128 | rail i |
//! | 1280 | 256 | why it failed, UTF-8, zeros behind |
//!
//! | offset | bytes | rail |
//! |---|---|---|
//! | 0 | 8 | bytes of messages posted; 0 at a receiver, who is not told what came on which rail |
//! | 8 | 8 | sender: writes of messages or parts posted; receiver: parts that arrived |
//! | 16 | 8 | work requests posted |
//! | 24 | 8 | work requests known to be done |
//! | 32 | 8 | completions with an error |
//! | 40 | 4 | index of the rail in its device: 0 SOUT, 1 SUP |
//! | 64 | 64 | HCA and port, UTF-8, zeros behind |
//!
//! Bytes not named are zero. **To read an entry:** read its generation; even means free. Copy it; read the generation again:
//! if it changed, what was copied is of two connections and counts for nothing. The copy's numbers are each right at some moment
//! between the two readings, and never go back within one generation. Read "done" before what it is
//! part of, and the difference, what is in flight, is never negative. The reason of a failure is there before its state.

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
pub use writer::{ConnectionEntry, NewConnection, StatsWriter};

/// Name of the memfd; its link in `/proc/PID/fd` is `/memfd:mpib-stats (deleted)`.
pub const MEMFD_NAME: &str = "mpib-stats";
/// First word of the page.
pub const STATS_MAGIC: u32 = 0x4D50_4953;
/// Version of the layout; others are not understood.
pub const STATS_VERSION: u32 = 1;
/// Bytes before the first entry.
pub const STATS_HEADER_SIZE: usize = 256;
/// Bytes of an entry.
pub const STATS_ENTRY_SIZE: usize = 1536;
/// Connections that a page has room for.
pub const STATS_ENTRIES: usize = 1024;
/// Rails that an entry has room for: as many as the protocol allows.
pub const STATS_RAILS: usize = 8;
/// Counters of what adapters report.
pub const STATS_EVENTS: usize = 6;
/// Bytes of a page.
pub const STATS_SIZE: usize = STATS_HEADER_SIZE + STATS_ENTRIES * STATS_ENTRY_SIZE;
/// Stands where no share decides.
pub const NO_SHARE: u32 = u32::MAX;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $code:literal, $word:literal;)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// As it stands in the page.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code,)+ }
            }

            /// `None` for a number that has no meaning here.
            pub const fn of(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// For tables and JSON.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    )+};
}

codes! {
    /// What a connection is doing.
    State {
        /// Moves data.
        Open = 1, "open";
        /// Failed for good; NCCL has not closed it yet.
        Failed = 2, "failed";
    }
    /// Which way its data goes.
    Direction {
        /// It connected.
        Send = 1, "send";
        /// It accepted.
        Receive = 2, "recv";
    }
    /// Where its peer is.
    Islands {
        /// A device is not SOUT and SUP: no islands.
        Unknown = 0, "-";
        /// In the same island.
        Same = 1, "intra";
        /// In another.
        Two = 2, "inter";
    }
    /// Which rails may carry data.
    Data {
        /// Those there are.
        Plain = 0, "plain";
        /// One.
        OneRail = 1, "one rail";
        /// Both, by shares.
        Split = 2, "split";
    }
    /// What adapters report; the code is its place among the counters.
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
