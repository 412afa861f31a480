//! Since when a connection waits, and for what.
//!
//! NCCL's calls only count. Each pass of housekeeping compares the counts with those of the last pass:
//! a connection waits if nothing was begun or done since then, although NCCL asks for more or requests
//! are outstanding. A connection that NCCL leaves alone does not wait.

use std::time::{Duration, Instant, SystemTime};

use crate::housekeeping::TICK;
use crate::stats::{Awaited, Totals};

/// A wait that is worth a warning.
const LONG: Duration = Duration::from_secs(60);

/// NCCL repeats a call that returned no request at once. It has given up asking after this time
/// without one.
const ASKS: Duration = TICK.saturating_mul(4);

/// The longest time between two passes that counts. The process did not run for the rest of it.
const LATE: Duration = TICK.saturating_mul(2);

/// What a pass of housekeeping finds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) now: Instant,
    /// The same moment, for people.
    pub(super) clock: SystemTime,
    pub(super) counts: Totals,
    /// Whether NCCL's requests, or their data, are outstanding.
    pub(super) is_outstanding: bool,
    /// Whether no rail works, or what one has lost is not sent again yet.
    pub(super) lacks_rail: bool,
}

/// What a connection waits for, as the last pass has found it.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    last: Option<Pass>,
    /// What the last refused call of NCCL has asked for, and how long ago that was.
    asked: Option<(Awaited, Duration)>,
    wait: Option<Wait>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    what: Awaited,
    since: SystemTime,
    lasted: Duration,
    is_reported: bool,
}

/// Something to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The connection has waited for a long time.
    Long(Awaited, Duration),
    /// A wait that was logged is over.
    Over(Awaited, Duration),
}

impl Waiting {
    /// Takes in a pass.
    pub(super) fn look(&mut self, pass: Pass) -> Option<Turn> {
        let last = self.last.replace(pass)?;
        let elapsed = pass.now.saturating_duration_since(last.now);
        let passed = elapsed.min(LATE);
        let what = self.awaited(&last, &pass, passed);
        match &mut self.wait {
            Some(wait) if Some(wait.what) == what => {
                wait.lasted += passed;
                wait.since += elapsed - passed;
                wait.report()
            }
            _ => {
                let begins =
                    |what| Wait { what, since: pass.clock, lasted: Duration::ZERO, is_reported: false };
                std::mem::replace(&mut self.wait, what.map(begins))?.end()
            }
        }
    }

    /// Returns what the connection waits for, and since when.
    pub(super) fn since(&self) -> Option<(Awaited, SystemTime)> {
        self.wait.map(|wait| (wait.what, wait.since))
    }

    fn awaited(&mut self, last: &Pass, pass: &Pass, passed: Duration) -> Option<Awaited> {
        let (before, now) = (&last.counts, &pass.counts);
        let has_moved = (before.requests, before.done) != (now.requests, now.done);
        self.asked = match self.asked {
            _ if has_moved => None,
            _ if before.waits_peer != now.waits_peer => Some((Awaited::Receive, Duration::ZERO)),
            _ if before.waits_queue != now.waits_queue => Some((Awaited::Room, Duration::ZERO)),
            asked => asked.map(|(what, ago)| (what, ago + passed)).filter(|(_, ago)| *ago < ASKS),
        };
        let is_outstanding = last.is_outstanding && pass.is_outstanding && !has_moved;
        match self.asked {
            None if !is_outstanding => None,
            _ if pass.lacks_rail => Some(Awaited::Rail),
            Some((what, _)) => Some(what),
            None => Some(Awaited::Data),
        }
    }
}

impl Wait {
    /// A job in which one rank computes has receives outstanding for minutes: no data is no reason
    /// for a warning.
    fn report(&mut self) -> Option<Turn> {
        let is_due = self.lasted >= LONG && self.what != Awaited::Data && !self.is_reported;
        self.is_reported |= is_due;
        is_due.then_some(Turn::Long(self.what, self.lasted))
    }

    fn end(self) -> Option<Turn> {
        self.is_reported.then_some(Turn::Over(self.what, self.lasted))
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
