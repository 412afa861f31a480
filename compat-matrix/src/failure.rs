//! Why something could not be done, in words, and what that means for a run.

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// What a failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The options make no sense.
    Usage,
    /// The library could not be fetched: nothing is known of the release.
    Missing,
    /// The release or the plugin does not do what it should.
    Wrong,
    /// The other process of a pair is gone, which says why.
    Peer,
    /// This program failed, or what it needs is not built.
    Tool,
}

/// A failure with its sentence.
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

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    /// A [`Kind::Tool`] failure: "cannot WHAT: why".
    fn cannot(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn cannot(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Failure::tool(format!("cannot {what}: {e}")))
    }
}
