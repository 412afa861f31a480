//! What the API returns.

use std::net::Ipv4Addr;

use mpib_host_view::{Connection, Host, Waits};
use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::History;
use crate::Snapshot;

/// The most connections in an event of the stream.
pub const STREAM_CONNECTIONS: usize = 200;

/// What happens on this host, and what the agent has decided.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Document {
    /// What the processes do. Rates are those since the reading before.
    pub host: Host,
    /// What the agent has decided, and the latest events.
    pub agent: Snapshot,
    /// Connections that are omitted from `host` in the stream, which has 200: the
    /// failed ones, those that wait or lack a rail, and the busiest.
    pub connections_omitted: usize,
}

impl Document {
    /// Returns the document with at most [`STREAM_CONNECTIONS`] connections.
    pub(super) fn bounded(&self) -> Self {
        let all = self.host.processes.iter().flat_map(|process| &process.connections);
        let rank = |connection: &Connection| rank(connection, self.host.at_ms);
        let mut ranks: Vec<_> = all.map(rank).collect();
        if ranks.len() <= STREAM_CONNECTIONS {
            return self.clone();
        }
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        let least = ranks[STREAM_CONNECTIONS - 1];
        // Of those that are equal to the last one, as many as there is room for.
        let mut equal = ranks[..STREAM_CONNECTIONS].iter().filter(|rank| **rank == least).count();
        let host = self.host.with_connections(|connection| match rank(connection) {
            rank if rank == least => equal.checked_sub(1).map(|rest| equal = rest).is_some(),
            rank => rank > least,
        });
        let connections_omitted = ranks.len() - STREAM_CONNECTIONS;
        Self { host, agent: self.agent.clone(), connections_omitted }
    }
}

/// Failed connections come first, then those that have waited for long, then those that lack a rail,
/// then those with the largest rates.
fn rank(connection: &Connection, at_ms: u64) -> (bool, bool, bool, u64) {
    let rate = connection.bytes_per_second.unwrap_or_default() as u64;
    (connection.state == "failed", connection.has_waited_long(at_ms), connection.is_degraded(), rate)
}

/// The body of `POST /api/v1/drain`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// The port, as HCA and port.
    pub port: String,
    /// Whether the port is to be out of use.
    pub drain: bool,
    /// Why, for those who look later: at most 200 characters.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whether the port may be one that neither an adapter nor a process of the host has.
    #[serde(default)]
    pub force: bool,
}

/// The body of `POST /api/v1/shares`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// SOUT address of this host.
    pub source: Ipv4Addr,
    /// SOUT address of the other host.
    pub destination: Ipv4Addr,
    /// Part of SUP, in parts per 1024.
    #[schemars(range(max = 1024))]
    pub share: u16,
}

/// The answer to `POST /api/v1/drain`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Drained {
    /// Ports that are out of use now.
    pub drained: Vec<String>,
}

/// The answer to `POST /api/v1/shares`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SharesSet {
    /// Flows that there are now between the two addresses. A later one will have the share, too.
    pub flows: usize,
}

/// The answer to a request that is refused.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Why, and what to do.
    pub error: String,
}

/// Returns the JSON schemas of everything that the API takes and returns, as text.
pub fn schema() -> String {
    let schemas: Value = json!({
        "GET /api/v1/host": schema_for!(Document),
        "GET /api/v1/waits": schema_for!(Waits),
        "GET /api/v1/history": schema_for!(History),
        "POST /api/v1/drain": { "request": schema_for!(Drain), "response": schema_for!(Drained) },
        "POST /api/v1/shares": { "request": schema_for!(Share), "response": schema_for!(SharesSet) },
        "errors": schema_for!(Failure),
    });
    serde_json::to_string_pretty(&schemas).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use mpib_host_view::{Process, Rail, Wait};

    use super::*;
    use crate::{Agent, Config};

    //= agent.md: an event of the stream has at most 200 connections
    #[test]
    fn the_stream_has_the_failed_the_stuck_the_degraded_and_the_busiest_connections() {
        let connection = |index: usize| Connection {
            index,
            state: if index == 3 { "failed" } else { "open" }.into(),
            // Many are equal.
            bytes_per_second: Some((index / 7) as f64),
            wait: (index == 5).then(Wait::default),
            rails: vec![Rail { lacks: (index == 9).then(|| "port".into()), ..Rail::default() }],
            ..Connection::default()
        };
        let process = |from: usize| Process {
            connections: (from..from + 300).map(connection).collect(),
            ..Process::default()
        };
        let host = Host { at_ms: 5_000, processes: vec![process(0), process(300)], ..Host::default() };
        let agent = Agent::new(Config::default(), None, Default::default()).snapshot();
        let document = Document { host, agent, connections_omitted: 0 };
        let bounded = document.bounded();
        let left: Vec<usize> =
            bounded.host.processes.iter().flat_map(|p| &p.connections).map(|c| c.index).collect();
        assert_eq!((left.len(), bounded.connections_omitted), (200, 400));
        assert!(
            [3, 5, 9].iter().all(|index| left.contains(index))
                && left.iter().filter(|i| **i >= 406).count() == 194,
            "{left:?}"
        );
        assert_eq!(bounded.bounded().host, bounded.host);
    }
}
