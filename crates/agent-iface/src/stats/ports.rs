//! The record of a port: its state, and the totals of all connections on it.

use std::mem::{offset_of, size_of};
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::layout::{RailEntry, Text};
use super::totals::{add, arithmetic};
use super::{
    Direction, FULL_SCALE, PortState, Reason, Revision, STALL_BOUNDS_MS, STALL_RANGES, STATS_PORT_SIZE,
    STATS_REASONS,
};

/// The record of one port in the page.
#[derive(Debug)]
#[repr(C)]
pub struct PortRecord {
    pub(super) name: Text<8>,
    pub(super) revision: Revision,
    state: AtomicU32,
    pub(super) connections: AtomicU32,
    since: AtomicU64,
    scale: AtomicU32,
    weight: AtomicU32,
    goodput: AtomicU64,
    _reserved: [AtomicU64; 3],
    // Of connections without an entry. The holder of the writer's lock writes them.
    bytes: AtomicU64,
    parts_sent: AtomicU64,
    parts_received: AtomicU64,
    posted: AtomicU64,
    done: AtomicU64,
    errors: AtomicU64,
    _pad: [AtomicU64; 2],
    // Of all connections. Any thread adds to them.
    episodes: [AtomicU64; 8],
    replayed: AtomicU64,
    stalled: AtomicU64,
    stalls: [AtomicU64; STALL_RANGES],
    measured: [AtomicU64; 2],
    queued: [AtomicU64; 2],
    waited: AtomicU64,
    _rest: [AtomicU64; 10],
    cause: Text<32>,
}

const _: () = {
    assert!(size_of::<PortRecord>() == STATS_PORT_SIZE && STATS_REASONS <= 8);
    assert!(offset_of!(PortRecord, state) == 72 && offset_of!(PortRecord, goodput) == 96);
    assert!(offset_of!(PortRecord, measured) == 392 && offset_of!(PortRecord, queued) == 408);
    assert!(offset_of!(PortRecord, bytes) == 128 && offset_of!(PortRecord, episodes) == 192);
    assert!(offset_of!(PortRecord, replayed) == 256 && offset_of!(PortRecord, stalls) == 272);
    assert!(offset_of!(PortRecord, cause) == 512);
};

/// What connections have counted on a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Message bytes that senders posted.
    pub bytes: u64,
    /// Messages or parts that senders posted.
    pub parts_sent: u64,
    /// Messages or parts that receivers received.
    pub parts_received: u64,
    /// Work requests posted.
    pub posted: u64,
    /// Work requests known to be complete.
    pub done: u64,
    /// Completions with an error.
    pub errors: u64,
}

arithmetic!(PortTotals { bytes, parts_sent, parts_received, posted, done, errors });

/// What all connections of a process have carried on a port in measured parts. The difference of two
/// such counts has the goodput of the port: what it carries for the whole process while it has
/// something to carry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// All measured parts.
    pub all: Measured,
    /// Those that waited for others on the port: they were posted before the completion before theirs.
    /// Their time has no latency in it.
    pub queued: Measured,
    /// The sum of the times that these have waited for the parts before them, in ns.
    pub waited: u64,
}

/// Parts that were completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Their bytes.
    pub bytes: u64,
    /// The time in which any of them was in flight, in ns. Idle time does not count.
    pub time: u64,
}

arithmetic!(Measured { bytes, time });

impl Carried {
    /// Fewer bytes do not show a goodput.
    pub const LEAST: u64 = 256 << 10;

    /// Returns the goodput in bytes/s; `None` if the port has carried too little. Parts that have
    /// waited count alone if there are enough of them.
    pub fn goodput(self) -> Option<u64> {
        self.queued.goodput().or_else(|| self.all.goodput())
    }
}

impl Measured {
    fn goodput(self) -> Option<u64> {
        let per_second = (u128::from(self.bytes) * 1_000_000_000).checked_div(self.time.into())?;
        (self.bytes >= Carried::LEAST).then(|| u64::try_from(per_second).unwrap_or(u64::MAX))
    }
}

impl AddAssign for Carried {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.queued += other.queued;
        self.waited = self.waited.wrapping_add(other.waited);
    }
}

impl Sub for Carried {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let waited = self.waited.wrapping_sub(before.waited);
        Self { all: self.all - before.all, queued: self.queued - before.queued, waited }
    }
}

/// A port as its process shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// HCA and port.
    pub name: String,
    /// State of the port; `None` if the number in the page is unknown.
    pub state: Option<PortState>,
    /// ns since 1970. Healthy: the first use or the last return. Otherwise: the first sign of the
    /// failure.
    pub since: u64,
    /// Cause of a state other than healthy.
    pub cause: Option<String>,
    /// Connections with a rail on the port.
    pub connections: u32,
    /// Scale of the port's weight, 0 to 1024.
    pub scale: u32,
    /// Weight where messages are split, relative to the other ports; `None` if it is not measured.
    pub weight: Option<u32>,
    /// Goodput in the last second, in bytes/s; `None` if it is not measured: [`Carried`].
    pub goodput: Option<u64>,
    /// What the goodput follows from.
    pub carried: Carried,
    /// What all connections have counted on the port, the closed ones included.
    pub totals: PortTotals,
    /// Failover episodes, indexed by the code of [`Reason`].
    pub episodes: [u64; STATS_REASONS],
    /// Bytes that were sent again in them.
    pub replayed: u64,
    /// Sum of the stalls of these episodes, in ns.
    pub stalled: u64,
    /// Number of stalls in each range: see [`STALL_BOUNDS_MS`].
    pub stalls: [u64; STALL_RANGES],
}

