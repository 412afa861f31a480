//! Writes the page of this process: one entry per connection, and the totals.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::layout::{Entry, Page};
use super::operations::Operations;
use super::ports::{PortRecord, PortTotals};
use super::totals::Totals;
use super::{
    Data, Direction, Event, Islands, Lack, PortState, Reason, STATS_ENTRIES, STATS_ENTRY_SIZE,
    STATS_HEADER_SIZE, STATS_MAGIC, STATS_PORT_SIZE, STATS_PORTS, STATS_RAILS, STATS_SIZE, STATS_VERSION,
    State, Traffic, page,
};

/// The page of this process. [`add`](Self::add) returns the entry through which a connection
/// counts.
#[derive(Debug)]
pub struct StatsWriter {
    page: &'static Page,
    pid: u32,
    book: Mutex<Book>,
}

/// What the writer's lock guards, beside the totals in the page.
#[derive(Debug)]
struct Book {
    /// Free entries with their current generation. The next one to use is last.
    free: Vec<(usize, u64)>,
    /// Names of the ports that have a record, in the order of the records.
    ports: Vec<String>,
    /// Connections beyond the last entry.
    unlisted: Vec<Unlisted>,
}

/// A connection without an entry in the page.
#[derive(Debug)]
struct Unlisted {
    entry: UnlistedEntry,
    used: Used,
    /// What the totals have of it.
    counted: Counts,
}

/// What a connection uses.
#[derive(Debug, Clone, Copy)]
struct Used {
    direction: Direction,
    /// By rail: the port record, from 1; 0 if the port has none.
    ports: [u8; STATS_RAILS],
}

/// What one connection has counted.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    all: Totals,
    rails: [PortTotals; STATS_RAILS],
}

/// The properties of a new connection.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection<'a> {
    /// Direction of the data.
    pub direction: Direction,
    /// Location of the peer.
    pub islands: Islands,
    /// Rails that may carry data.
    pub data: Data,
    /// What the connection is for.
    pub traffic: Traffic,
    /// Name of the peer, truncated to 128 bytes.
    pub peer: &'a str,
    /// Index in the device, and HCA and port, of each rail. Only the first [`STATS_RAILS`] are
    /// shown.
    pub rails: &'a [(u8, &'a str)],
    /// Whether it uses a rail of another device than NCCL requested.
    pub substituted: bool,
}

/// The place where a connection counts. Dropping it removes the connection from the page.
#[derive(Debug)]
pub struct ConnectionEntry {
    writer: &'static StatsWriter,
    entry: &'static Entry,
    used: Used,
    /// The index of the entry and its generation; `None` if no entry was free.
    place: Option<(usize, u64)>,
}

/// Returns the time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    nanos(SystemTime::now())
}

pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl StatsWriter {
    /// Returns the page of this process, and creates it on the first call. A forked process gets
    /// its own page. The page stays until the process ends. `plugin` is the version of the plugin.
    ///
    /// # Errors
    /// The page cannot be created.
    pub fn for_this_process(plugin: &str) -> io::Result<&'static Self> {
        static CURRENT: Mutex<Option<&'static StatsWriter>> = Mutex::new(None);
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        match *current {
            Some(writer) if writer.pid == std::process::id() => Ok(writer),
            _ => {
                let writer = Box::leak(Box::new(Self::new(plugin)?));
                *current = Some(writer);
                Ok(writer)
            }
        }
    }

    /// Returns NCCL's communicators in the page.
    pub fn operations(&self) -> Operations {
        Operations::new(self.page)
    }

    /// Returns the descriptor of this process's page, to be passed to a reader; `None` without a page.
    pub fn descriptor() -> Option<BorrowedFd<'static>> {
        page::descriptor()
    }

    fn new(plugin: &str) -> io::Result<Self> {
        let page = page::create()?;
        let pid = std::process::id();
        let h = &page.header;
        let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        for (place, value) in [
            (&h.version, STATS_VERSION),
            (&h.header_size, whole(STATS_HEADER_SIZE)),
            (&h.entry_size, whole(STATS_ENTRY_SIZE)),
            (&h.entries, whole(STATS_ENTRIES)),
            (&h.rails, whole(STATS_RAILS)),
            (&h.ports, whole(STATS_PORTS)),
            (&h.port_size, whole(STATS_PORT_SIZE)),
            (&h.pid, pid),
        ] {
            place.store(value, Ordering::Relaxed);
        }
        h.size.store(STATS_SIZE as u64, Ordering::Relaxed);
        h.made.store(now(), Ordering::Relaxed);
        h.plugin.write(plugin);
        h.magic.store(STATS_MAGIC, Ordering::Release);
        let free = (0..STATS_ENTRIES).rev().map(|index| (index, 0)).collect();
        let book = Book { free, ports: Vec::new(), unlisted: Vec::new() };
        Ok(Self { page, pid, book: Mutex::new(book) })
    }

    /// Sets the name of the job, cut after 40 bytes; empty if the process has none.
    pub fn name_job(&self, name: &str) {
        self.page.header.job.write(name);
    }

    /// Adds a connection. If no entry is free, the page shows it in the totals only.
    pub fn add(&'static self, opening: &NewConnection<'_>) -> ConnectionEntry {
        let mut book = self.lock();
        let h = &self.page.header;
        h.opened.store(h.opened.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        change(&h.open, 1);
        change(&h.substituted, i32::from(opening.substituted));
        let used = self.used(&mut book, opening);
        self.change_connections(&used, 1);
        let Some((index, even)) = book.free.pop() else {
            change(&h.hidden, 1);
            let unlisted = UnlistedEntry::new();
            let entry = unlisted.entry();
            book.unlisted.push(Unlisted { entry: unlisted, used, counted: Counts::default() });
            return ConnectionEntry { writer: self, entry, used, place: None };
        };
        let entry = &self.page.entries[index];
        let odd = begin(entry, even, opening, &used);
        let count = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        h.used.store(h.used.load(Ordering::Relaxed).max(count), Ordering::Release);
        ConnectionEntry { writer: self, entry, used, place: Some((index, odd)) }
    }

    /// Returns the record of a port, which is added if the page does not have it. Returns `None` if
    /// all records are in use.
    pub fn port(&self, name: &str) -> Option<&'static PortRecord> {
        let index = self.port_number(&mut self.lock(), name).checked_sub(1)?;
        Some(&self.page.ports[usize::from(index)])
    }

    /// Records the state of a port. `cause` is the cause of a state other than healthy, with the time
    /// of the first sign. Any thread may call this.
    pub fn port_state(&self, name: &str, state: PortState, cause: Option<(&str, SystemTime)>) {
        let mut book = self.lock();
        let Some(index) = self.port_number(&mut book, name).checked_sub(1) else { return };
        let record = &self.page.ports[usize::from(index)];
        if !record.is(state) {
            let (cause, since) = cause.map_or(("", now()), |(cause, since)| (cause, nanos(since)));
            record.set_state(state, since, cause);
        }
    }

    /// Adds what the connections without an entry have counted since the last call to the totals.
    /// Call this now and then: other processes cannot read the counters of these connections.
    pub fn count_unlisted(&self) {
        for unlisted in &mut self.lock().unlisted {
            self.count(unlisted);
        }
    }

    fn count(&self, unlisted: &mut Unlisted) {
        let now = Counts::of(unlisted.entry.entry(), unlisted.used.direction);
        self.add_counts(&unlisted.used, &now, &unlisted.counted);
        unlisted.counted = now;
    }

    /// Adds what a connection has counted since `before` to the totals. The caller holds the lock.
    fn add_counts(&self, used: &Used, now: &Counts, before: &Counts) {
        let direction = usize::from(used.direction == Direction::Receive);
        self.page.header.totals[direction].add(&(now.all - before.all));
        for (rail, port) in used.ports.iter().enumerate() {
            if let Some(index) = port.checked_sub(1) {
                self.page.ports[usize::from(index)].add(&(now.rails[rail] - before.rails[rail]));
            }
        }
    }

    /// Returns the records of a new connection's ports.
    fn used(&self, book: &mut Book, opening: &NewConnection<'_>) -> Used {
        let mut ports = [0; STATS_RAILS];
        for (port, (_, name)) in ports.iter_mut().zip(opening.rails) {
            *port = self.port_number(book, name);
            if *port == 0 {
                change(&self.page.header.ports_missing, 1);
            }
        }
        Used { direction: opening.direction, ports }
    }

    /// Returns the number of a port's record, from 1, or 0 if all records are in use.
    fn port_number(&self, book: &mut Book, name: &str) -> u8 {
        let index = book.ports.iter().position(|known| known == name).unwrap_or_else(|| {
            let index = book.ports.len();
            if let Some(record) = self.page.ports.get(index) {
                book.ports.push(name.to_owned());
                record.begin(name, now());
                let count = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
                self.page.header.ports_used.store(count, Ordering::Release);
            }
            index
        });
        if index < STATS_PORTS { u8::try_from(index + 1).unwrap_or(0) } else { 0 }
    }

    /// Changes the number of connections on the ports of a connection.
    fn change_connections(&self, used: &Used, by: i32) {
        for (i, port) in used.ports.iter().enumerate() {
            // Several rails of a connection may use one port.
            if let Some(index) = port.checked_sub(1)
                && !used.ports[..i].contains(port)
            {
                change(&self.page.ports[usize::from(index)].connections, by);
            }
        }
    }

    /// Counts an async event of an adapter. Any thread may call this.
    pub fn event(&self, event: Event) {
        self.page.header.events[usize::from(event.code())].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failover episode of a connection that began on a port, with the bytes that were sent
    /// again in it and its stall. Any thread may call this.
    pub fn episode(&self, port: &str, reason: Reason, replayed: u64, stall: Duration) {
        let h = &self.page.header;
        h.episodes.fetch_add(1, Ordering::Relaxed);
        h.replayed.fetch_add(replayed, Ordering::Relaxed);
        let nanos = u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX);
        h.stalled.fetch_add(nanos, Ordering::Relaxed);
        if let Some(record) = self.port(port) {
            record.episode(reason, replayed, stall);
        }
    }

    /// Counts a port or a route that came back into use. Any thread may call this.
    pub fn returned(&self) {
        self.page.header.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame of a control connection with a wrong authentication tag. Any thread may call
    /// this.
    pub fn forged(&self) {
        self.page.header.forged.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // Still valid after a panic: nothing between two changes of a list can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn of(entry: &Entry, direction: Direction) -> Self {
        Self {
            all: Totals::of(entry),
            rails: entry.rails.each_ref().map(|rail| PortTotals::of(rail, direction)),
        }
    }
}

