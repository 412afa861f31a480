//! What the statistics page of a process shows of its rails.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::stats::{Connection, Direction, StatsPage, pages_of};

/// How often a process is searched for its pages until there is one.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// Fewer bytes on a rail between two readings say nothing of its goodput.
const LEAST_BYTES: u64 = 256 << 10;

/// What one reading shows of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Ports of SOUT and SUP.
    pub ports: Option<[String; 2]>,
    /// The share that the process has used last.
    pub share: Option<u16>,
    /// Goodput of SOUT and SUP since the reading before, in bytes per second; `None` if a rail has
    /// carried too little.
    pub goodput: [Option<u64>; 2],
}

/// Readings that make one observation.
pub const READINGS: u32 = 5;
/// A process with more connections is read once per observation: they show at once what few show in
/// several readings, and reading them costs more.
const FEW: usize = 64;

/// Reads the pages of one process.
#[derive(Debug)]
pub struct Observer {
    pid: u32,
    pages: Vec<StatsPage>,
    searched: Option<Instant>,
    /// Bytes that each connection had put on its two rails at the last reading, by page, entry and
    /// generation.
    last: HashMap<(usize, usize, u64), [u64; 2]>,
    since: Option<Instant>,
    /// Calls of [`read`](Self::read) since the last observation.
    calls: u32,
    sums: Sums,
}

/// What the readings since the last observation show of SOUT and SUP.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    bytes: [u64; 2],
    /// How often a connection had work requests in flight, on either rail.
    active: u32,
    /// How often a connection had work requests in flight on this rail.
    busy: [u32; 2],
}

impl Observer {
    /// Observes a process. It need not have a page yet.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            pages: Vec::new(),
            searched: None,
            last: HashMap::new(),
            since: None,
            calls: 0,
            sums: Sums::default(),
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether nothing was ever read.
    pub fn is_new(&self) -> bool {
        self.since.is_none()
    }

    /// Reads the pages. Returns what they show, and the time since the observation before, with the
    /// first and then with every fifth call.
    pub fn read(&mut self, now: Instant) -> Option<(Observation, Duration)> {
        self.search(now);
        if self.pages.is_empty() {
            return None;
        }
        self.calls += 1;
        let due = self.since.is_none() || self.calls >= READINGS;
        if !due && self.last.len() > FEW {
            return None;
        }
        let mut seen = Observation::default();
        let mut last = HashMap::new();
        for (page, connection) in connections(&self.pages) {
            let Some(rails) = rails(&connection) else { continue };
            seen.share = connection.share.and_then(|share| u16::try_from(share).ok()).or(seen.share);
            let key = (page, connection.index, connection.generation);
            let before = self.last.get(&key).copied().unwrap_or(rails.bytes);
            self.sums.add(before, &rails);
            last.insert(key, rails.bytes);
            seen.ports = Some(rails.ports);
        }
        self.last = last;
        if !due {
            return None;
        }
        self.calls = 0;
        let since = self.since.replace(now).unwrap_or(now);
        seen.goodput = std::mem::take(&mut self.sums).goodput(now - since);
        Some((seen, now - since))
    }

    fn search(&mut self, now: Instant) {
        let due = self.searched.is_none_or(|at| now >= at + SEARCH_EVERY);
        if self.pages.is_empty() && due && self.pid != 0 {
            self.searched = Some(now);
            self.pages = pages_of(self.pid).unwrap_or_default();
        }
    }
}

impl Sums {
    /// Adds one connection, which had put `before` on its rails at the reading before.
    fn add(&mut self, before: [u64; 2], rails: &TwoRails) {
        self.active += u32::from(rails.in_flight != [0, 0]);
        for (rail, before) in before.into_iter().enumerate() {
            self.bytes[rail] += rails.bytes[rail].saturating_sub(before);
            self.busy[rail] += u32::from(rails.in_flight[rail] > 0);
        }
    }

    /// Returns the goodput of both rails: their bytes over the time in which they were busy. That
    /// time is the part of the readings of active connections that have found work requests in flight
    /// on the rail. A rail that ends its part of each transfer early is busy less often.
    fn goodput(self, elapsed: Duration) -> [Option<u64>; 2] {
        let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        [0, 1].map(|i| {
            if us == 0 || self.bytes[i] < LEAST_BYTES {
                return None;
            }
            let rate = u128::from(self.bytes[i]) * 1_000_000 / u128::from(us);
            let rate = rate * u128::from(self.active + 1) / u128::from(self.busy[i] + 1);
            Some(u64::try_from(rate).unwrap_or(u64::MAX))
        })
    }
}

struct TwoRails {
    ports: [String; 2],
    bytes: [u64; 2],
    in_flight: [u64; 2],
}

fn connections(pages: &[StatsPage]) -> impl Iterator<Item = (usize, Connection)> {
    pages.iter().enumerate().flat_map(|(page, p)| p.connections().into_iter().map(move |c| (page, c)))
}

/// Returns the rails of a sender with SOUT and SUP.
fn rails(connection: &Connection) -> Option<TwoRails> {
    if connection.direction == Some(Direction::Receive) {
        return None;
    }
    let [sout, sup] = [0, 1].map(|role| connection.rails.iter().find(|rail| rail.role == role));
    let (sout, sup) = (sout?, sup?);
    Some(TwoRails {
        ports: [sout.name.clone(), sup.name.clone()],
        bytes: [sout.bytes?, sup.bytes?],
        in_flight: [sout.in_flight(), sup.in_flight()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_bytes_over_the_time_in_which_a_rail_is_busy() {
        let second = Duration::from_secs(1);
        let sums = |bytes, busy| Sums { bytes, active: 5, busy };
        let both = sums([4 << 30, 2 << 30], [5, 5]);
        assert_eq!(both.goodput(second), [Some(4 << 30), Some(2 << 30)]);
        // SUP was idle half of the time.
        let half = sums([4 << 30, 2 << 30], [5, 2]);
        assert_eq!(half.goodput(second), [Some(4 << 30), Some(4 << 30)]);
        assert_eq!(sums([4 << 30, 1], [5, 5]).goodput(second)[1], None, "too little to know");
        assert_eq!(both.goodput(Duration::ZERO), [None, None]);
    }

    #[test]
    fn a_process_without_a_page_shows_nothing() {
        let now = Instant::now();
        assert_eq!(Observer::new(0).read(now), None);
        assert_eq!(Observer::new(std::process::id()).read(now), None);
    }
}
