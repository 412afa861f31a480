//! A bound on how often something happens.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Lets a number of events through in each minute.
#[derive(Debug)]
pub(crate) struct PerMinute {
    limit: usize,
    let_through: VecDeque<Instant>,
}

impl PerMinute {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, let_through: VecDeque::with_capacity(limit) }
    }

    /// Returns whether one more may happen `now`, and counts it if so.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        while self.let_through.front().is_some_and(|at| now.duration_since(*at) > MINUTE) {
            self.let_through.pop_front();
        }
        let allowed = self.let_through.len() < self.limit;
        if allowed {
            self.let_through.push_back(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_one_of_every_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut one = PerMinute::new(2);
        let seen: Vec<bool> = [0, 30, 40, 61, 62, 91, 92].map(|seconds| one.allows(at(seconds))).to_vec();
        assert_eq!(seen, [true, true, false, true, false, true, false]);
    }
}
