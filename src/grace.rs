//! A time of grace that calls in quick succession share.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A time that things get to finish, however many are waited for one after another: what has not come
/// while the first ones were waited for does not come later.
#[derive(Debug)]
pub(crate) struct Grace {
    time: Duration,
    /// The least time that each one gets.
    least: Duration,
    last: Mutex<Option<Wait>>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    until: Instant,
    /// When one was last waited for.
    ended: Instant,
}

impl Grace {
    pub(crate) const fn new(time: Duration, least: Duration) -> Self {
        Self { time, least, last: Mutex::new(None) }
    }

    /// Returns until when to wait from `now` on. The time is over unless it is longer ago than itself
    /// that one was waited for.
    pub(crate) fn begin(&self, now: Instant) -> Instant {
        let mut last = self.last.lock();
        let shared = last.filter(|wait| now.saturating_duration_since(wait.ended) < self.time);
        let until = shared.map_or(now + self.time, |wait| wait.until.max(now + self.least));
        *last = Some(Wait { until: shared.map_or(until, |wait| wait.until), ended: now });
        until
    }

    /// Notes that the wait that began last is over.
    pub(crate) fn end(&self, now: Instant) {
        if let Some(wait) = &mut *self.last.lock() {
            wait.ended = wait.ended.max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_follow_at_once_share_the_time() {
        let ms = Duration::from_millis;
        let (grace, start) = (Grace::new(ms(200), ms(1)), Instant::now());
        assert_eq!(grace.begin(start), start + ms(200));
        grace.end(start + ms(200));
        for i in 0..64 {
            let now = start + ms(200 + i);
            assert_eq!(grace.begin(now), now + ms(1));
            grace.end(now + ms(1));
        }
        // A first one that ends early leaves its time to the next.
        let later = start + ms(1000);
        assert_eq!(grace.begin(later), later + ms(200));
        grace.end(later + ms(50));
        assert_eq!(grace.begin(later + ms(50)), later + ms(200));
        grace.end(later + ms(200));
        assert_eq!(grace.begin(later + ms(400)), later + ms(600), "nobody has waited for long");
    }
}
