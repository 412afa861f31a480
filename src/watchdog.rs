//! Decides from a connection's counters whether one of its rails has stalled: the rail completes
//! nothing while other rails of the connection do.
//!
//! Writes go only to memory that the peer has offered, so a rail with writes outstanding completes
//! them even if the peer's program does nothing. The exception is a receive that is not posted yet
//! (RNR), which the adapter counts.
//!
//! Silence is evidence only while the connection was polled and the process had its processor, so
//! waits are measured in [watched time](Watch).

mod backlog;

use std::time::{Duration, Instant};

use crate::device::HwCounters;
use backlog::Backlog;
pub(crate) use backlog::Posted;

/// Without counters that show retransmissions soon, a rail has stalled after this time at the
/// earliest.
const BLIND: Duration = Duration::from_millis(500);
/// Completions of other rails that show, without such counters, that the connection is busy.
const BUSY: u64 = 16;
/// A rail without such counters gets so many times as long while other connections show that the
/// route works: it shares with them what is slow, or one flow of several is lost on the way.
const SHARED: u32 = 10;
/// A rail has stalled if it takes so many times as long as usual.
const UNUSUAL: u32 = 8;
/// Pings are due after this part of the time until a stall. They have completed by then.
const PING_PART: u32 = 5;
/// A rail gets so many times the time that the bytes outstanding on its port take as a rule.
const SLOWER: u32 = 2;
/// Outstanding bytes lengthen the time until a stall by no more than this.
const LONGEST: Duration = Duration::from_secs(10);

/// The watched time of a connection: it advances while the connection's completion queues are
/// polled and the watchdog is on time.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    time: Duration,
    /// Complete polls of all completion queues, as of the last sample.
    polls: u32,
}

impl Watch {
    /// Takes in a sample: `passed` since the last one, and `polls` complete polls in all. A
    /// completion stays in its queue until it is polled, so a poll that finds none shows that none
    /// has come; without a poll nothing is known. Returns whether there was a poll.
    pub(crate) fn advance(&mut self, passed: Duration, polls: u32) -> bool {
        let polled = std::mem::replace(&mut self.polls, polls) != polls;
        if polled {
            self.time += passed;
        }
        polled
    }

    /// Returns the present moment.
    pub(crate) fn at(&self, instant: Instant) -> Moment {
        Moment { watched: self.time, instant }
    }
}

/// A moment of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// In watched time.
    pub(crate) watched: Duration,
    /// By the clock.
    pub(crate) instant: Instant,
}

/// What is known of the progress of one rail.
#[derive(Debug, Default)]
pub(crate) struct RailProgress {
    /// Completions at the last sample.
    done: u64,
    /// Completions of the other rails at the last sample.
    others: u64,
    /// Present while work requests are outstanding.
    waiting: Option<Waiting>,
    /// Time per completion while work requests are outstanding, a moving average.
    usual: Duration,
    backlog: Backlog,
}

/// The time without a completion.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The sample that showed the last completion, or the first work request.
    since: Moment,
    /// Completions of the other rails at the sample before that.
    others: u64,
    /// The port's counters then.
    hardware: Option<HwCounters>,
    /// When pings were requested last, since the last completion. By the clock: NCCL may not call
    /// until a ping shows that there is something to call for.
    pinged: Option<Instant>,
}

/// A connection's counters of one rail, and what is known of the rail's port.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Work requests known to be complete.
    pub(crate) done: u64,
    /// Work requests outstanding.
    pub(crate) outstanding: u64,
    /// What was ever posted.
    pub(crate) posted: Posted,
    /// Completions of the connection's other rails.
    pub(crate) others: u64,
    /// The port's counters: read lately, at most [`HARDWARE_AGE`] ago.
    pub(crate) hardware: Option<HwCounters>,
}

/// How old a port's counters may be when a wait begins. Each reading may be a command of the
/// adapter's firmware, which serves all processes of the host.
pub(crate) const HARDWARE_AGE: Duration = Duration::from_millis(500);

/// What speaks for and against a stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Watched time without a completion, work requests outstanding.
    pub(crate) waited: Duration,
    /// The rail's usual time per completion.
    pub(crate) usual: Duration,
    /// How long what is outstanding on the port takes at the goodput of its rails.
    pub(crate) backlog: Duration,
    /// `MPIB_STALL_MS`
    pub(crate) limit: Duration,
    /// Completions of other rails since the wait began.
    pub(crate) others: u64,
    /// How the other rails are.
    pub(crate) company: Company,
    /// Other connections of the process complete work requests over the same route.
    pub(crate) route_works: bool,
    /// What the port's counters or events show.
    pub(crate) evidence: Evidence,
}

