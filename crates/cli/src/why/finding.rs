//! What a verdict consists of.

use schemars::JsonSchema;
use serde::Serialize;

/// The kinds of finding. The gravest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Connections have failed: NCCL got an error.
    Failed,
    /// A process is stopped, hangs in the kernel, or has ended.
    Held,
    /// Processes wait for each other in a circle.
    Circle,
    /// Connections have no rail left.
    NoRail,
    /// Connections wait for receives that the peer has not posted.
    NoReceive,
    /// Adapters get no acknowledgements of the peer's adapter.
    NoAcknowledgements,
    /// Queues are full, and nothing of them is done.
    NoRoom,
    /// Nothing moves, and all that is missing is data of a peer: normal while it computes.
    NoData,
    /// Connections lack some of their rails.
    Degraded,
    /// A port carries less than half of what the others do, relative to their speeds.
    SlowRail,
    /// An operation of NCCL took much longer than usual, and a rail explains it.
    SlowOperation,
    /// A port gets no new data, since it is drained.
    Drained,
    /// Nothing moves, and nothing waits.
    Idle,
    /// Data moves, and nothing is wrong.
    Fine,
    /// No process has a statistics page.
    NoPage,
}

/// One finding.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    /// The finding in one sentence.
    pub(crate) text: String,
    /// What it is seen from.
    pub(crate) evidence: Vec<String>,
    /// What to do next; null if there is nothing to do.
    pub(crate) next: Option<String>,
    /// The processes of this host that it is about.
    pub(crate) processes: Vec<u32>,
    /// The process to look at; null if it is about no single one.
    pub(crate) cause: Option<Cause>,
    /// Since when, in ms since 1970 (UTC); null if that is not known.
    pub(crate) since_ms: Option<u64>,
}

/// The process that others wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Cause {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Whether this command has seen its statistics page.
    pub(crate) seen: bool,
}

impl Kind {
    /// Returns whether somebody has something to do.
    pub(crate) fn is_fault(self) -> bool {
        !matches!(self, Self::Idle | Self::Fine | Self::NoPage)
    }
}

impl Finding {
    /// Makes a finding about processes of this host, without evidence.
    pub(super) fn new(kind: Kind, text: String, processes: Vec<u32>) -> Self {
        Self { kind, text, evidence: Vec::new(), next: None, processes, cause: None, since_ms: None }
    }
}

/// Formats some of all connections, with what stands before the verb: `1 of 4 connections waits`.
pub(super) fn connections(n: usize, of: usize, between: &str, [one, many]: [&str; 2]) -> String {
    match (n, of) {
        (_, 1) => format!("the connection{between} {one}"),
        (1, _) => format!("1 of {of} connections{between} {one}"),
        _ => format!("{n} of {of} connections{between} {many}"),
    }
}

/// Formats a list: `1, 2 and 3`.
pub(super) fn list(items: &[impl ToString]) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_words() {
        assert_eq!([&[7][..], &[1, 2], &[1, 2, 3]].map(list), ["7", "1 and 2", "1, 2 and 3"]);
    }
}
