//! Faults of the rails while collectives run. The ranks repeat their tests until the faults are over.

use std::{
    io,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use softcuda::world::Director;

use super::observe::{Fabric, Requests, Traffic};
use crate::{
    failure::{Failure, Result},
    stage::RAILS,
};

/// How long a fault lasts if the collective waits for its end: on devices of one rail.
const LASTS: Duration = Duration::from_secs(1);
/// Pause between two readings of the counts of softverbs.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a repaired rail may take until it carries data again.
const RETURN: Duration = Duration::from_secs(20);
/// Laps in which a fault must strike.
const LAPS: u32 = 3;

/// What happens to a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// The link of a rail goes down, and up again.
    LinkDown,
    /// A rail swallows all packets, without an event, and heals.
    Silence,
    /// The links of both rails of rank 0 go down for good: all ranks must get an asynchronous error.
    NoRail,
}

impl Fault {
    /// Returns the fault in the syntax of softverbs.
    fn script(self) -> &'static str {
        match self {
            Self::LinkDown | Self::NoRail => "link=down",
            Self::Silence => "silence=both",
        }
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::LinkDown => "link down and back",
            Self::Silence => "silence and back",
            Self::NoRail => "both links down",
        }
    }
}

/// A rail of a rank.
#[derive(Debug, Clone, Copy)]
struct Target {
    rank: usize,
    rail: usize,
}

/// Where a run is.
#[derive(Debug)]
enum Phase {
    /// The first lap makes the connections.
    Start,
    /// A lap without a fault shows how many work requests it has: the targets' counts before.
    Count(Vec<u64>),
    /// The faults wait for their work requests.
    Armed { before: Traffic, struck: Vec<u64>, laps: u32 },
    /// The faults have struck.
    Broken { before: Traffic, since: Instant },
    /// The rail is repaired. `back` has the counts when it had returned.
    Repaired { before: Traffic, since: Instant, back: Option<Traffic> },
    /// All faults are over, or something is wrong.
    Over,
}

/// Injects the faults of a run and follows their effects.
#[derive(Debug)]
pub(super) struct Breaker {
    fault: Fault,
    fabric: Fabric,
    /// The devices of each rank, as softverbs names them.
    devices: Vec<[String; 2]>,
    /// Faults to inject, one after the other.
    wanted: usize,
    done: usize,
    phase: Phase,
    looked: Instant,
    laps: u32,
    struck: u64,
    /// Silences that had ended before the plugin noticed them.
    unnoticed: usize,
    seen: Vec<String>,
    failure: Option<Failure>,
}

impl Breaker {
    pub(super) fn new(fault: Fault, wanted: usize, fabric: Fabric, devices: Vec<[String; 2]>) -> Self {
        Self {
            fault,
            fabric,
            devices,
            wanted,
            done: 0,
            phase: Phase::Start,
            looked: Instant::now(),
            laps: 0,
            struck: 0,
            unnoticed: 0,
            seen: Vec::new(),
            failure: None,
        }
    }

