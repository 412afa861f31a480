//! A page of another process, read.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::{Entry, RailEntry};
use super::page::Mapped;
use super::{
    Data, Direction, Islands, NO_SHARE, STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_EVENTS, STATS_HEADER_SIZE,
    STATS_MAGIC, STATS_RAILS, STATS_SIZE, STATS_VERSION, State,
};

/// Tries to copy an entry that is given to other connections meanwhile.
const TRIES: usize = 16;

/// Why a file is no page that can be read.
#[derive(Debug, thiserror::Error)]
pub enum BadPage {
    /// The system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not made by a plugin, or not finished yet.
    #[error("not sealed against becoming smaller, so it cannot be mapped safely")]
    Unsealed,
    /// Of another layout.
    #[error("{0} bytes, expected {STATS_SIZE}: is the plugin of another version than this program?")]
    Size(u64),
    /// No page at all, or not finished yet.
    #[error("magic {0:#010x} at byte 0, expected {STATS_MAGIC:#010x}")]
    Magic(u32),
    /// Of another layout.
    #[error(
        "version {0} of the page, expected {STATS_VERSION}: this program is of another version than the plugin"
    )]
    Version(u32),
    /// Numbers that do not go with the version.
    #[error("{what} of {found} according to byte {at}, expected {expected}")]
    Layout {
        /// What the number is.
        what: &'static str,
        /// Where it stands.
        at: usize,
        /// What stands there.
        found: u64,
        /// What must.
        expected: u64,
    },
}

/// A page, mapped and found good. What it shows is what is there at each call.
#[derive(Debug)]
pub struct StatsPage(Mapped);

/// What a page says of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// As the process itself sees it.
    pub pid: u32,
    /// Version of the plugin.
    pub plugin: String,
    /// When the page was made, ns since 1970.
    pub made: u64,
    /// Connections made so far.
    pub opened: u64,
    /// Connections there are now.
    pub open: u32,
    /// How many of them have no entry, since all were in use.
    pub hidden: u32,
    /// Connections made so far by a rail that is not of the device that NCCL asked for.
    pub substituted: u32,
    /// What adapters of the process reported, by the code of [`Event`](super::Event).
    pub events: [u64; STATS_EVENTS],
}

/// One connection, as it was at some moment of the reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Place in the page.
    pub index: usize,
    /// Which use of that place: another number is another connection.
    pub generation: u64,
    /// `None` for a number without meaning, as in the next three.
    pub state: Option<State>,
    /// Which way its data goes.
    pub direction: Option<Direction>,
    /// Where its peer is.
    pub islands: Option<Islands>,
    /// Which rails may carry data.
    pub data: Option<Data>,
    /// When it was made, ns since 1970.
    pub since: u64,
    /// When it failed, ns since 1970.
    pub failed_at: Option<u64>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The peer, in words.
    pub peer: String,
    /// Requests that isend or irecv gave.
    pub requests: u64,
    /// Those of them that are done.
    pub done: u64,
    /// Messages in those that are done.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls of isend that gave no request, since no receive was offered.
    pub waits_peer: u64,
    /// Calls of isend or irecv that gave no request, since a queue was full.
    pub waits_queue: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Share of SUP used last, in parts per 1024; `None` where none was used yet or none decides.
    pub share: Option<u32>,
    /// Its rails, in order.
    pub rails: Vec<Rail>,
}

/// One rail of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// HCA and port.
    pub name: String,
    /// Index in its device: 0 SOUT, 1 SUP.
    pub role: u32,
    /// Bytes of messages posted; `None` at a receiver, who is not told what came on which rail.
    pub bytes: Option<u64>,
    /// Sender: writes of messages or parts posted. Receiver: parts that arrived.
    pub parts: u64,
    /// Work requests posted.
    pub posted: u64,
    /// Work requests known to be done.
    pub done: u64,
    /// Completions with an error.
    pub errors: u64,
}

impl Connection {
    /// Requests that are not done.
    pub fn in_flight(&self) -> u64 {
        self.requests.saturating_sub(self.done)
    }
}

impl Rail {
    /// Work requests not known to be done.
    pub fn in_flight(&self) -> u64 {
        self.posted.saturating_sub(self.done)
    }
}

