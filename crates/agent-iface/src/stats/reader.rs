//! Reads the page of another process.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::layout::{Entry, Header, Page, RailEntry};
use super::operations::{Communicator, CommunicatorRecord};
use super::page::PageFile;
use super::ports::{Carried, Port, PortRecord, PortTotals};
use super::totals::{Totals, TotalsRecord};
use super::writer::nanos;
use super::{
    Awaited, Data, Direction, Generation, Islands, Lack, NO_SHARE, Revision, STATS_COMMUNICATOR_SIZE,
    STATS_COMMUNICATORS, STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_EVENTS, STATS_HEADER_SIZE, STATS_MAGIC,
    STATS_PORT_SIZE, STATS_PORTS, STATS_RAILS, STATS_SIZE, STATS_SIZE_WITHOUT_OPERATIONS, STATS_VERSION,
    STATS_VERSION_WITHOUT_OPERATIONS, State, Traffic,
};

/// Attempts to copy an entry that is reused, or a port whose state changes, during the copy.
const TRIES: usize = 16;
/// How long totals are read again while connections close. A writer holds the revision for about a
/// microsecond, unless its thread loses the CPU meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_micros(20);

/// Why a file is not a valid page.
#[derive(Debug, thiserror::Error)]
pub enum BadPage {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not created by a plugin, or not yet complete.
    #[error("not a file in memory that is sealed against shrinking (memfd with F_SEAL_SHRINK)")]
    Unsealed,
    /// Another layout.
    #[error("{0} bytes, expected {STATS_SIZE}: is the plugin of another version than this program?")]
    Size(u64),
    /// Not a page, or not yet complete.
    #[error("magic {0:#010x} at byte 0, expected {STATS_MAGIC:#010x}")]
    Magic(u32),
    /// Another version of the layout.
    #[error(
        "version {0} of the page, expected {STATS_VERSION}: this program is of another version than the plugin"
    )]
    Version(u32),
    /// A size that does not match the version.
    #[error("{what} of {found} according to byte {at}, expected {expected}")]
    Layout {
        /// What has this size.
        what: &'static str,
        /// Offset of the number.
        at: usize,
        /// The number found.
        found: u64,
        /// The number expected.
        expected: u64,
    },
}

/// A validated page. Each call reads the current values, by system calls: it maps nothing.
#[derive(Debug)]
pub struct StatsPage(PageFile);

/// A page as it was at one time, as far as the totals go: they have each connection once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// The header.
    pub summary: Summary,
    /// Totals of the sends and of the receives, of all connections so far.
    pub totals: [Totals; 2],
    /// The ports, with the totals of all connections so far.
    pub ports: Vec<Port>,
    /// The connections that exist, but for those without an entry.
    pub connections: Vec<Connection>,
}

/// The header of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Process id in the innermost PID namespace of the process.
    pub pid: u32,
    /// Version of the plugin.
    pub plugin: String,
    /// Name of the job; empty if the process has none, or its plugin is older than this.
    pub job: String,
    /// Creation time of the page, ns since 1970.
    pub made: u64,
    /// Connections made so far.
    pub opened: u64,
    /// Connections that exist now.
    pub open: u32,
    /// Of these, connections without an entry, because all were in use.
    pub hidden: u32,
    /// Connections made so far that use a rail of another device than NCCL requested.
    pub substituted: u32,
    /// Numbers of async events, indexed by the code of [`Event`](super::Event).
    pub events: [u64; STATS_EVENTS],
    /// Failover episodes of connections.
    pub episodes: u64,
    /// Bytes that were sent again in them.
    pub replayed: u64,
    /// Sum of the stalls of these episodes, in ns.
    pub stalled: u64,
    /// Ports and routes that came back into use.
    pub returns: u64,
    /// Frames of control connections with a wrong authentication tag.
    pub forged: u64,
    /// Rails so far on ports without a record, because none was free.
    pub ports_missing: u32,
}

/// One connection. Each number was correct at some time during the reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Index of the entry in the page.
    pub index: usize,
    /// Identifies the use of the entry: another generation is another connection.
    pub generation: u64,
    /// State of the connection. This and the next four are `None` if the number in the page is
    /// unknown.
    pub state: Option<State>,
    /// Direction of the data.
    pub direction: Option<Direction>,
    /// Location of the peer.
    pub islands: Option<Islands>,
    /// Rails that may carry data.
    pub data: Option<Data>,
    /// What the connection is for.
    pub traffic: Option<Traffic>,
    /// Time of connection, ns since 1970.
    pub since: u64,
    /// Time of failure, ns since 1970.
    pub failed_at: Option<u64>,
    /// Reason of the failure.
    pub reason: Option<String>,
    /// Name of the peer.
    pub peer: String,
    /// What it waits for; `None` while it does not wait, or if the plugin is older than this.
    pub wait: Option<Wait>,
    /// What it has counted.
    pub totals: Totals,
    /// Last share of SUP, in parts per 1024; `None` if no share was used yet or none applies.
    pub share: Option<u32>,
    /// Rails, in order.
    pub rails: Vec<Rail>,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// What it waits for.
    pub what: Awaited,
    /// Since when, ms since 1970. Time in which the process did not run does not count: it has moved
    /// this on.
    pub since_ms: u64,
}

