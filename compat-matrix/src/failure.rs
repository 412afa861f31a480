//! Failures in words, and their meaning for a run.

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The meaning of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Invalid options.
    Usage,
    /// The library could not be fetched: nothing is known about the release.
    Missing,
    /// The release lacks what a check needs.
    Unfit,
    /// The release fails without the plugin too.
    Core,
    /// The release or the plugin does not do what it should.
    Wrong,
    /// The other process of a pair has ended; its own failure has the cause.
    Peer,
    /// This program failed, or something that it needs is not built.
    Tool,
}

/// A failure with its text.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into() }
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self { kind: Kind::Missing, message: message.into() }
    }

    pub(crate) fn unfit(message: impl Into<String>) -> Self {
        Self { kind: Kind::Unfit, message: message.into() }
    }

    pub(crate) fn core(message: impl Into<String>) -> Self {
        Self { kind: Kind::Core, message: message.into() }
    }

    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self { kind: Kind::Wrong, message: message.into() }
    }

    pub(crate) fn peer(message: impl Into<String>) -> Self {
        Self { kind: Kind::Peer, message: format!("lost the other process: {}", message.into()) }
    }

    pub(crate) fn tool(message: impl Into<String>) -> Self {
        Self { kind: Kind::Tool, message: message.into() }
    }
}

/// Adds the failed action to an error of the system.
pub(crate) trait Context<T> {
    /// Makes a [`Kind::Tool`] failure: "cannot WHAT: why".
    fn cannot(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn cannot(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Failure::tool(format!("cannot {what}: {e}")))
    }
}
