//! The failed rails of a comm, and what was done to bring them back.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::proto::{RailSet, rails};

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
    /// By rail, as far as there were any.
    attempts: Vec<Attempts>,
}

/// The attempts to bring a rail back since it was given up.
#[derive(Debug, Default, Clone)]
struct Attempts {
    begun: u32,
    /// When the last one began.
    last: Option<Instant>,
    /// Why it has failed; `None` while it goes on.
    failed: Option<String>,
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

    /// Notes that an attempt to bring rails back begins.
    pub(crate) fn attempt_begins(&mut self, which: RailSet) {
        for rail in which.iter() {
            self.attempts.resize(self.attempts.len().max(rail + 1), Attempts::default());
            let begun = self.attempts[rail].begun.saturating_add(1);
            self.attempts[rail] = Attempts { begun, last: Some(Instant::now()), failed: None };
        }
    }

    /// Notes that an attempt to bring rails back has failed.
    pub(crate) fn attempt_failed(&mut self, which: RailSet, why: &Error) {
        for rail in which.iter() {
            if let Some(attempts) = self.attempts.get_mut(rail) {
                attempts.failed = Some(why.to_string());
            }
        }
    }

    /// Describes the attempts to bring a rail back.
    pub(super) fn attempts(&self, rail: usize) -> String {
        let Some(Attempts { begun, last: Some(last), failed }) = self.attempts.get(rail) else {
            return "no attempt to bring it back has begun".into();
        };
        let (plural, ago) = (if *begun == 1 { "" } else { "s" }, last.elapsed().as_secs_f64());
        let result = failed.as_deref().map_or("has had no answer".into(), |why| format!("has failed: {why}"));
        format!(
            "{begun} attempt{plural} to bring it back, of which the last began {ago:.1} s ago and {result}"
        )
    }

    /// Notes that rails have new queue pairs.
    pub(crate) fn revive(&mut self, which: u8) {
        self.dead &= !which;
        self.new &= !which;
        self.none_since = None;
        for rail in rails(which) {
            self.attempts.get_mut(rail).map(std::mem::take);
        }
        if self.dead == 0 {
            self.first = None;
        }
    }
}
