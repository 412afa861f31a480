//! The failed rails of a comm.

use std::time::{Duration, Instant};

use crate::error::Error;

/// The rails of a comm that have failed.
#[derive(Debug, Default)]
pub(crate) struct RailFailures {
    /// Whether the comm goes on without a failed rail (`MPIB_FAILOVER`).
    pub(super) enabled: bool,
    /// Rails that have failed and are not given up yet.
    pub(super) new: u8,
    /// Rails that are given up.
    pub(super) dead: u8,
    /// The first failure, for the case that no rail is left.
    pub(super) first: Option<Error>,
    /// How long the comm may be without a rail (`MPIB_FAILOVER_WAIT`).
    pub(super) wait: Duration,
    /// Since when it has none.
    pub(super) none_since: Option<Instant>,
}

impl RailFailures {
    /// `wait`: how long the comm may be without a rail.
    pub(crate) fn new(enabled: bool, wait: Duration) -> Self {
        Self { enabled, wait, ..Self::default() }
    }

    /// Returns whether the comm goes on without a failed rail.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the rails that have failed, given up or not. Their completions mean nothing more.
    pub(crate) fn noticed(&self) -> u8 {
        self.new | self.dead
    }

    /// Notes that rails have new queue pairs.
    pub(crate) fn revive(&mut self, rails: u8) {
        self.dead &= !rails;
        self.new &= !rails;
        self.none_since = None;
        if self.dead == 0 {
            self.first = None;
        }
    }
}
