//! Measures one size while a rail fails and returns. The fault and its repair come in the middle of
//! a round, while messages are in flight.

use std::time::{Duration, Instant};

use super::{
    breaker::{Act, Breaker},
    flow::Round,
    measure::Measurement,
    plan::Fault,
    rails::{self, DATA},
    report::{Stage, StageKind},
    session::Session,
};
use crate::failure::{Failure, Kind};

/// Duration of a round, if there are enough slots.
const ROUND: Duration = Duration::from_millis(100);

/// Bytes of all rails after which one that has carried less than `DATA` carries none.
const ENOUGH: u64 = 32 * DATA;

/// State at the beginning of a stage.
pub(super) struct Since {
    pub(super) time: Instant,
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
        breaker: &Breaker,
    ) -> Result<Vec<Stage>, Failure> {
        round.groups = most.min(2 * round.depth);
        let started = Instant::now();
        self.lead_round(session, &round)?;
        let each = (started.elapsed() / round.groups as u32).max(Duration::from_nanos(1));
        let fitting = usize::try_from(ROUND.as_nanos() / each.as_nanos()).unwrap_or(most);
        round.groups = fitting.max(8 * round.depth).min(most);
        self.reset();
        let (time, limit) = (session.plan.time, session.plan.timeout.min(breaker.patience()));
        let mut stages = Vec::new();
        let mut stage = |kind, act: Option<Act>, over: &dyn Fn(&Since, u64) -> Result<bool, Failure>| {
            let since = self.begin();
            self.due = act.map(|act| (round.messages() / 2, act));
            self.stall = Duration::ZERO;
            loop {
                round.first += round.messages() as u64;
                self.lead_round(session, &round)?;
                let bytes = (self.messages - since.messages) * round.size as u64;
                if over(&since, bytes)? {
                    let stage = self.end(kind, &since, round.size);
                    let carried = stage.carried(&breaker.rail);
                    stages.push(stage);
                    return Ok::<u64, Failure>(carried);
                }
            }
        };
        let has_carried = |since: &Since| carried(since, &breaker.rail) >= DATA;
        // The time may be over before the rail has had its turn.
        let timed = |since: &Since, bytes| {
            Ok(since.time.elapsed() >= time && (bytes >= ENOUGH || has_carried(since)))
        };
        stage(StageKind::Before, None, &timed)?;
        stage(StageKind::Fails, Some(breaker.breaks()), &|since, _| {
            if breaker.is_broken()? {
                return Ok(true);
            }
            match since.time.elapsed() >= limit {
                true => Err(still_there(breaker, limit)),
                false => Ok(false),
            }
        })?;
        stage(StageKind::Without, None, &timed)?;
        let carried = stage(StageKind::Returns, Some(breaker.repairs()), &|since, _| {
            breaker.check_repair()?;
            Ok(has_carried(since) || since.time.elapsed() >= limit)
        })?;
        if carried >= DATA {
            stage(StageKind::After, None, &timed)?;
        }
        Ok(stages)
    }

    pub(super) fn begin(&self) -> Since {
        Since { time: Instant::now(), busy: self.busy, messages: self.messages, rails: rails::read() }
    }

    pub(super) fn end(&self, kind: StageKind, since: &Since, size: usize) -> Stage {
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

fn still_there(breaker: &Breaker, limit: Duration) -> Failure {
    let text = format!("{} is still in service {limit:?} after the request to take it out", breaker.rail);
    Failure::new(Kind::Timeout, text)
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
