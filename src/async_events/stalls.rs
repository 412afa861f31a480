//! The watchdog: it reads the counters of connections with several rails, and reports rails that
//! have stalled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::RailSet;
use parking_lot::Mutex;

use crate::async_events::state::EventState;
use crate::async_events::watch::{CommWatch, Progress, RailCounts};
use crate::device::{HwCounters, Nic};
use crate::error::Result;
use crate::failover::PortState;
use crate::housekeeping::{Job, LINGER, TICK};
use crate::stats::Reason;
use crate::watchdog::{Company, Evidence, Facts, HARDWARE_AGE, Moment, RailProgress, Sample, Shared};

/// How often counters are read while connections are active.
const OFTEN: Duration = Duration::from_millis(10);
/// Passes take at most one of so many parts of the time: with thousands of connections they are
/// rarer than [`OFTEN`].
const PART: u32 = 20;
/// A pass that comes late counts for no more than so many times the interval: the process was
/// stopped, or starved.
const LATE: u32 = 2;

/// The watchdog of a process.
#[derive(Debug)]
pub(super) struct Watchdog {
    state: Arc<EventState>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// When the last pass was.
    last: Option<Instant>,
    /// How long it took.
    took: Duration,
    /// The last pass that found a rail active.
    active: Option<Instant>,
    /// By port: its counters, and when they were read. Ports without counters stay in the map, and
    /// are not read again.
    hardware: HashMap<PortKey, (Instant, Option<HwCounters>)>,
    /// By port: the longest backlog of its rails, at the last pass and at this one. A port may serve
    /// one connection after the other.
    backlogs: [HashMap<PortKey, Duration>; 2],
    /// By route: the last pass that found something completed.
    routes: HashMap<(PortKey, [u8; 16]), Instant>,
}

/// Context and number of a port.
type PortKey = (usize, u8);

impl Watchdog {
    pub(super) fn new(state: Arc<EventState>) -> Self {
        Self { state, memory: Mutex::default() }
    }

    /// Samples all comms.
    pub(super) fn pass(&self, now: Instant, limit: Duration) {
        let mut memory = self.memory.lock();
        let passed = memory.passed(now);
        memory.last = Some(now);
        memory.backlogs.swap(0, 1);
        memory.backlogs[1].clear();
        for comm in self.state.comms_with_rails() {
            if comm.has_failover() {
                memory.watch(&comm, now, passed, limit);
            }
        }
        memory.took = now.elapsed();
    }
}

impl Memory {
    /// Returns the time since the last pass as far as this one is on time.
    fn passed(&self, now: Instant) -> Duration {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        passed.min(self.interval() * LATE)
    }

    /// Samples one comm, and reports those of its rails that have stalled.
    fn watch(&mut self, comm: &CommWatch, instant: Instant, passed: Duration, limit: Duration) {
        // Before the counters, which show what these polls have found.
        let polls = comm.polls();
        // Under the lock: a rail that is made again begins at its counts.
        let mut guard = comm.progress.lock();
        let rails = comm.counts();
        let total: u64 = rails.iter().map(|rail| rail.done).sum();
        let Progress { watch, rails: progress } = &mut *guard;
        let polled = watch.advance(passed, polls);
        let now = watch.at(instant);
        for rail in &rails {
            let RailCounts { done, outstanding, posted, .. } = *rail;
            let hardware = if outstanding > 0 { self.recent(&rail.nic, instant) } else { None };
            let sample = Sample { done, outstanding, posted, others: total - done, hardware };
            if done != progress[rail.index].done() {
                self.routes.insert((key(&rail.nic), rail.peer), instant);
            }
            if progress[rail.index].add(now, sample) {
                self.active = Some(instant);
            }
            self.note_backlog(&rail.nic, progress[rail.index].backlog(speed(&rail.nic)));
        }
        let (mut stalled, mut late, mut is_silent) = (Vec::new(), RailSet::EMPTY, false);
        // Most work requests of a receiver are not signalled: they complete with its ping.
        let signalled = comm.is_signalled();
        for rail in &rails {
            let of_rail = &progress[rail.index];
            is_silent |= of_rail.is_judged(signalled) && of_rail.is_silent(now);
            // What has completed may lie in a queue that nobody has polled.
            if polled && of_rail.is_judged(signalled) && of_rail.is_late(now, limit) {
                let facts = self.facts(rail, &rails, progress, now, limit);
                if facts.is_stall() {
                    stalled.push((rail.index, describe(rail, &facts)));
                    continue;
                }
            }
            if of_rail.is_ping_due(now, limit, signalled) {
                late.insert(rail.index);
            }
        }
        late.iter().for_each(|rail| progress[rail].ping(now, signalled));
        // A report takes other locks.
        drop(guard);
        if !late.is_empty() {
            comm.request_ping(late);
        } else if is_silent {
            // The next call polls all queues, and time counts.
            comm.mark();
        }
        stalled.iter().for_each(|(rail, why)| comm.rail_failed(*rail, Reason::Stall, why));
    }

