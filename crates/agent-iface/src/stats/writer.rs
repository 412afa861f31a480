//! Writes the page of this process: one entry per connection.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::layout::{Entry, Page};
use super::{
    Data, Direction, Event, Islands, STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_HEADER_SIZE, STATS_MAGIC,
    STATS_RAILS, STATS_SIZE, STATS_VERSION, State, page,
};

/// The page of this process. [`add`](Self::add) returns the entry through which a connection
/// counts.
#[derive(Debug)]
pub struct StatsWriter {
    page: &'static Page,
    pid: u32,
    /// Free entries with their current generation. The next one to use is last.
    free: Mutex<Vec<(usize, u64)>>,
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
    /// The index of the entry and its generation; `None` if no entry was free.
    place: Option<(usize, u64)>,
}

/// Returns the time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
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
            (&h.pid, pid),
        ] {
            place.store(value, Ordering::Relaxed);
        }
        h.size.store(STATS_SIZE as u64, Ordering::Relaxed);
        h.made.store(now(), Ordering::Relaxed);
        h.plugin.write(plugin);
        h.magic.store(STATS_MAGIC, Ordering::Release);
        Ok(Self { page, pid, free: Mutex::new((0..STATS_ENTRIES).rev().map(|index| (index, 0)).collect()) })
    }

    /// Adds a connection. If no entry is free, the page only counts it as hidden.
    pub fn add(&'static self, opening: &NewConnection<'_>) -> ConnectionEntry {
        let mut free = self.lock();
        let h = &self.page.header;
        h.opened.store(h.opened.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        change(&h.open, 1);
        change(&h.substituted, i32::from(opening.substituted));
        let place = free.pop().map(|(index, even)| {
            let odd = begin(&self.page.entries[index], even, opening);
            (index, odd)
        });
        match place {
            Some((index, _)) => {
                let used = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
                h.used.store(h.used.load(Ordering::Relaxed).max(used), Ordering::Release);
            }
            None => change(&h.hidden, 1),
        }
        ConnectionEntry { writer: self, place }
    }

    /// Counts an async event of an adapter. Any thread may call this.
    pub fn event(&self, event: Event) {
        self.page.header.events[usize::from(event.code())].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts failover episodes of connections, with the bytes that were sent again in them and the
    /// sum of their stalls. Any thread may call this.
    pub fn episodes(&self, count: u32, replayed: u64, stalled: Duration) {
        let h = &self.page.header;
        h.episodes.fetch_add(count.into(), Ordering::Relaxed);
        h.replayed.fetch_add(replayed, Ordering::Relaxed);
        let stalled = u64::try_from(stalled.as_nanos()).unwrap_or(u64::MAX);
        h.stalled.fetch_add(stalled, Ordering::Relaxed);
    }

    /// Counts a port or a route that came back into use. Any thread may call this.
    pub fn returned(&self) {
        self.page.header.returns.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, u64)>> {
        // Still valid after a panic: each use of the list is a single push or pop.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Initialises the entry of a new connection. Returns its generation.
fn begin(entry: &Entry, even: u64, opening: &NewConnection<'_>) -> u64 {
    let odd = entry.generation.prepare(even);
    entry.clear();
    let rails = &opening.rails[..opening.rails.len().min(STATS_RAILS)];
    entry.state.store(State::Open.code().into(), Ordering::Relaxed);
    entry.direction.store(opening.direction.code(), Ordering::Relaxed);
    entry.islands.store(opening.islands.code(), Ordering::Relaxed);
    entry.data.store(opening.data.code(), Ordering::Relaxed);
    entry.rail_count.store(u8::try_from(rails.len()).unwrap_or(0), Ordering::Relaxed);
    entry.since.store(now(), Ordering::Relaxed);
    entry.peer.write(opening.peer);
    for (place, (role, name)) in entry.rails.iter().zip(rails) {
        place.role.store((*role).into(), Ordering::Relaxed);
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
    /// Returns the entry; `None` if none was free.
    #[inline]
    pub fn entry(&self) -> Option<&'static Entry> {
        self.place.map(|(index, _)| &self.writer.page.entries[index])
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
        let mut free = self.writer.lock();
        let h = &self.writer.page.header;
        change(&h.open, -1);
        match self.place {
            Some((index, odd)) => {
                let even = self.writer.page.entries[index].generation.free(odd);
                free.push((index, even));
            }
            None => change(&h.hidden, -1),
        }
    }
}
