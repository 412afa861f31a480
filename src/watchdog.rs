//! Decides from a connection's counters whether one of its rails has stalled: the rail completes
//! nothing while other rails of the connection do.
//!
//! Writes go only to memory that the peer has offered, so a rail with writes outstanding completes
//! them even if the peer's program does nothing. The exception is a receive that is not posted yet
//! (RNR), which the adapter counts.

use std::time::{Duration, Instant};

use crate::device::HwCounters;

/// Without counters that show retransmissions soon, a rail has stalled after this time at the
/// earliest.
const BLIND: Duration = Duration::from_millis(500);
/// Completions of other rails that show, without such counters, that the connection is busy.
const BUSY: u64 = 16;
/// A rail has stalled if it takes so many times as long as usual.
const UNUSUAL: u32 = 8;
/// Pings are due after this part of the time until a stall. They have completed by then.
const PING_PART: u32 = 5;

/// What is known of the progress of one rail.
#[derive(Debug, Default)]
pub struct RailProgress {
    /// Completions at the last sample.
    done: u64,
    /// Completions of the other rails at the last sample.
    others: u64,
    /// Present while work requests are outstanding.
    waiting: Option<Waiting>,
    /// Time per completion while work requests are outstanding, a moving average.
    usual: Duration,
}

/// The time without a completion.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The sample that showed the last completion, or the first work request.
    since: Instant,
    /// Completions of the other rails at the sample before that.
    others: u64,
    /// The port's counters then.
    hardware: Option<HwCounters>,
    /// When pings were requested last, since the last completion.
    pinged: Option<Instant>,
}

/// A connection's counters of one rail, and what is known of the rail's port.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Work requests known to be complete.
    pub done: u64,
    /// Work requests outstanding.
    pub outstanding: u64,
    /// Completions of the connection's other rails.
    pub others: u64,
    /// The port's counters: read lately, at most [`HARDWARE_AGE`] ago.
    pub hardware: Option<HwCounters>,
}

/// How old a port's counters may be when a wait begins. Each reading may be a command of the
/// adapter's firmware, which serves all processes of the host.
pub const HARDWARE_AGE: Duration = Duration::from_millis(500);

/// What speaks for and against a stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Time without a completion, work requests outstanding.
    pub waited: Duration,
    /// The rail's usual time per completion.
    pub usual: Duration,
    /// `MPIB_STALL_MS`
    pub limit: Duration,
    /// Completions of other rails since the wait began.
    pub others: u64,
    /// How the other rails are.
    pub company: Company,
    /// What the port's counters or events show.
    pub evidence: Evidence,
}

/// The state of a connection's other rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// None of them makes progress: the peer or the whole network may be the cause.
    Stuck,
    /// One of them at least makes progress, or waits for nothing.
    Moving,
    /// None of them has work requests outstanding: the connection waits for this rail alone.
    Drained,
}

/// What a port's counters show since the wait began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The link went down, by an event.
    LinkDown,
    /// Packets were lost.
    Loss,
    /// No packet was lost, and the adapter would show a loss soon.
    NoLoss,
    /// The peer had no receive posted, and nothing else happened.
    NotReady,
    /// The adapter has no counters, or none that shows a loss soon.
    Unknown,
}

impl RailProgress {
    /// Takes in a sample. Returns whether the rail is active: work requests are outstanding, or have
    /// completed since the last sample.
    pub fn add(&mut self, now: Instant, sample: Sample) -> bool {
        let new = sample.done.wrapping_sub(self.done);
        if let Some(waiting) = self.waiting.filter(|_| new > 0) {
            let each = now.saturating_duration_since(waiting.since) / u32::try_from(new).unwrap_or(u32::MAX);
            self.usual = if self.usual.is_zero() { each } else { (self.usual * 7 + each) / 8 };
        }
        if sample.outstanding == 0 {
            self.waiting = None;
        } else if new > 0 || self.waiting.is_none() {
            let (others, hardware) = (self.others, sample.hardware);
            self.waiting = Some(Waiting { since: now, others, hardware, pinged: None });
        }
        (self.done, self.others) = (sample.done, sample.others);
        new > 0 || sample.outstanding > 0
    }

    /// Begins the wait anew: nobody has watched for a while.
    pub fn restart(&mut self, now: Instant) {
        if let Some(waiting) = &mut self.waiting {
            waiting.since = now;
        }
    }

    /// Returns whether its outstanding work requests show whether the rail works. If they are not
    /// `signalled`, only a ping does.
    pub fn is_judged(&self, signalled: bool) -> bool {
        signalled || self.waiting.is_some_and(|waiting| waiting.pinged.is_some())
    }

