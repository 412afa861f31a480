//! Measures one size while a rail fails and returns. The fault and its repair come in the middle of
//! a round, while messages are in flight.

use std::time::{Duration, Instant};

use super::{
    flow::Round,
    measure::Measurement,
    plan::Fault,
    rails,
    report::{Stage, StageKind},
    session::Session,
};
use crate::failure::{Failure, Kind};

/// Duration of a round, if there are enough slots.
const ROUND: Duration = Duration::from_millis(100);
/// Longest wait for the rail's return, unless the plan's limit is shorter.
const RETURN: Duration = Duration::from_secs(20);
/// Bytes of a rail that are data, not CTS writes or probes.
const DATA: u64 = 1 << 20;

/// State at the beginning of a stage.
struct Since {
    time: Instant,
    busy: Duration,
    messages: u64,
    rails: Option<rails::Counters>,
}

impl Measurement<'_> {
    /// Leads as end A through all stages. The last one is absent if the rail has not returned
    /// in time.
    pub(super) fn lead_through(
        &mut self,
        session: &mut Session<'_>,
        mut round: Round,
        most: usize,
        fault: &Fault,
    ) -> Result<Vec<Stage>, Failure> {
        round.groups = most.min(2 * round.depth);
        let started = Instant::now();
        self.lead_round(session, &round)?;
        let each = (started.elapsed() / round.groups as u32).max(Duration::from_nanos(1));
        let fitting = usize::try_from(ROUND.as_nanos() / each.as_nanos()).unwrap_or(most);
        round.groups = fitting.max(8 * round.depth).min(most);
        self.reset();
        check_device(fault)?;

        let (time, limit) = (session.plan.time, session.plan.timeout.min(RETURN));
        let mut stages = Vec::new();
        let mut stage = |kind, script: Option<String>, over: &dyn Fn(&Since) -> bool| {
            let since = self.begin();
            self.due = script.map(|script| (round.messages() / 2, script));
            self.stall = Duration::ZERO;
            loop {
                round.first += round.messages() as u64;
                self.lead_round(session, &round)?;
                if over(&since) {
                    let stage = self.end(kind, &since, round.size);
                    let carried = stage.carried(&fault.device);
                    stages.push(stage);
                    return Ok::<u64, Failure>(carried);
                }
            }
        };
        let timed = |since: &Since| since.time.elapsed() >= time;
        stage(StageKind::Before, None, &timed)?;
        stage(StageKind::Fails, Some(fault.script()), &|_| true)?;
        stage(StageKind::Without, None, &timed)?;
        let returned = |since: &Since| carried(since, &fault.device) >= DATA;
        let carried = stage(StageKind::Returns, Some(fault.repair()), &|since| {
            returned(since) || since.time.elapsed() >= limit
        })?;
        if carried >= DATA {
            stage(StageKind::After, None, &timed)?;
        }
        Ok(stages)
    }

    fn begin(&self) -> Since {
        Since { time: Instant::now(), busy: self.busy, messages: self.messages, rails: rails::read() }
    }

    fn end(&self, kind: StageKind, since: &Since, size: usize) -> Stage {
        let messages = self.messages - since.messages;
        let (bytes, busy) = (messages * size as u64, (self.busy - since.busy).as_secs_f64());
        Stage {
            kind,
            seconds: since.time.elapsed().as_secs_f64(),
            messages,
            bytes,
            gigabytes_per_second: if busy > 0.0 { bytes as f64 / busy / 1e9 } else { 0.0 },
            stall_ns: u64::try_from(self.stall.as_nanos()).unwrap_or(u64::MAX),
            rails: since.rails.as_ref().and_then(rails::since),
        }
    }
}

/// Checks that softverbs counts the bytes of the fault's device.
fn check_device(fault: &Fault) -> Result<(), Failure> {
    let known = rails::read().unwrap_or_default();
    if known.contains_key(&fault.device) {
        return Ok(());
    }
    let names: Vec<_> = known.into_keys().collect();
    let text = format!("--fault {}: no such device; found {}", fault.script(), names.join(", "));
    Err(Failure::new(Kind::Usage, text))
}

/// Returns the bytes that a rail has sent since the beginning of the stage.
fn carried(since: &Since, device: &str) -> u64 {
    let rails = since.rails.as_ref().and_then(rails::since).unwrap_or_default();
    rails.iter().filter(|rail| rail.name == device).map(|rail| rail.bytes).sum()
}

/// Returns the failure for a rail that has not returned.
pub(super) fn missing(stages: &[Stage], fault: &Fault) -> Option<Failure> {
    let last = stages.last()?;
    (last.kind == StageKind::Returns).then(|| {
        let text = format!("{} carries no data {:.1} s after its repair", fault.device, last.seconds);
        Failure::new(Kind::Timeout, text)
    })
}