impl PortTotals {
    /// Returns what one rail has counted.
    pub(super) fn of(rail: &RailEntry, direction: Direction) -> Self {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // "done" before its total: the difference is never negative.
        let done = rail.done.load(Ordering::Acquire);
        let parts = get(&rail.parts);
        let (parts_sent, parts_received) = match direction {
            Direction::Send => (parts, 0),
            Direction::Receive => (0, parts),
        };
        let (bytes, posted, errors) = (get(&rail.bytes), get(&rail.posted), get(&rail.errors));
        Self { bytes, parts_sent, parts_received, posted, done, errors }
    }
}

impl PortRecord {
    /// Begins the use of the record.
    pub(super) fn begin(&self, name: &str, now: u64) {
        self.name.write(name);
        self.since.store(now, Ordering::Relaxed);
        self.scale.store(FULL_SCALE, Ordering::Relaxed);
    }

    /// Adds counts of connections without an entry.
    pub(super) fn add(&self, counts: &PortTotals) {
        let PortTotals { bytes, parts_sent, parts_received, posted, done, errors } = *counts;
        for (place, n) in [
            (&self.bytes, bytes),
            (&self.parts_sent, parts_sent),
            (&self.parts_received, parts_received),
            (&self.posted, posted),
            (&self.done, done),
            (&self.errors, errors),
        ] {
            add(place, n);
        }
    }

    /// Returns whether the record shows this state.
    pub(super) fn is(&self, state: PortState) -> bool {
        self.state.load(Ordering::Relaxed) == u32::from(state.code())
    }

    /// Records the state of the port, since when it has it, and its cause. The caller holds the
    /// writer's lock.
    pub(super) fn set_state(&self, state: PortState, since: u64, cause: &str) {
        self.revision.write(|| {
            self.state.store(state.code().into(), Ordering::Relaxed);
            self.since.store(since, Ordering::Relaxed);
            self.cause.write(cause);
        });
    }

    /// Adds a measured part that was completed, with the time that it adds to the time in which parts
    /// were in flight, and the time that it has waited for others, in ns. Any thread may call this.
    pub fn add_measured(&self, bytes: u64, time: u64, waited: u64) {
        let add = |[of_bytes, of_time]: &[AtomicU64; 2]| {
            of_bytes.fetch_add(bytes, Ordering::Relaxed);
            of_time.fetch_add(time, Ordering::Relaxed);
        };
        add(&self.measured);
        if waited > 0 {
            add(&self.queued);
            self.waited.fetch_add(waited, Ordering::Relaxed);
        }
    }

    /// Returns what connections have carried in measured parts. The numbers may be of slightly
    /// different moments.
    pub fn carried(&self) -> Carried {
        let read = |place: &[AtomicU64; 2]| {
            let [bytes, time] = place.each_ref().map(|number| number.load(Ordering::Relaxed));
            Measured { bytes, time }
        };
        let waited = self.waited.load(Ordering::Relaxed);
        Carried { all: read(&self.measured), queued: read(&self.queued), waited }
    }

    /// Records what the process has measured: the goodput in bytes/s and the weight where messages
    /// are split. 0 means not measured. One thread at a time may call this.
    pub fn measured(&self, goodput: u64, weight: u32) {
        self.goodput.store(goodput, Ordering::Relaxed);
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Records the scale of the port's weight, 0 to [`FULL_SCALE`].
    pub fn set_scale(&self, scale: u32) {
        self.scale.store(scale.min(FULL_SCALE), Ordering::Relaxed);
    }

    /// Counts a failover episode of a connection. Any thread may call this.
    pub fn episode(&self, reason: Reason, replayed: u64, stall: Duration) {
        let nanos = u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX);
        self.episodes[usize::from(reason.code())].fetch_add(1, Ordering::Relaxed);
        self.replayed.fetch_add(replayed, Ordering::Relaxed);
        self.stalled.fetch_add(nanos, Ordering::Relaxed);
        let range = STALL_BOUNDS_MS.iter().position(|bound| stall <= Duration::from_millis(*bound));
        self.stalls[range.unwrap_or(STALL_RANGES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the record. The totals are those of connections without an entry.
    pub(super) fn read(&self) -> Port {
        let num = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let get = |number: &AtomicU32| number.load(Ordering::Relaxed);
        let (since, cause) = (num(&self.since), self.cause.read());
        let state = u8::try_from(get(&self.state)).ok().and_then(PortState::of);
        let episodes = std::array::from_fn(|i| num(&self.episodes[i]));
        let done = self.done.load(Ordering::Acquire);
        Port {
            name: self.name.read(),
            state,
            since,
            cause: Some(cause).filter(|cause| !cause.is_empty()),
            connections: get(&self.connections),
            scale: get(&self.scale),
            weight: Some(get(&self.weight)).filter(|weight| *weight != 0),
            goodput: Some(num(&self.goodput)).filter(|goodput| *goodput != 0),
            carried: self.carried(),
            totals: PortTotals {
                bytes: num(&self.bytes),
                parts_sent: num(&self.parts_sent),
                parts_received: num(&self.parts_received),
                posted: num(&self.posted),
                done,
                errors: num(&self.errors),
            },
            episodes,
            replayed: num(&self.replayed),
            stalled: num(&self.stalled),
            stalls: self.stalls.each_ref().map(num),
        }
    }
}
