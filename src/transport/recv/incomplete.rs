//! How long a group has had some of its parts and not the others.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::housekeeping::TICK;
use crate::proto::Sequence;

/// The oldest group with a part that has arrived and another one that has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incomplete {
    pub(super) seq: Sequence,
    /// Mask of the parts that have arrived.
    pub(super) got: u8,
    /// Mask of the others.
    pub(super) missing: u8,
}

/// How long the oldest incomplete group has not changed.
#[derive(Debug)]
pub(super) struct Promises {
    pub(super) limit: Duration,
    oldest: Option<Incomplete>,
    waited: Duration,
    last: Instant,
}

impl Promises {
    /// The limit is `MPIB_PEER_TIMEOUT_MS`, and not less than the time in which adapters give up.
    pub(super) fn new(config: &Config) -> Self {
        let limit = config.peer_timeout.max(config.retry_time().longest);
        Self { limit, oldest: None, waited: Duration::ZERO, last: Instant::now() }
    }

    /// Takes in what is incomplete now. Returns whether it has not changed for the limit.
    pub(super) fn add(&mut self, now: Instant, oldest: Option<Incomplete>) -> bool {
        // A pause of this process does not count.
        let passed = now.saturating_duration_since(self.last).min(2 * TICK);
        self.waited = if oldest == self.oldest { self.waited + passed } else { Duration::ZERO };
        (self.oldest, self.last) = (oldest, now);
        oldest.is_some() && self.waited >= self.limit
    }
}
