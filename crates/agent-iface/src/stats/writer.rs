//! The process that counts: its page, and an entry for each of its connections.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::layout::{Entry, Page};
use super::{
    Data, Direction, Event, Islands, STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_HEADER_SIZE, STATS_MAGIC,
    STATS_RAILS, STATS_SIZE, STATS_VERSION, State, page,
};

/// The page of this process. Counting goes through the entries that it gives.
#[derive(Debug)]
pub struct StatsWriter {
    page: &'static Page,
    pid: u32,
    /// Entries not in use and what stands there as their generation, the next one last.
    free: Mutex<Vec<(usize, u64)>>,
}

/// What is known of a connection when it begins.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection<'a> {
    /// Which way its data goes.
    pub direction: Direction,
    /// Where its peer is.
    pub islands: Islands,
    /// Which rails may carry data.
    pub data: Data,
    /// The peer, in words; cut at 128 bytes.
    pub peer: &'a str,
    /// Of each rail its index in the device, and its HCA and port; at most [`STATS_RAILS`] count.
    pub rails: &'a [(u8, &'a str)],
    /// It uses a rail that is not of the device that was asked for.
    pub substituted: bool,
}

/// A connection that is counted, until this is dropped.
#[derive(Debug)]
pub struct ConnectionEntry {
    writer: &'static StatsWriter,
    /// The entry and its generation; `None` where none was free.
    place: Option<(usize, u64)>,
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl StatsWriter {
    /// The page of this process, made where there is none yet; a process that was forked gets one of its own. It stays as
    /// long as the process. `plugin` is the plugin's version.
    ///
    /// # Errors
    /// What the system says.
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

    /// Gives a connection an entry; where none is free, the connection is only counted as one that is not shown.
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

    /// An adapter of the process reported something. May be called by any thread.
    pub fn event(&self, event: Event) {
        self.page.header.events[usize::from(event.code())].fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, u64)>> {
        // The list is whole after a panic: each use is one push or pop.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new connection's entry, from zero; gives its generation.
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

/// Under the writer's lock.
fn change(number: &AtomicU32, by: i32) {
    number.store(number.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

impl ConnectionEntry {
    /// Where it is counted; `None` where no entry was free.
    #[inline]
    pub fn entry(&self) -> Option<&'static Entry> {
        self.place.map(|(index, _)| &self.writer.page.entries[index])
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