/// One rail of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// HCA and port.
    pub name: String,
    /// Index of its port in [`Statistics::ports`]; `None` if the port has no record.
    pub port: Option<usize>,
    /// Index in the device: 0 SOUT, 1 SUP.
    pub role: u32,
    /// Message bytes posted; `None` on a receiver, which does not know how many bytes each rail
    /// delivered.
    pub bytes: Option<u64>,
    /// Sender: messages or parts posted. Receiver: parts received.
    pub parts: u64,
    /// Work requests posted.
    pub posted: u64,
    /// Work requests known to be complete.
    pub done: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Since when the connection lacks the rail, ns since 1970; `None` while it is in use.
    pub given_up_at: Option<u64>,
    /// Why; `None` while it is in use.
    pub missing: Option<String>,
    /// The same as one of few reasons; `None` also if the plugin has a reason that is not known here.
    pub lack: Option<Lack>,
}

/// The rails and the share of a sender, without its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// Index of the port record of SOUT, and of SUP: see [`Statistics::ports`].
    pub ports: [usize; 2],
    /// Last share of SUP, in parts per 1024; `None` if no share was used yet or none applies.
    pub share: Option<u32>,
}

impl Wait {
    /// Bits of the code in the word of an entry.
    const CODE: u32 = u8::BITS;

    /// Returns the word of an entry: one word, because readers see both parts of it or neither.
    pub(super) fn word(what: Awaited, since: SystemTime) -> u64 {
        (nanos(since) / 1_000_000) << Self::CODE | u64::from(what.code())
    }

    /// Returns what a word says; `None` also for a number that is unknown.
    fn of(word: u64) -> Option<Self> {
        let [code, ..] = word.to_le_bytes();
        Some(Self { what: Awaited::of(code)?, since_ms: word >> Self::CODE })
    }
}

impl Connection {
    /// Returns the number of requests that are not done.
    pub fn in_flight(&self) -> u64 {
        self.totals.requests.saturating_sub(self.totals.done)
    }
}

impl Rail {
    /// Returns the number of work requests not known to be complete.
    pub fn in_flight(&self) -> u64 {
        self.posted.saturating_sub(self.done)
    }

    fn totals(&self, direction: Direction) -> PortTotals {
        let Self { parts, posted, done, errors, .. } = *self;
        let (parts_sent, parts_received) = match direction {
            Direction::Send => (parts, 0),
            Direction::Receive => (0, parts),
        };
        PortTotals { bytes: self.bytes.unwrap_or(0), parts_sent, parts_received, posted, done, errors }
    }
}

impl StatsPage {
    /// Checks that a file is a page. It keeps a descriptor of the file.
    ///
    /// # Errors
    /// [`BadPage`] if the file is not a page of this version.
    pub fn open(file: &File) -> Result<Self, BadPage> {
        let page = Self(PageFile::new(file)?);
        let h = page.header();
        let magic = get(&h.magic);
        if magic != STATS_MAGIC {
            return Err(BadPage::Magic(magic));
        }
        let version = get(&h.version);
        let size = match version {
            STATS_VERSION => STATS_SIZE,
            STATS_VERSION_WITHOUT_OPERATIONS => STATS_SIZE_WITHOUT_OPERATIONS,
            _ => return Err(BadPage::Version(version)),
        };
        page.0.has_size(size)?;
        for (what, at, found, expected) in [
            ("a header", 8, get(&h.header_size).into(), STATS_HEADER_SIZE),
            ("entries", 12, get(&h.entry_size).into(), STATS_ENTRY_SIZE),
            ("a number of entries", 16, get(&h.entries).into(), STATS_ENTRIES),
            ("a number of rails", 20, get(&h.rails).into(), STATS_RAILS),
            ("a page", 24, num(&h.size), size),
            ("a number of ports", 72, get(&h.ports).into(), STATS_PORTS),
            ("port records", 76, get(&h.port_size).into(), STATS_PORT_SIZE),
        ] {
            let expected = expected as u64;
            if found != expected {
                return Err(BadPage::Layout { what, at, found, expected });
            }
        }
        Ok(page)
    }

