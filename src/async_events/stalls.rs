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

/// How often counters are read while connections are busy.
const OFTEN: Duration = Duration::from_millis(10);
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
    /// Whether the last pass found work requests outstanding.
    busy: bool,
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
        (memory.last, memory.busy) = (Some(now), false);
        for comm in self.state.comms() {
            if comm.counters.is_some() && comm.has_failover() {
                memory.watch(&comm, now, limit, paused);
            }
        }
    }
}

impl Memory {
    /// Samples one comm, and reports those of its rails that have stalled.
    fn watch(&mut self, comm: &CommWatch, now: Instant, limit: Duration, paused: bool) {
        let rails = comm.counts();
        let total: u64 = rails.iter().map(|rail| rail.done).sum();
        let mut progress = comm.progress.lock();
        for rail in &rails {
            self.busy |= rail.outstanding > 0;
            let (done, outstanding) = (rail.done, rail.outstanding);
            let hardware = if outstanding > 0 { self.recent(&rail.nic, now) } else { None };
            let progress = &mut progress[rail.index];
            progress.add(now, Sample { done, outstanding, others: total - done, hardware });
            if paused {
                progress.restart(now);
            }
        }
        let (mut stalled, mut late) = (Vec::new(), 0);
        for rail in rails.iter().filter(|rail| progress[rail.index].is_late(now, limit)) {
            let company = company(rail, &rails, &progress, now, limit);
            let nic = &rail.nic;
            let mut facts = progress[rail.index].facts(now, limit, company, self.fresh(nic, now));
            if nic.life().state() == PortState::Suspect {
                facts.evidence = Evidence::LinkDown;
            }
            // Most work requests of a receiver are not signalled: they complete with its ping.
            let is_judged = comm.is_signalled() || progress[rail.index].is_pinged();
            if is_judged && facts.is_stall() {
                stalled.push((rail.index, describe(rail, &facts)));
            } else if !is_judged || facts.others == 0 {
                late |= 1 << rail.index;
            }
        }
        proto::rails(late).for_each(|rail| progress[rail].ping(now));
        // A report takes other locks.
        drop(progress);
        if late != 0 {
            comm.request_ping(late);
        }
        stalled.iter().for_each(|(rail, why)| comm.rail_failed(*rail, Reason::Stall, why));
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
        if !limit.is_zero() {
            self.pass(Instant::now(), limit);
        }
        Ok(())
    }

    /// Rarely while nothing is outstanding.
    fn interval(&self) -> Duration {
        if self.memory.lock().busy { OFTEN } else { TICK }
    }
}