/// What the rails of other connections show.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shared {
    /// The longest [backlog](RailProgress::backlog) on the port.
    pub(crate) backlog: Duration,
    /// When a rail over the same route last completed something.
    pub(crate) completed: Option<Instant>,
}

/// The state of a connection's other rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// None of them makes progress: the peer or the whole network may be the cause.
    Stuck,
    /// One of them at least makes progress, or waits for nothing.
    Moving,
    /// None of them has work requests outstanding: the connection waits for this rail alone.
    Drained,
}

/// What a port's counters show since the wait began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
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
    pub(crate) fn add(&mut self, now: Moment, sample: Sample) -> bool {
        let new = sample.done.wrapping_sub(self.done);
        if let Some(waiting) = self.waiting.filter(|_| new > 0) {
            let waited = now.watched.saturating_sub(waiting.since.watched);
            let each = waited / u32::try_from(new).unwrap_or(u32::MAX);
            self.usual = if self.usual.is_zero() { each } else { (self.usual * 7 + each) / 8 };
        }
        if sample.outstanding == 0 {
            self.waiting = None;
        } else if new > 0 || self.waiting.is_none() {
            let (others, hardware) = (self.others, sample.hardware);
            self.waiting = Some(Waiting { since: now, others, hardware, pinged: None });
        }
        self.backlog.add(now.instant, sample.posted, sample.outstanding);
        (self.done, self.others) = (sample.done, sample.others);
        new > 0 || sample.outstanding > 0
    }

    /// Forgets the earlier life of a rail that returns. `posted`: what was posted in it.
    pub(crate) fn restart(&mut self, posted: Posted) {
        (self.waiting, self.backlog) = (None, Backlog::none(posted));
    }

    /// Returns whether the rail has completed nothing since an earlier sample, work requests
    /// outstanding.
    pub(crate) fn is_silent(&self, now: Moment) -> bool {
        self.waiting.is_some_and(|waiting| waiting.since.instant < now.instant)
    }

    /// Returns whether its outstanding work requests show whether the rail works. If they are not
    /// `signalled`, only a ping does.
    pub(crate) fn is_judged(&self, signalled: bool) -> bool {
        signalled || self.waiting.is_some_and(|waiting| waiting.pinged.is_some())
    }

    /// Returns whether pings are due: nothing shows yet whether this rail works, or the other ones.
    pub(crate) fn is_ping_due(&self, now: Moment, limit: Duration, signalled: bool) -> bool {
        let Some(waiting) = &self.waiting else { return false };
        let patience = patience(limit, self.usual, Duration::ZERO);
        let since = |then| now.instant.saturating_duration_since(then);
        let is_due = match waiting.pinged {
            None => since(waiting.since.instant) >= patience / PING_PART,
            Some(pinged) => since(pinged) >= patience,
        };
        is_due && (!self.is_judged(signalled) || self.others == waiting.others)
    }

    /// Records that pings were requested. The first ping of work requests that are not `signalled`
    /// begins the wait again. What the port's counters showed at the first begin still counts.
    pub(crate) fn ping(&mut self, now: Moment, signalled: bool) {
        let is_judged = self.is_judged(signalled);
        if let Some(waiting) = &mut self.waiting {
            waiting.pinged = Some(now.instant);
            if !is_judged {
                (waiting.since, waiting.others) = (now, self.others);
            }
        }
    }

    /// Returns how long the rail has completed nothing, work requests outstanding.
    pub(crate) fn waited(&self, now: Moment) -> Duration {
        let since = |waiting: Waiting| now.watched.saturating_sub(waiting.since.watched);
        self.waiting.map_or(Duration::ZERO, since)
    }

    /// Returns whether the rail has waited for so long that counters have to be read.
    pub(crate) fn is_late(&self, now: Moment, limit: Duration) -> bool {
        self.waited(now) >= patience(limit, self.usual, Duration::ZERO)
    }

    /// Returns the completions at the last sample.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Returns how long the outstanding bytes take. `speed`: bytes per second as long as the goodput
    /// of the rail is not known.
    pub(crate) fn backlog(&self, speed: u64) -> Duration {
        self.backlog.time(speed)
    }

    /// Returns what is known of a rail that is late. `hardware`: the port's present counters.
    /// `shared`: what other rails show of its port and its route.
    pub(crate) fn facts(
        &self,
        now: Moment,
        limit: Duration,
        company: Company,
        hardware: Option<HwCounters>,
        shared: Shared,
    ) -> Facts {
        let before = self.waiting.map_or((0, None), |waiting| (waiting.others, waiting.hardware));
        let since = |then| now.instant.saturating_duration_since(then);
        let waited = self.waiting.map_or(Duration::ZERO, |waiting| since(waiting.since.instant));
        // In half of the time, and not just when the wait began.
        let lately = (waited / 2).max(limit.max(BLIND).min(waited));
        Facts {
            waited: self.waited(now),
            usual: self.usual,
            backlog: shared.backlog,
            route_works: shared.completed.is_some_and(|at| since(at) < lately),
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
    pub(crate) fn is_stall(&self) -> bool {
        let exceeds = |limit, backlog| self.waited >= patience(limit, self.usual, backlog);
        let busy = self.others > 0 && self.company != Company::Stuck;
        !self.limit.is_zero()
            && match self.evidence {
                // Nothing else could carry what its queue pairs may still deliver.
                Evidence::LinkDown if self.company == Company::Stuck => false,
                Evidence::LinkDown => exceeds(self.limit, Duration::ZERO),
                Evidence::Loss => busy && exceeds(self.limit, self.backlog),
                Evidence::NoLoss | Evidence::NotReady => false,
                Evidence::Unknown => {
                    let enough = self.others >= BUSY || self.company == Company::Drained;
                    let limit = self.limit.max(BLIND) * if self.route_works { SHARED } else { 1 };
                    busy && enough && exceeds(limit, self.backlog)
                }
            }
    }
}

/// Returns how long a rail may complete nothing: `limit`, longer if it `usual`ly takes long for a
/// completion, and longer by the time that its outstanding bytes need.
fn patience(limit: Duration, usual: Duration, backlog: Duration) -> Duration {
    limit.max(usual * UNUSUAL) + (backlog * SLOWER).min(LONGEST)
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
            (100, 1, 0, Moving, LinkDown, true),
            (99, 1, 0, Moving, LinkDown, false),
            (100, 1, 0, Drained, LinkDown, true),
            // It is the last rail, or no other one can carry the data.
            (10_000, 1, 0, Stuck, LinkDown, false),
        ] {
            let (waited, usual, backlog) = (ms(waited), ms(usual), Duration::ZERO);
            let (route_works, limit) = (false, ms(100));
            let facts = Facts { waited, usual, backlog, limit, others, company, route_works, evidence };
            assert_eq!(facts.is_stall(), stall, "{facts:?}");
            let off = Facts { limit: ms(0), ..facts };
            assert!(!off.is_stall(), "MPIB_STALL_MS=0");
            let longer = Facts { limit: ms(20_000), ..facts };
            assert!(!longer.is_stall(), "{longer:?}");
        }
    }

    //= rail-life.md: when a rail has stalled
    #[test]
    fn a_rail_with_much_to_carry_gets_the_time_for_it() {
        use Evidence::*;
        for (waited, backlog, evidence, stall) in [
            (499, 0, Unknown, false),
            (500, 0, Unknown, true),
            (500, 1, Unknown, false),
            (1499, 500, Unknown, false),
            (1500, 500, Unknown, true),
            (1099, 500, Loss, false),
            (1100, 500, Loss, true),
            // An event has announced it.
            (100, 500, LinkDown, true),
            // Something is wrong with what was measured.
            (10_499, 100_000, Unknown, false),
            (10_500, 100_000, Unknown, true),
        ] {
            let (waited, backlog, usual, limit) = (ms(waited), ms(backlog), ms(1), ms(100));
            let (others, company, route_works) = (BUSY, Company::Moving, false);
            let facts = Facts { waited, usual, backlog, limit, others, company, route_works, evidence };
            assert_eq!(facts.is_stall(), stall, "{facts:?}");
        }
    }

    //= rail-life.md: when a rail has stalled
    #[test]
    fn a_rail_whose_route_works_for_others_gets_more_time() {
        let (mut rail, at) = (RailProgress::default(), clock());
        rail.add(at(0), sample(0, 1, 0));
        rail.add(at(10), sample(0, 1, 100));
        let is_stall = |now, completed: u64| {
            let completed = Some(at(completed).instant);
            let shared = Shared { completed, ..Shared::default() };
            rail.facts(at(now), ms(50), Company::Moving, None, shared).is_stall()
        };
        assert!(!is_stall(500, 490) && !is_stall(4999, 4990) && is_stall(5000, 4990));
        // They have completed nothing for as long as this one.
        assert!(is_stall(500, 0) && !is_stall(505, 10) && is_stall(510, 10));
        // Another one has, some time ago, and the process has had little time since.
        assert!(!is_stall(3000, 2000) && is_stall(3000, 1000));
    }

    //= rail-life.md: watched time
    #[test]
    fn time_counts_while_somebody_polls() {
        let (mut watch, instant) = (Watch::default(), Instant::now());
        let mut time = |passed, polls| {
            let polled = watch.advance(ms(passed), polls);
            (polled, watch.at(instant).watched.as_millis())
        };
        assert_eq!(time(10, 0), (false, 0));
        assert_eq!(time(10, 1), (true, 10));
        assert_eq!(time(10, 1), (false, 10));
        assert_eq!(time(10, 1), (false, 10));
        assert_eq!(time(10, 100), (true, 20));
        assert_eq!(time(10, u32::MAX), (true, 30));
        assert_eq!(time(10, 0), (true, 40), "the count begins again");
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
        let posted = Posted { work_requests: done + outstanding, bytes: 0 };
        Sample { done, outstanding, posted, others, hardware: None }
    }

    /// A moment of a simulated clock, all of whose time is watched.
    fn clock() -> impl Fn(u64) -> Moment {
        let start = Instant::now();
        move |t| Moment { watched: ms(t), instant: start + ms(t) }
    }

    #[test]
    fn the_wait_begins_with_the_last_completion_or_the_first_work_request() {
        let (mut rail, at) = (RailProgress::default(), clock());
        let waited = |rail: &RailProgress, t| rail.waited(at(t)).as_millis();
        rail.add(at(0), sample(0, 0, 0));
        assert_eq!(waited(&rail, 1000), 0, "nothing outstanding");
        rail.add(at(20), sample(0, 3, 0));
        assert_eq!(waited(&rail, 50), 30);
        rail.add(at(40), sample(1, 3, 0));
        assert_eq!(waited(&rail, 50), 10);
        rail.add(at(60), sample(1, 5, 0));
        assert_eq!(waited(&rail, 60), 20, "further work requests do not begin it again");
        rail.add(at(80), sample(6, 0, 0));
        assert_eq!(waited(&rail, 1000), 0);
        rail.add(at(100), sample(6, 1, 0));
        let later = Moment { watched: ms(110), ..at(5000) };
        assert_eq!(rail.waited(later), ms(10), "the process was stopped");
        assert!(rail.is_ping_due(later, ms(100), true), "a ping costs little");
    }

    #[test]
    fn others_count_from_the_sample_before_the_wait() {
        let (mut rail, at) = (RailProgress::default(), clock());
        rail.add(at(0), sample(10, 8, 10));
        // The last completions of all rails fall between two samples, and then the connection waits
        // for this rail.
        rail.add(at(20), sample(15, 3, 18));
        rail.add(at(40), sample(15, 3, 18));
        let facts = rail.facts(at(520), ms(100), Company::Drained, None, Shared::default());
        assert_eq!((facts.others, facts.waited), (8, ms(500)));
        assert!(facts.is_stall());
        // In later samples nothing has moved.
        let mut idle = RailProgress::default();
        idle.add(at(0), sample(15, 0, 18));
        idle.add(at(20), sample(15, 3, 18));
        assert_eq!(idle.facts(at(520), ms(100), Company::Drained, None, Shared::default()).others, 0);
    }

    //= rail-life.md: when a rail has stalled
    #[test]
    fn a_rail_that_takes_long_for_each_completion_gets_more_time() {
        let (mut rail, at) = (RailProgress::default(), clock());
        for done in 0..100 {
            rail.add(at(60 * done), sample(done, 4, 10 * done));
        }
        let is_late = |waited: u64, limit| rail.is_late(at(99 * 60 + waited), ms(limit));
        assert!(!is_late(479, 100) && is_late(480, 100));
        assert!(!is_late(480, 500) && is_late(500, 500));
    }
}