    /// Returns the user who has made the page, and the number of its file: that of another page of the
    /// host is another one.
    ///
    /// # Errors
    /// The system's error.
    pub fn identity(&self) -> io::Result<(u32, u64)> {
        self.0.identity()
    }

    /// Reads the header.
    pub fn summary(&self) -> Summary {
        let h = self.header();
        Summary {
            pid: get(&h.pid),
            plugin: h.plugin.read(),
            job: h.job.read(),
            made: num(&h.made),
            opened: num(&h.opened),
            open: get(&h.open),
            hidden: get(&h.hidden),
            substituted: get(&h.substituted),
            events: h.events.each_ref().map(num),
            episodes: num(&h.episodes),
            replayed: num(&h.replayed),
            stalled: num(&h.stalled),
            returns: num(&h.returns),
            forged: num(&h.forged),
            ports_missing: get(&h.ports_missing),
        }
    }

    /// Reads everything. Totals never decrease from one reading to the next. There is one exception:
    /// if connections close all the time, or the process was stopped while it closed one, no reading
    /// succeeds within 100 ms. Then the last one is returned, in which the counts of connections
    /// that close may be missing or be there twice.
    pub fn read(&self) -> Statistics {
        let (revision, begun) = (|| self.number(offset_of!(Header, revision)), Instant::now());
        while begun.elapsed() < PATIENCE {
            if let Some(statistics) = Revision::read(revision, || self.read_once()) {
                return statistics;
            }
            std::thread::sleep(PAUSE);
        }
        self.read_once()
    }

    fn read_once(&self) -> Statistics {
        let h = self.header();
        let mut totals = h.totals.each_ref().map(TotalsRecord::read);
        let mut ports = self.ports();
        let connections = self.connections();
        for c in &connections {
            let Some(direction) = c.direction else { continue };
            totals[usize::from(direction == Direction::Receive)] += c.totals;
            for rail in &c.rails {
                if let Some(port) = rail.port.and_then(|index| ports.get_mut(index)) {
                    port.totals += rail.totals(direction);
                }
            }
        }
        Statistics { summary: self.summary(), totals, ports, connections }
    }

    /// Reads the ports without the totals of connections that have an entry: the totals of these ports
    /// are incomplete.
    pub fn ports(&self) -> Vec<Port> {
        (0..self.ports_used()).map(|index| self.record(index).read()).collect()
    }

    /// Reads the communicators of NCCL that exist, with their operations. A page of the version before has
    /// none.
    pub fn communicators(&self) -> Vec<Communicator> {
        if get(&self.header().version) != STATS_VERSION {
            return Vec::new();
        }
        (0..STATS_COMMUNICATORS).filter_map(|index| self.communicator(index)).collect()
    }

    fn communicator(&self, index: usize) -> Option<Communicator> {
        let at = offset_of!(Page, communicators) + index * STATS_COMMUNICATOR_SIZE;
        let number = || self.number(at);
        // An operation that is overwritten during the copy is the oldest one: what it was may be mixed with
        // what it is.
        let copy = || Communicator::of(&self.0.copy::<CommunicatorRecord>(at));
        let (_, communicator) = Generation::read(number, copy)??;
        Some(communicator)
    }

    /// Returns what connections have carried on the port with this index, in measured parts.
    pub fn carried(&self, port: usize) -> Carried {
        match port < STATS_PORTS {
            true => self.0.copy::<PortRecord>(record_at(port)).carried(),
            false => Carried::default(),
        }
    }

    /// Returns a number that changes when the state of a port does, and with each episode.
    pub fn events(&self) -> u64 {
        let revisions = (0..self.ports_used()).map(|index| self.state_revision(index));
        revisions.fold(self.number(offset_of!(Header, episodes)), u64::wrapping_add)
    }

    /// Reads the senders with a rail of SOUT and one of SUP, both on ports with a record, among these
    /// entries.
    pub fn senders(&self, among: Range<usize>) -> impl Iterator<Item = Sender> {
        (among.start..self.entries_used().min(among.end)).filter_map(|index| self.entry(index, sender)??.1)
    }

    /// Reads all connections, in the order of their entries. A connection that closes meanwhile may
    /// be missing.
    pub fn connections(&self) -> Vec<Connection> {
        (0..self.entries_used()).filter_map(|index| self.connection(index)).collect()
    }

    /// Reads an entry. Returns `None` if it is free, or if it is reused faster than it can be copied.
    fn connection(&self, index: usize) -> Option<Connection> {
        for _ in 0..TRIES {
            if let Some((generation, copied)) = self.entry(index, copy)? {
                return Some(Connection { index, generation, ..copied });
            }
        }
        None
    }

