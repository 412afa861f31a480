//! Decides when a fault is logged: once when it begins or becomes another one, once when it is
//! over.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

/// One subject of the log.
#[derive(Debug)]
pub(super) struct FaultLog<F> {
    gap: Duration,
    /// What was last logged, and when: a kind of fault, or that there is none.
    logged: Option<(Option<Discriminant<F>>, Instant)>,
    /// Since when there have been faults without a break.
    since: Option<Instant>,
    /// `since` as of the last line that was logged.
    logged_since: Option<Instant>,
    /// When what was held back may be logged.
    due: Option<Instant>,
}

/// What to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// A fault that began so long ago. `instead`: another fault was logged before it.
    Fault { lasting: Duration, instead: bool },
    /// No fault, after one that lasted so long, or for the first time.
    Good { after: Option<Duration> },
}

impl<F> FaultLog<F> {
    pub(super) fn new(gap: Duration) -> Self {
        Self { gap, logged: None, since: None, logged_since: None, due: None }
    }

    /// Takes the present fault and when it began, if there is one. Returns what to log, if
    /// anything. Faults of one kind are one fault.
    pub(super) fn update(&mut self, now: Instant, fault: Option<(&F, Instant)>) -> Option<Change> {
        let kind = fault.map(|(f, _)| discriminant(f));
        self.since = fault.map(|(_, since)| self.since.unwrap_or(since));
        self.due = None;
        match self.logged {
            Some((logged, _)) if logged == kind => return None,
            Some((_, at)) if now.saturating_duration_since(at) < self.gap => {
                self.due = Some(at + self.gap);
                return None;
            }
            _ => {}
        }
        let instead = matches!(self.logged, Some((Some(_), _)));
        self.logged = Some((kind, now));
        let age = |since: Instant| now.saturating_duration_since(since);
        match self.since {
            Some(since) => {
                self.logged_since = Some(since);
                Some(Change::Fault { lasting: age(since), instead })
            }
            None => Some(Change::Good { after: self.logged_since.take().map(age) }),
        }
    }

    /// Returns when to call [`update`](Self::update) again, if it held something back.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

/// A duration as people read it.
pub(super) struct Human(pub(super) Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0..600 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            s @ 600..36_000 => write!(f, "{} min", s / 60),
            s => write!(f, "{} h {} min", s / 3600, s / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Fault {
        A(#[expect(dead_code, reason = "only that it differs counts")] u8),
        B,
    }

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn each_change_is_logged_once_with_its_time() {
        let (start, mut log) = (Instant::now(), FaultLog::new(Duration::ZERO));
        let mut look = |at, fault: Option<(Fault, u64)>| {
            log.update(start + S(at), fault.as_ref().map(|(f, since)| (f, start + S(*since))))
        };
        assert_eq!(look(10, None), Some(Change::Good { after: None }));
        assert_eq!(look(11, None), None);
        assert_eq!(look(12, Some((Fault::A(1), 11))), Some(Change::Fault { lasting: S(1), instead: false }));
        assert_eq!(look(13, Some((Fault::A(2), 13))), None, "of one kind");
        assert_eq!(look(14, Some((Fault::B, 14))), Some(Change::Fault { lasting: S(3), instead: true }));
        assert_eq!(look(20, None), Some(Change::Good { after: Some(S(9)) }));
        assert_eq!(look(30, Some((Fault::B, 30))), Some(Change::Fault { lasting: S(0), instead: false }));
    }

    #[test]
    fn what_comes_and_goes_fills_no_log() {
        let (start, mut log) = (Instant::now(), FaultLog::new(S(10)));
        let mut look = |at, bad: bool| log.update(start + S(at), bad.then_some((&Fault::B, start + S(at))));
        assert!(look(0, true).is_some());
        assert!((1..10).all(|at| look(at, at % 2 == 0).is_none()));
        assert_eq!(look(10, true), None, "as it was logged");
        assert_eq!(look(11, false), Some(Change::Good { after: Some(S(11)) }));
        assert_eq!((look(12, true), look(20, true)), (None, None));
        assert_eq!(look(21, true), Some(Change::Fault { lasting: S(9), instead: false }));
    }

    #[test]
    fn times_are_for_people() {
        let text = |s| Human(Duration::from_millis(s)).to_string();
        assert_eq!(
            [text(1234), text(599_000), text(600_000), text(90_061_000)],
            ["1.2 s", "599.0 s", "10 min", "25 h 1 min"]
        );
    }
}