    /// Returns whether pings are due: nothing shows yet whether this rail works, or the other ones.
    pub fn is_ping_due(&self, now: Instant, limit: Duration, signalled: bool) -> bool {
        let Some(waiting) = &self.waiting else { return false };
        let patience = patience(limit, self.usual);
        let is_due = match waiting.pinged {
            None => self.waited(now) >= patience / PING_PART,
            Some(pinged) => now.saturating_duration_since(pinged) >= patience,
        };
        is_due && (!self.is_judged(signalled) || self.others == waiting.others)
    }

    /// Records that pings were requested. The first ping of work requests that are not `signalled`
    /// begins the wait anew. What the port's counters showed at the first begin still counts.
    pub fn ping(&mut self, now: Instant, signalled: bool) {
        let is_judged = self.is_judged(signalled);
        if let Some(waiting) = &mut self.waiting {
            waiting.pinged = Some(now);
            if !is_judged {
                (waiting.since, waiting.others) = (now, self.others);
            }
        }
    }

    /// Returns how long the rail has completed nothing, work requests outstanding.
    pub fn waited(&self, now: Instant) -> Duration {
        self.waiting.map_or(Duration::ZERO, |waiting| now.saturating_duration_since(waiting.since))
    }

    /// Returns whether the rail has waited for so long that counters have to be read.
    pub fn is_late(&self, now: Instant, limit: Duration) -> bool {
        self.waited(now) >= patience(limit, self.usual)
    }

    /// Returns what is known of a rail that is late. `hardware`: the port's present counters.
    pub fn facts(
        &self,
        now: Instant,
        limit: Duration,
        company: Company,
        hardware: Option<HwCounters>,
    ) -> Facts {
        let before = self.waiting.map_or((0, None), |waiting| (waiting.others, waiting.hardware));
        Facts {
            waited: self.waited(now),
            usual: self.usual,
            limit,
            others: self.others.saturating_sub(before.0),
            company,
            evidence: Evidence::of(before.1, hardware),
        }
    }
}

impl Evidence {
    /// Compares a port's counters with those from before the wait.
    fn of(before: Option<HwCounters>, now: Option<HwCounters>) -> Self {
        let (Some(before), Some(now)) = (before, now) else { return Self::Unknown };
        let rose = |counter: fn(&HwCounters) -> Option<u64>| counter(&now) > counter(&before);
        if rose(|c| c.adaptive) || rose(|c| c.timeouts) || rose(|c| c.sequence) {
            Self::Loss
        } else if rose(|c| c.not_ready) {
            Self::NotReady
        } else if now.adaptive.is_some() {
            Self::NoLoss
        } else {
            // Timeouts alone come seconds after the loss.
            Self::Unknown
        }
    }
}

impl Facts {
    /// Returns whether the rail has stalled.
    pub fn is_stall(&self) -> bool {
        if self.limit.is_zero() || self.waited < patience(self.limit, self.usual) {
            return false;
        }
        let busy = self.others > 0 && self.company != Company::Stuck;
        match self.evidence {
            Evidence::LinkDown => true,
            Evidence::Loss => busy,
            Evidence::NoLoss | Evidence::NotReady => false,
            Evidence::Unknown => {
                let enough = self.others >= BUSY || self.company == Company::Drained;
                busy && enough && self.waited >= patience(self.limit.max(BLIND), self.usual)
            }
        }
    }
}