impl StatsPage {
    /// Maps a page and looks whether it is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(file: &File) -> Result<Self, BadPage> {
        let page = Self(Mapped::new(file)?);
        let h = &page.0.view().header;
        let magic = h.magic.load(Ordering::Acquire);
        if magic != STATS_MAGIC {
            return Err(BadPage::Magic(magic));
        }
        let version = get(&h.version);
        if version != STATS_VERSION {
            return Err(BadPage::Version(version));
        }
        for (what, at, found, expected) in [
            ("a header", 8, get(&h.header_size).into(), STATS_HEADER_SIZE),
            ("entries", 12, get(&h.entry_size).into(), STATS_ENTRY_SIZE),
            ("a number of entries", 16, get(&h.entries).into(), STATS_ENTRIES),
            ("a number of rails", 20, get(&h.rails).into(), STATS_RAILS),
            ("a page", 24, num(&h.size), STATS_SIZE),
        ] {
            let expected = expected as u64;
            if found != expected {
                return Err(BadPage::Layout { what, at, found, expected });
            }
        }
        Ok(page)
    }

    /// What it says of its process.
    pub fn summary(&self) -> Summary {
        let h = &self.0.view().header;
        Summary {
            pid: get(&h.pid),
            plugin: h.plugin.read(),
            made: num(&h.made),
            opened: num(&h.opened),
            open: get(&h.open),
            hidden: get(&h.hidden),
            substituted: get(&h.substituted),
            events: h.events.each_ref().map(num),
        }
    }

    /// Its connections, in the order of their entries. One that closes meanwhile may be missing.
    pub fn connections(&self) -> Vec<Connection> {
        let page = self.0.view();
        let used = page.header.used.load(Ordering::Acquire) as usize;
        page.entries.iter().enumerate().take(used).filter_map(|(index, entry)| read(index, entry)).collect()
    }
}

fn get(number: &AtomicU32) -> u32 {
    number.load(Ordering::Relaxed)
}

fn num(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

/// `None` for an entry that is free, or changes hands faster than it can be read.
fn read(index: usize, entry: &Entry) -> Option<Connection> {
    for _ in 0..TRIES {
        if let Some((generation, copied)) = entry.generation.read(|| copy(entry))? {
            return Some(Connection { index, generation, ..copied });
        }
    }
    None
}

fn copy(entry: &Entry) -> Connection {
    let state = entry.state.load(Ordering::Acquire);
    let state = u8::try_from(state).ok().and_then(State::of);
    let failed = state == Some(State::Failed);
    let direction = Direction::of(entry.direction.load(Ordering::Relaxed));
    // What is done before what it is part of.
    let done = entry.done.load(Ordering::Acquire);
    let rails = usize::from(entry.rail_count.load(Ordering::Relaxed)).min(STATS_RAILS);
    Connection {
        index: 0,
        generation: 0,
        state,
        direction,
        islands: Islands::of(entry.islands.load(Ordering::Relaxed)),
        data: Data::of(entry.data.load(Ordering::Relaxed)),
        since: num(&entry.since),
        failed_at: failed.then(|| num(&entry.failed_at)),
        reason: failed.then(|| entry.reason.read()),
        peer: entry.peer.read(),
        requests: num(&entry.requests),
        done,
        messages: num(&entry.messages),
        bytes: num(&entry.bytes),
        waits_peer: num(&entry.waits_peer),
        waits_queue: num(&entry.waits_queue),
        errors: num(&entry.errors),
        share: Some(get(&entry.share)).filter(|share| *share != NO_SHARE),
        rails: entry.rails[..rails].iter().map(|rail| copy_rail(rail, direction)).collect(),
    }
}

fn copy_rail(rail: &RailEntry, direction: Option<Direction>) -> Rail {
    let done = rail.done.load(Ordering::Acquire);
    Rail {
        name: rail.name.read(),
        role: get(&rail.role),
        bytes: (direction != Some(Direction::Receive)).then(|| num(&rail.bytes)),
        parts: num(&rail.parts),
        posted: num(&rail.posted),
        done,
        errors: num(&rail.errors),
    }
}