    fn header(&self) -> Header {
        self.0.copy(0)
    }

    fn number(&self, at: usize) -> u64 {
        self.0.copy::<AtomicU64>(at).into_inner()
    }

    fn ports_used(&self) -> usize {
        (get(&self.header().ports_used) as usize).min(STATS_PORTS)
    }

    /// Returns the number of entries that were ever used: all later ones are free.
    pub fn entries_used(&self) -> usize {
        (get(&self.header().used) as usize).min(STATS_ENTRIES)
    }

    fn state_revision(&self, port: usize) -> u64 {
        self.number(record_at(port) + offset_of!(PortRecord, revision))
    }

    /// Copies a port record. State and cause belong together unless they change all the time.
    fn record(&self, port: usize) -> PortRecord {
        let copy = || self.0.copy(record_at(port));
        let once = |_| Revision::read(|| self.state_revision(port), copy);
        (0..TRIES).find_map(once).unwrap_or_else(copy)
    }

    /// Copies an entry and calls `read` on it: [`Generation::read`].
    fn entry<T>(&self, index: usize, read: impl FnOnce(&Entry) -> T) -> Option<Option<(u64, T)>> {
        let at = offset_of!(Page, entries) + index * STATS_ENTRY_SIZE;
        let number = || self.number(at + offset_of!(Entry, generation));
        Generation::read(number, || read(&self.0.copy(at)))
    }
}

/// Returns the offset of a port record.
fn record_at(port: usize) -> usize {
    offset_of!(Page, ports) + port * STATS_PORT_SIZE
}

fn get(number: &AtomicU32) -> u32 {
    number.load(Ordering::Relaxed)
}

fn num(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn copy(entry: &Entry) -> Connection {
    let state = entry.state.load(Ordering::Acquire);
    let state = u8::try_from(state).ok().and_then(State::of);
    let failed = state == Some(State::Failed);
    let direction = Direction::of(entry.direction.load(Ordering::Relaxed));
    let rails = usize::from(entry.rail_count.load(Ordering::Acquire)).min(STATS_RAILS);
    let mut totals = Totals::of(entry);
    // The words of a copy are of slightly different moments.
    totals.done = totals.done.min(totals.requests);
    Connection {
        index: 0,
        generation: 0,
        state,
        direction,
        islands: Islands::of(entry.islands.load(Ordering::Relaxed)),
        data: Data::of(entry.data.load(Ordering::Relaxed)),
        traffic: Traffic::of(entry.traffic.load(Ordering::Relaxed)),
        since: num(&entry.since),
        failed_at: failed.then(|| num(&entry.failed_at)),
        reason: failed.then(|| entry.reason.read()),
        peer: entry.peer.read(),
        wait: Wait::of(num(&entry.wait)),
        totals,
        share: Some(get(&entry.share)).filter(|share| *share != NO_SHARE),
        rails: entry.rails[..rails].iter().map(|rail| copy_rail(rail, direction)).collect(),
    }
}

/// Copies what [`StatsPage::senders`] returns.
fn sender(entry: &Entry) -> Option<Sender> {
    if Direction::of(entry.direction.load(Ordering::Relaxed)) != Some(Direction::Send) {
        return None;
    }
    let rails = usize::from(entry.rail_count.load(Ordering::Relaxed)).min(STATS_RAILS);
    let port = |role| {
        let rail = entry.rails[..rails]
            .iter()
            .find(|rail| get(&rail.role) == role && lack(rail) != Some(Lack::LeftOut))?;
        (get(&rail.port) as usize).checked_sub(1)
    };
    let share = Some(get(&entry.share)).filter(|share| *share != NO_SHARE);
    Some(Sender { ports: [port(0)?, port(1)?], share })
}

fn lack(rail: &RailEntry) -> Option<Lack> {
    Lack::of(num(&rail.lack))
}

fn copy_rail(rail: &RailEntry, direction: Option<Direction>) -> Rail {
    let posted = num(&rail.posted);
    let given_up_at = Some(rail.given_up.load(Ordering::Acquire)).filter(|since| *since != 0);
    Rail {
        name: rail.name.read(),
        port: (get(&rail.port) as usize).checked_sub(1),
        role: get(&rail.role),
        bytes: (direction != Some(Direction::Receive)).then(|| num(&rail.bytes)),
        parts: num(&rail.parts),
        posted,
        done: num(&rail.done).min(posted),
        errors: num(&rail.errors),
        given_up_at,
        missing: given_up_at.map(|_| rail.missing.read()),
        lack: lack(rail),
    }
}