    /// Returns what happened, or what did not happen that should have.
    pub(super) fn result(self) -> Result<String> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let expected = self.targets().len() as u64;
        match (self.fault, &self.phase) {
            (Fault::NoRail, Phase::Broken { .. }) => Ok(format!(
                "{} links went down in lap {}, at half of its work requests",
                self.struck,
                self.laps + 1
            )),
            (Fault::LinkDown | Fault::Silence, Phase::Over) => {
                Ok(format!("{} laps: {}", self.laps, self.seen.join("; ")))
            }
            (_, phase) => Err(Failure::wrong(format!(
                "{} of {expected} faults struck, and the ranks ended after {} laps: {phase:?}",
                self.struck, self.laps
            ))),
        }
    }

    /// Returns the rails of the present fault: another rail each time, then those of the next rank.
    fn targets(&self) -> Vec<Target> {
        match self.fault {
            Fault::NoRail => (0..2).map(|rail| Target { rank: 0, rail }).collect(),
            Fault::LinkDown | Fault::Silence => {
                let (rank, rail) = (self.done / 2 % self.devices.len(), 1 - self.done % 2);
                vec![Target { rank, rail }]
            }
        }
    }

    fn device(&self, target: Target) -> &str {
        &self.devices[target.rank][target.rail]
    }

    fn names(&self) -> Vec<&str> {
        self.targets().into_iter().map(|target| self.device(target)).collect()
    }

    fn requests(&self, processes: &[u32]) -> Result<Vec<Requests>> {
        let of = |target: Target| self.fabric.requests(self.device(target), processes[target.rank]);
        self.targets().into_iter().map(of).collect()
    }

    /// Returns what the plugin counts for the first target.
    fn traffic(&self, processes: &[u32]) -> Result<Traffic> {
        let Target { rank, rail } = self.targets()[0];
        self.fabric.traffic(RAILS[rail], processes[rank])
    }

    fn posted(&self, processes: &[u32]) -> Result<Vec<u64>> {
        Ok(self.requests(processes)?.iter().map(|requests| requests.posted).collect())
    }

    /// Arms the faults for the next lap. `counted` has the work requests before the lap that has
    /// ended.
    fn arm(&mut self, counted: &[u64], processes: &[u32]) -> Result<Phase> {
        let (before, requests) = (self.traffic(processes)?, self.requests(processes)?);
        for ((target, now), counted) in self.targets().into_iter().zip(&requests).zip(counted) {
            let at = strike_point(now.posted - counted, self.done, self.wanted);
            let device = self.device(target);
            self.fabric.arm(device, self.fault.script(), at, processes[target.rank])?;
        }
        Ok(Phase::Armed { before, struck: requests.iter().map(|r| r.struck).collect(), laps: 0 })
    }

    /// Looks for faults that have struck since they were armed.
    fn look(&mut self, before: Traffic, struck: Vec<u64>, laps: u32, processes: &[u32]) -> Result<Phase> {
        let now = self.requests(processes)?;
        if now.iter().zip(&struck).any(|(now, before)| now.struck == *before) {
            return match laps {
                LAPS => Err(Failure::wrong(format!("{:?} did not fail in {LAPS} laps", self.names()))),
                _ => Ok(Phase::Armed { before, struck, laps }),
            };
        }
        self.struck += now.iter().zip(&struck).map(|(now, before)| now.struck - before).sum::<u64>();
        Ok(Phase::Broken { before, since: Instant::now() })
    }

    fn repair(&self, before: Traffic) -> Result<Phase> {
        self.targets().into_iter().try_for_each(|target| self.fabric.heal(self.device(target)))?;
        Ok(Phase::Repaired { before, since: Instant::now(), back: None })
    }

    /// Looks at a repaired rail after a lap: it must return, and carry data in a later lap.
    fn follow(
        &mut self,
        before: Traffic,
        since: Instant,
        back: Option<Traffic>,
        processes: &[u32],
    ) -> Result<Phase> {
        let now = self.traffic(processes)?;
        match back {
            Some(back) if now.carries(&back, &before) => {
                self.over(before, back, now);
                if self.done < self.wanted {
                    Ok(Phase::Count(self.posted(processes)?))
                } else {
                    Ok(Phase::Over)
                }
            }
            None if now.healthy && now.returns > before.returns && now.episodes > before.episodes => {
                Ok(Phase::Repaired { before, since, back: Some(now) })
            }
            // The lap did not need what was lost any more, and the adapter has repeated it.
            None if since.elapsed() > RETURN
                && self.fault == Fault::Silence
                && self.unnoticed < self.wanted
                && now.healthy
                && now.episodes == before.episodes
                && now.carries(&before, &before) =>
            {
                self.unnoticed += 1;
                Ok(Phase::Count(self.posted(processes)?))
            }
            _ if since.elapsed() > RETURN => Err(Failure::wrong(format!(
                "the rail carries no data {RETURN:?} after its repair: {before:?} before the fault, {now:?} now"
            ))),
            _ => Ok(Phase::Repaired { before, since, back }),
        }
    }

    /// Notes a fault that is over.
    fn over(&mut self, before: Traffic, back: Traffic, now: Traffic) {
        let device = self.device(self.targets()[0]).to_owned();
        let (episodes, returns) = (now.episodes - before.episodes, now.returns - before.returns);
        let (sent, received) = (now.sent - back.sent, now.received - back.received);
        self.seen.push(format!(
            "{device} struck under load, {episodes} episodes, {returns} returns, then {sent} bytes sent and \
             {received} parts received in a lap"
        ));
        self.done += 1;
    }

    /// Goes to the next phase after a lap, if `lap`, or while one runs.
    fn advance(&mut self, lap: bool, processes: &[u32]) -> Result<Phase> {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Start if lap => Ok(Phase::Count(self.posted(processes)?)),
            Phase::Count(counted) if lap => self.arm(&counted, processes),
            Phase::Armed { before, struck, laps } => {
                let phase = self.look(before, struck, laps + u32::from(lap), processes)?;
                match phase {
                    // The lap in which the fault struck has ended.
                    Phase::Broken { before, .. } if lap => self.end_of_lap(before),
                    phase => Ok(phase),
                }
            }
            Phase::Broken { before, .. } if lap => self.end_of_lap(before),
            Phase::Broken { before, since } if self.fault != Fault::NoRail && since.elapsed() > LASTS => {
                self.repair(before)
            }
            Phase::Repaired { before, since, back } if lap => self.follow(before, since, back, processes),
            phase => Ok(phase),
        }
    }

    fn end_of_lap(&self, before: Traffic) -> Result<Phase> {
        match self.fault {
            Fault::NoRail => Err(Failure::wrong("the ranks finished a lap without a rail")),
            Fault::LinkDown | Fault::Silence => self.repair(before),
        }
    }

    fn go(&mut self, lap: bool, processes: &[u32]) {
        match self.advance(lap, processes) {
            Ok(phase) => self.phase = phase,
            Err(failure) => {
                self.failure.get_or_insert(failure);
            }
        }
    }
}

