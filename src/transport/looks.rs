//! Time that counts only while this process looks.

use std::time::{Duration, Instant};

/// Adds up time for a limit. A debugger or a batch system may stop the process, and its machine may be
/// paused: then nobody looks, and what may have worked meanwhile could not be seen.
#[derive(Debug)]
pub(crate) struct Looks {
    /// What counts at most between two looks.
    most: Duration,
    last: Instant,
}

impl Looks {
    pub(crate) fn begin(now: Instant, most: Duration) -> Self {
        Self { most, last: now }
    }

    /// Returns the time since the last look, as far as it counts.
    pub(crate) fn passed(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(std::mem::replace(&mut self.last, now)).min(self.most)
    }
}
