//! The watchdog: it reads the counters of connections with several rails, and reports rails that
//! have stalled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::async_events::state::EventState;
use crate::async_events::watch::{CommWatch, RailCounts};
use crate::device::{HwCounters, Nic, PortState};
use crate::error::Result;
use crate::housekeeping::{Job, TICK};
use crate::proto;
use crate::stats::Reason;
use crate::watchdog::{Company, Evidence, Facts, HARDWARE_AGE, RailProgress, Sample};

/// How often counters are read while connections are active.
const OFTEN: Duration = Duration::from_millis(10);
/// Passes take at most one of so many parts of the time: with thousands of connections they are
/// rarer than [`OFTEN`].
const PART: u32 = 20;
/// How long counters are read often after the last activity. An activity that begins later is first
/// seen up to [`TICK`] late, and so is a fault of that time.
const LINGER: Duration = Duration::from_secs(10);
/// Waits begin anew after a pause of this length: the process was stopped, or starved.
const PAUSE: Duration = TICK.saturating_mul(2);

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
    /// By context and number of a port: its counters, and when they were read. Ports without
    /// counters stay in the map, and are not read again.
    hardware: HashMap<(usize, u8), (Instant, Option<HwCounters>)>,
}

impl Watchdog {
    pub(super) fn new(state: Arc<EventState>) -> Self {
        Self { state, memory: Mutex::default() }
    }

    /// Samples all comms.
    pub(super) fn pass(&self, now: Instant, limit: Duration) {
        let mut memory = self.memory.lock();
        let paused = memory.last.is_some_and(|last| now.saturating_duration_since(last) > PAUSE);
        memory.last = Some(now);
        for comm in self.state.comms_with_rails() {
            if comm.has_failover() {
                memory.watch(&comm, now, limit, paused);
            }
        }
        memory.took = now.elapsed();
    }
}

impl Memory {
    /// Samples one comm, and reports those of its rails that have stalled.
    fn watch(&mut self, comm: &CommWatch, now: Instant, limit: Duration, paused: bool) {
        let rails = comm.counts();
        let total: u64 = rails.iter().map(|rail| rail.done).sum();
        let mut progress = comm.progress.lock();
        for rail in &rails {
            let (done, outstanding) = (rail.done, rail.outstanding);
            let hardware = if outstanding > 0 { self.recent(&rail.nic, now) } else { None };
            let progress = &mut progress[rail.index];
            if progress.add(now, Sample { done, outstanding, others: total - done, hardware }) {
                self.active = Some(now);
            }
            if paused {
                progress.restart(now);
            }
        }
        let (mut stalled, mut late) = (Vec::new(), 0);
        // Most work requests of a receiver are not signalled: they complete with its ping.
        let signalled = comm.is_signalled();
        for rail in &rails {
            let of_rail = &progress[rail.index];
            if of_rail.is_judged(signalled) && of_rail.is_late(now, limit) {
                let facts = self.facts(rail, &rails, &progress, now, limit);
                if facts.is_stall() {
                    stalled.push((rail.index, describe(rail, &facts)));
                    continue;
                }
            }
            if of_rail.is_ping_due(now, limit, signalled) {
                late |= 1 << rail.index;
            }
        }
        proto::rails(late).for_each(|rail| progress[rail].ping(now, signalled));
        // A report takes other locks.
        drop(progress);
        if late != 0 {
            comm.request_ping(late);
        }
        stalled.iter().for_each(|(rail, why)| comm.rail_failed(*rail, Reason::Stall, why));
    }

    /// Returns what is known of a rail that is late.
    fn facts(
        &mut self,
        rail: &RailCounts,
        rails: &[RailCounts],
        progress: &[RailProgress],
        now: Instant,
        limit: Duration,
    ) -> Facts {
        let company = company(rail, rails, progress, now, limit);
        let mut facts = progress[rail.index].facts(now, limit, company, self.fresh(&rail.nic, now));
        if rail.nic.life().state() == PortState::Suspect {
            facts.evidence = Evidence::LinkDown;
        }
        facts
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

fn key(nic: &Nic) -> (usize, u8) {
    (nic.context().id(), nic.port().number)
}

/// Returns how the other rails of a comm are.
fn company(
    rail: &RailCounts,
    rails: &[RailCounts],
    progress: &[RailProgress],
    now: Instant,
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

    /// Rarely while no connection is active.
    fn interval(&self) -> Duration {
        let memory = self.memory.lock();
        if memory.is_active() { OFTEN.max(memory.took * PART) } else { TICK }
    }
}