/// Initialises the entry of a new connection. Returns its generation.
fn begin(entry: &Entry, even: u64, opening: &NewConnection<'_>, used: &Used) -> u64 {
    let odd = entry.generation.prepare(even);
    entry.clear();
    let rails = &opening.rails[..opening.rails.len().min(STATS_RAILS)];
    entry.state.store(State::Open.code().into(), Ordering::Relaxed);
    entry.direction.store(opening.direction.code(), Ordering::Relaxed);
    entry.islands.store(opening.islands.code(), Ordering::Relaxed);
    entry.data.store(opening.data.code(), Ordering::Relaxed);
    entry.traffic.store(opening.traffic.code(), Ordering::Relaxed);
    entry.rail_count.store(u8::try_from(rails.len()).unwrap_or(0), Ordering::Relaxed);
    entry.since.store(now(), Ordering::Relaxed);
    entry.peer.write(opening.peer);
    for ((place, (role, name)), port) in entry.rails.iter().zip(rails).zip(used.ports) {
        place.role.store((*role).into(), Ordering::Relaxed);
        place.port.store(port.into(), Ordering::Relaxed);
        place.name.write(name);
    }
    entry.generation.publish(odd);
    odd
}

/// Changes a header field. The caller holds the writer's lock.
fn change(number: &AtomicU32, by: i32) {
    number.store(number.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

impl ConnectionEntry {
    /// Returns the counters of the connection.
    #[inline]
    pub fn entry(&self) -> &'static Entry {
        self.entry
    }

    /// Adds a rail that the connection expects and never uses, with the reason. The index is that of
    /// the rail in its device, `name` its HCA and port.
    pub fn leave_out(&self, index: u8, name: &str, why: &str) {
        let port = self.writer.port_number(&mut self.writer.lock(), name);
        let count = self.entry.rail_count.load(Ordering::Relaxed);
        let Some(place) = self.entry.rails.get(usize::from(count)) else { return };
        place.role.store(index.into(), Ordering::Relaxed);
        place.port.store(port.into(), Ordering::Relaxed);
        place.name.write(name);
        place.missing(Some((Lack::LeftOut, why)));
        self.entry.rail_count.store(count + 1, Ordering::Release);
    }

    /// Returns whether the page shows the connection with its own entry.
    pub fn is_listed(&self) -> bool {
        self.place.is_some()
    }
}

/// Counters of a connection in no page, for readers in this process. Dropping it frees the entry
/// for another connection of the process.
#[derive(Debug)]
pub struct UnlistedEntry(&'static Entry);

/// Unlisted entries that no connection uses.
static UNLISTED: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

impl UnlistedEntry {
    /// Takes an entry, with all counters zero. There are never more of them than connections at one
    /// time.
    #[expect(clippy::new_without_default, reason = "it takes a shared resource")]
    pub fn new() -> Self {
        let free = UNLISTED.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let entry = free.unwrap_or_else(|| Box::leak(Box::default()));
        entry.clear();
        Self(entry)
    }

    /// Returns the entry.
    #[inline]
    pub fn entry(&self) -> &'static Entry {
        self.0
    }
}

impl Drop for UnlistedEntry {
    fn drop(&mut self) {
        UNLISTED.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let Self { writer, entry, used, place } = self;
        let mut book = writer.lock();
        let h = &writer.page.header;
        change(&h.open, -1);
        writer.change_connections(used, -1);
        let Some((index, odd)) = *place else {
            change(&h.hidden, -1);
            let at = book.unlisted.iter().position(|one| std::ptr::eq(one.entry.entry(), *entry));
            if let Some(at) = at {
                writer.count(&mut book.unlisted.swap_remove(at));
            }
            return;
        };
        let counts = Counts::of(entry, used.direction);
        let even = h.revision.write(|| {
            writer.add_counts(used, &counts, &Counts::default());
            entry.generation.free(odd)
        });
        book.free.push((index, even));
    }
}
