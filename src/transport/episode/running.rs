//! What is reported of an episode once it has ended.

use std::time::Instant;

/// An episode, for the log and the statistics.
#[derive(Debug)]
pub(crate) struct Running {
    /// The first rail that was given up.
    pub(crate) rail: usize,
    pub(crate) begun: Instant,
    /// Bytes that were sent again.
    pub(crate) bytes: u64,
}
