//! The bytes outstanding on a rail, and how fast the rail carries them.
//!
//! Both follow from counters that are sampled now and then. The bytes of single work requests are
//! not known.

use std::time::{Duration, Instant};

/// Bytes that must complete together to show a goodput: for fewer, latency is most of the time.
const LEAST: u64 = 256 << 10;

/// What was ever posted on a rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Work requests.
    pub(crate) work_requests: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The last sample whose work requests are all known to be complete, and its time.
    complete: (Posted, Option<Instant>),
    /// A later one.
    next: (Posted, Option<Instant>),
    /// The last one.
    last: Option<Instant>,
    /// Bytes posted after `complete`: those that are outstanding, and some more.
    bytes: u64,
    /// In bytes per second; none if nothing has shown it.
    goodput: Option<u64>,
}

impl Backlog {
    /// The backlog of a rail on which nothing is outstanding.
    pub(super) fn none(posted: Posted) -> Self {
        Self { complete: (posted, None), next: (posted, None), ..Self::default() }
    }

    /// Takes in a sample.
    pub(super) fn add(&mut self, now: Instant, posted: Posted, outstanding: u64) {
        let settled = posted.work_requests.saturating_sub(outstanding);
        if settled >= self.next.0.work_requests {
            self.measure(now);
            self.complete = self.next;
            self.next = (posted, Some(now));
        }
        if outstanding == 0 {
            self.complete = self.next;
        }
        self.last = Some(now);
        self.bytes = posted.bytes - self.complete.0.bytes;
    }

    /// Limits the goodput by what the bytes between the two samples show: they were posted after the
    /// earlier one and are complete `now`, which they were not yet at the last sample. The rail was
    /// never idle after the later one.
    fn measure(&mut self, now: Instant) {
        let (Some(since), Some(last)) = (self.next.1, self.last) else { return };
        let bytes = self.next.0.bytes - self.complete.0.bytes;
        if bytes < LEAST {
            return;
        }
        let rate = |time: Duration| nanos(bytes, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        // Without a sample in between nothing shows that it is slow.
        let most = rate(last.saturating_duration_since(since));
        let begin = self.complete.1;
        let least = begin.and_then(|begin| rate(now.saturating_duration_since(begin))).unwrap_or(0);
        let known = self.goodput.into_iter().chain(most).min();
        self.goodput = known.map(|known| known.max(least).max(1));
    }

    /// Returns how long the outstanding bytes take; `speed` bytes per second if no goodput is known.
    pub(super) fn time(&self, speed: u64) -> Duration {
        nanos(self.bytes, self.goodput.unwrap_or(speed)).map_or(Duration::ZERO, Duration::from_nanos)
    }
}

/// Returns `n` divided by `by`, times the nanoseconds of a second: from bytes and bytes per second a
/// time, from bytes and a time bytes per second.
fn nanos(n: u64, by: u64) -> Option<u64> {
    let result = (u128::from(n) * 1_000_000_000).checked_div(by.into())?;
    Some(u64::try_from(result).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SPEED: u64 = 1000 * MIB;

    /// A rail of 100 MiB/s whose counters are sampled every 10 ms, by a simulated clock.
    struct Rail {
        backlog: Backlog,
        start: Instant,
        ticks: u32,
        posted: Posted,
        /// The bytes of each work request outstanding.
        queue: Vec<u64>,
        /// Bytes that the rail has carried of the first of them.
        carried: u64,
    }

    impl Rail {
        fn new() -> Self {
            let (backlog, posted) = (Backlog::default(), Posted::default());
            Self { backlog, start: Instant::now(), ticks: 0, posted, queue: Vec::new(), carried: 0 }
        }

        fn post(&mut self, bytes: u64) {
            self.posted.work_requests += 1;
            self.posted.bytes += bytes;
            self.queue.push(bytes);
        }

        fn tick(&mut self, carried: u64) -> Duration {
            self.carried += carried;
            while self.queue.first().is_some_and(|first| *first <= self.carried) {
                self.carried -= self.queue.remove(0);
            }
            if self.queue.is_empty() {
                self.carried = 0;
            }
            self.ticks += 1;
            let now = self.start + Duration::from_millis(10) * self.ticks;
            self.backlog.add(now, self.posted, self.queue.len() as u64);
            self.backlog.time(SPEED)
        }
    }

    #[test]
    fn the_backlog_takes_as_long_as_the_port_reports_and_then_as_long_as_it_took() {
        let mut rail = Rail::new();
        assert_eq!(rail.tick(0), Duration::ZERO);
        (0..4).for_each(|_| rail.post(10 * MIB));
        assert_eq!(rail.tick(0), Duration::from_millis(40));
        // 100 ms each.
        for _ in 0..100 {
            if rail.queue.len() < 4 {
                rail.post(10 * MIB);
            }
            rail.tick(MIB);
        }
        let time = rail.tick(0);
        // At 100 MiB/s, and up to as much that has completed since.
        let exact = Duration::from_millis(100) * rail.queue.len() as u32;
        assert!((exact * 9 / 10..=exact * 5 / 2).contains(&time), "{time:?}");
        // Silence changes nothing.
        (0..1000).for_each(|_| assert_eq!(rail.tick(0), time));
        // What drains is not outstanding.
        while !rail.queue.is_empty() {
            rail.tick(MIB);
        }
        assert_eq!(rail.tick(0), Duration::ZERO);
    }

    #[test]
    fn small_and_quick_transfers_do_not_make_a_rail_slow() {
        let mut rail = Rail::new();
        for _ in 0..100 {
            // In flight for long, for another reason than their size.
            rail.post(1000);
            (0..10).for_each(|_| assert!(rail.tick(0) < Duration::from_millis(1)));
            rail.tick(1000);
            // Completed within one tick, which shows no more than 25 MiB/s.
            rail.post(MIB / 2);
            rail.tick(0);
            rail.tick(MIB / 2);
        }
        rail.post(10 * MIB);
        assert_eq!(rail.tick(0), Duration::from_millis(10));
    }

    #[test]
    fn a_rail_that_was_slow_is_fast_again_as_soon_as_it_shows() {
        let mut rail = Rail::new();
        (0..100).for_each(|_| rail.post(MIB));
        while !rail.queue.is_empty() {
            rail.tick(MIB / 10);
        }
        rail.post(10 * MIB);
        assert!(rail.tick(0) > Duration::from_millis(900));
        rail.post(10 * MIB);
        rail.tick(10 * MIB);
        rail.tick(10 * MIB);
        rail.post(10 * MIB);
        assert!(rail.tick(0) < Duration::from_millis(100));
    }

    #[test]
    fn a_rail_that_returns_owes_nothing() {
        let (posted, now) = (Posted { work_requests: 7, bytes: 100 * MIB }, Instant::now());
        let mut backlog = Backlog::none(posted);
        backlog.add(now, posted, 0);
        assert_eq!(backlog.time(SPEED), Duration::ZERO);
        let posted = Posted { work_requests: 8, bytes: 101 * MIB };
        backlog.add(now, posted, 1);
        assert_eq!(backlog.time(SPEED), Duration::from_millis(1));
    }
}
