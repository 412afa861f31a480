//! How long a port or a route that has failed stays out of use after it works again.

use std::time::{Duration, Instant};

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait. Attempts never end.
const LONGEST: Duration = Duration::from_secs(30);
/// A failure after this long in use has the first wait again.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The hold-down of one port or route. The wait doubles with each failure that follows soon, and
/// with each failed attempt to return.
#[derive(Debug, Default, Clone)]
pub(super) struct HoldDown {
    wait: Duration,
    /// When the subject may return; `None` while it is in use.
    until: Option<Instant>,
    /// When it was last taken into use again.
    returned: Option<Instant>,
}

impl HoldDown {
    /// Counts a failure. A second one of the same outage has no effect.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.until.is_some() {
            return;
        }
        let soon = self.returned.is_some_and(|at| now.saturating_duration_since(at) < FORGOTTEN);
        self.wait = if soon { (self.wait * 2).min(LONGEST) } else { FIRST };
        self.until = Some(now + self.wait);
    }

    /// Begins the wait again, since the subject has only now become reachable.
    pub(super) fn restart(&mut self, now: Instant) {
        if self.until.is_some() {
            self.until = Some(now + self.wait);
        }
    }

    /// Counts a failed attempt to return: the wait doubles. Connections attempt to return at the
    /// same time, so of their failures the first counts.
    pub(super) fn attempt_failed(&mut self, now: Instant) {
        match self.until {
            None => self.failed(now),
            Some(until) if now >= until => {
                self.wait = (self.wait * 2).min(LONGEST);
                self.until = Some(now + self.wait);
            }
            Some(_) => {}
        }
    }

    /// Ends the outage.
    pub(super) fn returned(&mut self, now: Instant) {
        if self.until.take().is_some() {
            self.returned = Some(now);
        }
    }

    /// Returns whether the wait is over, or the subject is in use.
    pub(super) fn may_return(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Returns whether nothing of past failures counts any more.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        self.until.is_none() && self.returned.is_none_or(|at| now.saturating_duration_since(at) >= FORGOTTEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= rail-life.md: the hold-down
    #[test]
    fn the_wait_doubles_up_to_its_longest_and_is_forgotten_in_the_end() {
        let (mut hold, start) = (HoldDown::default(), Instant::now());
        let mut now = start;
        assert!(hold.may_return(now) && hold.is_forgotten(now));
        for wait in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let wait = Duration::from_millis(wait);
            hold.failed(now);
            hold.failed(now + wait / 2);
            assert!(!hold.may_return(now + wait - Duration::from_millis(1)), "{wait:?}");
            assert!(hold.may_return(now + wait), "{wait:?}");
            now += wait;
            hold.returned(now);
            assert!(hold.may_return(now) && !hold.is_forgotten(now));
            // Just not long enough to be forgotten.
            now += FORGOTTEN - Duration::from_millis(1);
        }
        now += Duration::from_millis(1);
        assert!(hold.is_forgotten(now));
        hold.failed(now);
        assert!(hold.may_return(now + FIRST), "the first wait again");
    }

    //= rail-life.md: the hold-down
    #[test]
    fn failed_attempts_double_the_wait_without_an_end() {
        let (mut hold, mut now) = (HoldDown::default(), Instant::now());
        hold.attempt_failed(now);
        now += FIRST;
        assert!(hold.may_return(now) && !hold.may_return(now - Duration::from_millis(1)));
        for wait in [1, 2, 4, 8, 16, 30, 30, 30] {
            (0..3).for_each(|_| hold.attempt_failed(now));
            let wait = Duration::from_secs(wait);
            assert!(!hold.may_return(now + wait - Duration::from_millis(1)) && hold.may_return(now + wait));
            now += wait;
        }
        hold.restart(now);
        assert!(!hold.may_return(now) && hold.may_return(now + LONGEST));
    }
}