    /// Returns what is known of a rail that is late.
    fn facts(
        &mut self,
        rail: &RailCounts,
        rails: &[RailCounts],
        progress: &[RailProgress],
        now: Moment,
        limit: Duration,
    ) -> Facts {
        let company = company(rail, rails, progress, now, limit);
        let hardware = self.fresh(&rail.nic, now.instant);
        let port = key(&rail.nic);
        let backlog = self.backlogs.iter().filter_map(|of| of.get(&port)).max();
        let shared = Shared {
            backlog: backlog.copied().unwrap_or_default(),
            completed: self.routes.get(&(port, rail.peer)).copied(),
        };
        let mut facts = progress[rail.index].facts(now, limit, company, hardware, shared);
        if rail.nic.health().state() == PortState::Suspect {
            facts.evidence = Evidence::LinkDown;
        }
        facts
    }

    fn note_backlog(&mut self, nic: &Nic, backlog: Duration) {
        if !backlog.is_zero() {
            let longest = self.backlogs[1].entry(key(nic)).or_default();
            *longest = backlog.max(*longest);
        }
    }

    /// Returns the time from one pass to the next. It is long while no rail was active for [`LINGER`]:
    /// an activity that begins then is first seen up to [`TICK`] late, and so is a fault of that time.
    fn interval(&self) -> Duration {
        if self.is_active() { OFTEN.max(self.took * PART) } else { TICK }
    }

    /// Returns whether a rail was active lately, as of the last pass.
    fn is_active(&self) -> bool {
        let since = |(last, active): (Instant, Instant)| last.saturating_duration_since(active);
        self.last.zip(self.active).map(since).is_some_and(|idle| idle < LINGER)
    }

    /// Returns the counters of a port from lately, at most [`HARDWARE_AGE`] ago.
    fn recent(&mut self, nic: &Nic, now: Instant) -> Option<HwCounters> {
        match self.hardware.get(&key(nic)) {
            Some((_, None)) => None,
            Some((at, found)) if now.saturating_duration_since(*at) < HARDWARE_AGE => *found,
            _ => self.read(nic, now),
        }
    }

    /// Returns the present counters of a port, read once per pass.
    fn fresh(&mut self, nic: &Nic, now: Instant) -> Option<HwCounters> {
        match self.hardware.get(&key(nic)) {
            Some((_, None)) => None,
            Some((at, found)) if *at == now => *found,
            _ => self.read(nic, now),
        }
    }

    fn read(&mut self, nic: &Nic, now: Instant) -> Option<HwCounters> {
        let found = nic.hw_counters();
        self.hardware.insert(key(nic), (now, found));
        found
    }
}

fn key(nic: &Nic) -> PortKey {
    (nic.context().id(), nic.port().number)
}

/// Returns the speed of a rail on a port in bytes per second, if it was not measured on that rail:
/// what other connections have measured, or what the port reports.
fn speed(nic: &Nic) -> u64 {
    match nic.meter().goodput() {
        0 => u64::from(nic.port().speed) * 1_000_000 / 8,
        goodput => goodput,
    }
}

/// Returns how the other rails of a comm are.
fn company(
    rail: &RailCounts,
    rails: &[RailCounts],
    progress: &[RailProgress],
    now: Moment,
    limit: Duration,
) -> Company {
    let others = || rails.iter().filter(|other| other.index != rail.index);
    let is_stuck = |other: &RailCounts| progress[other.index].is_late(now, limit);
    if others().all(is_stuck) {
        Company::Stuck
    } else if others().all(|other| other.outstanding == 0) {
        Company::Drained
    } else {
        Company::Moving
    }
}

fn describe(rail: &RailCounts, facts: &Facts) -> String {
    let (ms, outstanding, others) = (facts.waited.as_millis(), rail.outstanding, facts.others);
    let evidence = match facts.evidence {
        Evidence::LinkDown => ", and its link is down",
        Evidence::Loss => ", and its port's hw_counters show lost packets",
        Evidence::NoLoss | Evidence::NotReady | Evidence::Unknown => "",
    };
    format!(
        "a rail completed nothing for {ms} ms with {outstanding} work requests outstanding, while the connection's other rails \
         completed {others}{evidence} (MPIB_STALL_MS={})",
        facts.limit.as_millis()
    )
}

/// Looks for rails that have stalled.
impl Job for Watchdog {
    fn run(&self) -> Result<()> {
        let limit = self.state.stall_limit();
        match limit.is_zero() {
            true => self.memory.lock().active = None,
            false => self.pass(Instant::now(), limit),
        }
        Ok(())
    }

    fn interval(&self) -> Option<Duration> {
        let memory = self.memory.lock();
        memory.is_active().then(|| memory.interval())
    }
}
