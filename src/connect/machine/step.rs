//! The message that is due from the peer, and the time that the peer has for it.

use std::time::{Duration, Instant};

/// A wait for one message of the peer.
#[derive(Debug)]
pub(super) struct Step {
    name: &'static str,
    limit: Duration,
    until: Instant,
    /// Number of warnings so far; `None` if the step ends with its time.
    warnings: Option<u32>,
}

/// The consequence of a step whose time is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// A line for the log. The wait goes on.
    Warn(String),
    /// The reason why the handshake fails.
    Fail(String),
}

impl Step {
    /// Begins a wait that ends after `limit`.
    pub(super) fn new(name: &'static str, now: Instant, limit: Duration) -> Self {
        Self { name, limit, until: now + limit, warnings: None }
    }

    /// Begins a wait without an end. A warning follows each `interval`.
    pub(super) fn patient(name: &'static str, now: Instant, interval: Duration) -> Self {
        Self { warnings: Some(0), ..Self::new(name, now, interval) }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) const fn deadline(&self) -> Instant {
        self.until
    }

    /// Begins anew: the peer has all of the step's time.
    pub(super) fn restart(&mut self, now: Instant) {
        self.until = now + self.limit;
    }

    /// Ends the wait, or prolongs a patient one.
    pub(super) fn expire(&mut self, now: Instant, peer: &str) -> Overdue {
        let (name, ms) = (self.name, self.limit.as_millis());
        let Some(warnings) = &mut self.warnings else {
            return Overdue::Fail(format!(
                "{peer}: nothing came within {ms} ms while waiting for {name} (MPIB_CONNECT_TIMEOUT_MS)"
            ));
        };
        *warnings = warnings.saturating_add(1);
        let ms = ms.saturating_mul((*warnings).into());
        self.until = now + self.limit;
        Overdue::Warn(format!("connect: connected to {peer}; still waiting for {name} after {ms} ms"))
    }
}
