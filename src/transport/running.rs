//! What is reported of an episode once it has ended.

use std::time::Instant;

use crate::proto::RailSet;

/// An episode, for the log and the statistics.
#[derive(Debug)]
pub(crate) struct Running {
    /// The first rail that was given up.
    pub(crate) rail: usize,
    pub(crate) begun: Instant,
    /// Bytes that were sent again. Senders count them.
    pub(crate) bytes: u64,
}

impl Running {
    /// Begins an episode with the failure of these rails.
    pub(crate) fn new(failed: RailSet) -> Self {
        Self { rail: failed.lowest().unwrap_or(0), begun: Instant::now(), bytes: 0 }
    }
}