/// Returns how long a rail may complete nothing.
fn patience(limit: Duration, usual: Duration) -> Duration {
    limit.max(usual * UNUSUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    //= configuration.md: MPIB_STALL_MS
    //= rail-life.md: when a rail has stalled
    #[test]
    fn a_rail_stalls_while_others_go_on_and_the_adapter_counts_losses() {
        use Company::*;
        use Evidence::*;
        for (waited, usual, others, company, evidence, stall) in [
            (100, 1, 1, Moving, Loss, true),
            (99, 1, 1, Moving, Loss, false),
            // Its completions take long.
            (239, 30, 100, Moving, Loss, false),
            (240, 30, 100, Moving, Loss, true),
            // Nothing else goes on: the peer, or the whole network.
            (10_000, 1, 0, Moving, Loss, false),
            (10_000, 1, 0, Drained, Loss, false),
            (10_000, 1, 100, Stuck, Loss, false),
            // A slow receiver, or a slow rail.
            (10_000, 1, 100, Moving, NotReady, false),
            (10_000, 1, 100, Drained, NotReady, false),
            (10_000, 1, 100, Moving, NoLoss, false),
            // Nothing is counted: longer, and with more completions of others or none outstanding.
            (499, 1, 100, Moving, Unknown, false),
            (500, 1, 16, Moving, Unknown, true),
            (500, 1, 15, Moving, Unknown, false),
            (500, 1, 1, Drained, Unknown, true),
            (500, 1, 0, Drained, Unknown, false),
            (500, 1, 100, Stuck, Unknown, false),
            (500, 100, 100, Moving, Unknown, false),
            (800, 100, 100, Moving, Unknown, true),
            // An event has announced it.
            (100, 1, 0, Stuck, LinkDown, true),
            (99, 1, 0, Stuck, LinkDown, false),
        ] {
            let (waited, usual) = (ms(waited), ms(usual));
            let facts = Facts { waited, usual, limit: ms(100), others, company, evidence };
            assert_eq!(facts.is_stall(), stall, "{facts:?}");
            let off = Facts { limit: ms(0), ..facts };
            assert!(!off.is_stall(), "MPIB_STALL_MS=0");
            let longer = Facts { limit: ms(20_000), ..facts };
            assert!(!longer.is_stall(), "{longer:?}");
        }
    }

    #[test]
    fn counters_are_compared_with_those_from_before_the_wait() {
        let counters = |adaptive, timeouts, sequence, not_ready| {
            Some(HwCounters { adaptive, timeouts, sequence, not_ready })
        };
        let (some, none) = (Some(5), None);
        let base = counters(some, some, some, some);
        for (before, now, evidence) in [
            (None, None, Evidence::Unknown),
            (base, None, Evidence::Unknown),
            (None, base, Evidence::Unknown),
            (base, base, Evidence::NoLoss),
            (base, counters(Some(6), some, some, some), Evidence::Loss),
            (base, counters(some, Some(6), some, some), Evidence::Loss),
            (base, counters(some, some, Some(6), some), Evidence::Loss),
            (base, counters(some, some, some, Some(6)), Evidence::NotReady),
            (base, counters(some, Some(6), some, Some(6)), Evidence::Loss),
            // InfiniBand: timeouts come late.
            (counters(none, some, some, some), counters(none, some, some, some), Evidence::Unknown),
            (counters(none, some, none, none), counters(none, Some(6), none, none), Evidence::Loss),
            (counters(none, some, none, some), counters(none, some, none, Some(6)), Evidence::NotReady),
        ] {
            assert_eq!(Evidence::of(before, now), evidence, "{before:?} {now:?}");
        }
    }

    fn sample(done: u64, outstanding: u64, others: u64) -> Sample {
        Sample { done, outstanding, others, hardware: None }
    }

    #[test]
    fn the_wait_begins_with_the_last_completion_or_the_first_work_request() {
        let (mut rail, start) = (RailProgress::default(), Instant::now());
        let at = |t| start + ms(t);
        let waited = |rail: &RailProgress, t| rail.waited(at(t)).as_millis();
        rail.add(at(0), sample(0, 0, 0));
        assert_eq!(waited(&rail, 1000), 0, "nothing outstanding");
        rail.add(at(20), sample(0, 3, 0));
        assert_eq!(waited(&rail, 50), 30);
        rail.add(at(40), sample(1, 3, 0));
        assert_eq!(waited(&rail, 50), 10);
        rail.add(at(60), sample(1, 5, 0));
        assert_eq!(waited(&rail, 60), 20, "further work requests do not begin it anew");
        rail.add(at(80), sample(6, 0, 0));
        assert_eq!(waited(&rail, 1000), 0);
        rail.add(at(100), sample(6, 1, 0));
        rail.restart(at(5000));
        assert_eq!(waited(&rail, 5010), 10, "the process was stopped");
    }

    #[test]
    fn others_count_from_the_sample_before_the_wait() {
        let (mut rail, start) = (RailProgress::default(), Instant::now());
        let at = |t| start + ms(t);
        rail.add(at(0), sample(10, 8, 10));
        // The last completions of all rails fall between two samples, and then the connection waits
        // for this rail.
        rail.add(at(20), sample(15, 3, 18));
        rail.add(at(40), sample(15, 3, 18));
        let facts = rail.facts(at(520), ms(100), Company::Drained, None);
        assert_eq!((facts.others, facts.waited), (8, ms(500)));
        assert!(facts.is_stall());
        // In later samples nothing has moved.
        let mut idle = RailProgress::default();
        idle.add(at(0), sample(15, 0, 18));
        idle.add(at(20), sample(15, 3, 18));
        assert_eq!(idle.facts(at(520), ms(100), Company::Drained, None).others, 0);
    }

    //= rail-life.md: when a rail has stalled
    #[test]
    fn a_rail_that_takes_long_for_each_completion_gets_more_time() {
        let (mut rail, start) = (RailProgress::default(), Instant::now());
        let mut now = start;
        for done in 0..100 {
            rail.add(now, sample(done, 4, 10 * done));
            now += ms(60);
        }
        now -= ms(60);
        assert!(!rail.is_late(now + ms(479), ms(100)) && rail.is_late(now + ms(480), ms(100)));
        assert!(!rail.is_late(now + ms(480), ms(500)) && rail.is_late(now + ms(500), ms(500)));
    }
}