/// Returns the work request at which a fault strikes, out of those of a lap. Faults are spread evenly.
fn strike_point(requests: u64, done: usize, wanted: usize) -> u64 {
    1 + requests * (done as u64 + 1) / (wanted as u64 + 1)
}

impl Director for Breaker {
    fn lap(&mut self, processes: &[u32]) -> io::Result<bool> {
        self.laps += 1;
        self.go(true, processes);
        Ok(!matches!(self.phase, Phase::Over))
    }

    fn tick(&mut self, processes: &[u32]) -> io::Result<()> {
        let waits = matches!(self.phase, Phase::Armed { .. } | Phase::Broken { .. });
        if waits && self.looked.elapsed() > PAUSE {
            self.go(false, processes);
            self.looked = Instant::now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_strike_inside_a_lap_and_are_spread() {
        assert_eq!(strike_point(100, 0, 1), 51);
        assert_eq!((0..4).map(|done| strike_point(100, done, 4)).collect::<Vec<_>>(), [21, 41, 61, 81]);
        assert_eq!(strike_point(0, 0, 1), 1, "a rail that carried nothing: the next work request");
    }

    #[test]
    fn every_rail_of_every_rank_has_a_fault_after_some() {
        let devices = vec![["a0".to_owned(), "a1".to_owned()], ["b0".to_owned(), "b1".to_owned()]];
        let fabric = Fabric::new("none", "build".as_ref());
        let mut breaker = Breaker::new(Fault::LinkDown, 4, fabric, devices);
        let mut names = Vec::new();
        for done in 0..4 {
            breaker.done = done;
            names.extend(breaker.names().into_iter().map(str::to_owned));
        }
        assert_eq!(names, ["a1", "a0", "b1", "b0"]);
    }
}
