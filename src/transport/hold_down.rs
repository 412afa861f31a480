//! How long a rail that has failed is not tried again.

use std::time::{Duration, Instant};

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);
/// Each failure doubles the wait, up to this.
const LONGEST: Duration = Duration::from_secs(30);
/// A rail that has worked for so long begins with the first wait again.
const HEALTHY: Duration = Duration::from_secs(600);
/// How often the state of a port that cannot be used is read.
const LOOK: Duration = Duration::from_secs(1);

/// The waits of one rail.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HoldDown {
    /// The last wait; zero before the first.
    wait: Duration,
    until: Option<Instant>,
    back_since: Option<Instant>,
}

impl HoldDown {
    /// Notes that the rail has failed.
    pub(crate) fn died(&mut self, now: Instant) {
        if self.back_since.take().is_none_or(|since| now - since >= HEALTHY) {
            self.wait = Duration::ZERO;
        }
        self.failed(now);
    }

    /// Notes that an attempt has failed.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.wait = (self.wait * 2).clamp(FIRST, LONGEST);
        self.until = Some(now + self.wait);
    }

    /// Notes that this end's port cannot be used yet.
    pub(crate) fn is_unusable(&mut self, now: Instant) {
        self.until = Some(now + LOOK);
    }

    /// Ends the wait: the peer's port can be used again.
    pub(crate) fn end(&mut self, now: Instant) {
        self.until = Some(now);
    }

    /// Notes that the rail is back.
    pub(crate) fn is_back(&mut self, now: Instant) {
        self.back_since = Some(now);
    }

    /// Returns when the rail may be tried.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_the_rail_has_worked_for_long() {
        let start = Instant::now();
        let mut rail = HoldDown::default();
        let wait = |rail: &HoldDown, from: Instant| (rail.until().unwrap() - from).as_millis();
        rail.died(start);
        let mut waits = vec![wait(&rail, start)];
        for _ in 0..7 {
            rail.failed(start);
            waits.push(wait(&rail, start));
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        rail.is_unusable(start);
        assert_eq!(wait(&rail, start), 1000);
        rail.is_back(start);
        rail.died(start + HEALTHY - LOOK);
        assert_eq!(wait(&rail, start + HEALTHY - LOOK), 30_000, "a rail that flaps");
        rail.is_back(start);
        rail.died(start + HEALTHY);
        assert_eq!(wait(&rail, start + HEALTHY), 500);
        rail.end(start);
        assert_eq!(rail.until(), Some(start));
    }
}
