//! The failed rails of a comm.

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
}

impl RailFailures {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, ..Self::default() }
    }

    /// Returns whether the comm goes on without a failed rail.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the rails that have failed, given up or not. Their completions mean nothing more.
    pub(crate) fn noticed(&self) -> u8 {
        self.new | self.dead
    }
}
