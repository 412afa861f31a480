//! What the agent knows, for display.

use std::net::Ipv4Addr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::Policy;
use crate::events::Event;

/// What the agent knows, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// What decides the shares.
    pub policy: Policy,
    /// Ports that are out of use.
    pub drained: Vec<String>,
    /// The same ports, with what is known of each drain.
    pub drains: Vec<DrainView>,
    /// The registered processes.
    pub processes: Vec<ProcessView>,
    /// Flows of the hint file.
    pub plain_flows: Vec<FlowView>,
    /// The latest events, oldest first.
    pub events: Vec<Event>,
}

/// A port that is out of use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DrainView {
    /// The port, as HCA and port.
    pub port: String,
    /// Who has taken it out of use: a user, `token` for a request with the token, or `configuration`.
    /// Null if an agent before 0.3 has kept it.
    pub by: Option<String>,
    /// Why, in that one's words.
    pub reason: Option<String>,
    /// Since when, in ms since 1970; null if that is not known.
    pub since_ms: Option<u64>,
}

/// A registered process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProcessView {
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Registered connections.
    pub connections: usize,
    /// Whether it has passed its statistics page.
    pub page: bool,
    /// Ports of SOUT and SUP, if they are known.
    pub ports: Option<[String; 2]>,
    /// Measured goodput of SOUT, in bytes per second.
    pub goodput_sout: Option<u64>,
    /// Measured goodput of SUP, in bytes per second.
    pub goodput_sup: Option<u64>,
    /// The share that the policy `measured` gives all flows of the process.
    pub measured_share: Option<u16>,
    /// The share that the process has used last.
    pub used_share: Option<u16>,
    /// Flows in the memory file: with more than 32 processes, not all of those that have many.
    pub flows: Vec<FlowView>,
    /// Flows that are not in `flows`: 8,192 of the host are, and each process has as much room.
    pub flows_not_shown: usize,
}

/// A flow and its share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FlowView {
    /// SOUT address of this host.
    pub source: Ipv4Addr,
    /// SOUT address of the other host.
    pub destination: Ipv4Addr,
    /// Part of SUP, in parts per 1024.
    pub share: u16,
    /// Connections of the flow.
    pub connections: usize,
}
