//! Connections: the handshake that makes them, sends, receives, progress, registration.

mod apart;
mod arrival;
mod connect;
mod core;
mod cts;
mod depths;
mod early;
mod fifo;
mod flow;
mod flush;
mod group;
mod handshake;
mod joins;
mod lane;
mod mr;
mod offer;
mod peer;
mod probing;
mod profile;
mod rail;
mod recv;
mod request;
mod rounds;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod wiring;

pub use connect::{Listening, abandon, connect};
pub(crate) use early::look_after;
pub use mr::Mr;
pub(crate) use offer::{host_name, prefix_len, rail_info};
pub use recv::RecvComm;
pub use request::Request;
pub use send::SendComm;

use std::sync::Arc;

use nccl_net_versions::Profiler;

use crate::config::Config;
use crate::verbs::Timing;

/// What a communicator's connections have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The process's settings.
    pub config: Arc<Config>,
    /// What NCCL wants of this communicator's packets, where it says so.
    pub comm_traffic_class: Option<i32>,
    /// Whom NCCL wants to be told of work requests, where its version can say so.
    pub profiler: Option<Profiler>,
    /// Work requests in a send queue, at most. A device may have fewer.
    queue_depth: u32,
}

impl Settings {
    /// For one communicator.
    pub fn new(
        config: impl Into<Arc<Config>>,
        comm_traffic_class: Option<i32>,
        profiler: Option<Profiler>,
    ) -> Self {
        Self { config: config.into(), comm_traffic_class, profiler, queue_depth: u32::MAX }
    }

    /// Traffic class of RoCE packets, where the settings or the communicator say one.
    fn traffic_class(&self) -> Option<u8> {
        self.config.tc.or_else(|| u8::try_from(self.comm_traffic_class?).ok())
    }

    /// How long queue pairs wait for their peers.
    fn timing(&self) -> Timing {
        Timing { timeout: self.config.timeout, retries: self.config.retry_cnt }
    }

    /// InfiniBand service level, 0 to 15, likewise.
    fn service_level(&self) -> Option<u8> {
        let comm = || u8::try_from(self.comm_traffic_class?).ok().filter(|sl| *sl < 16);
        self.config.sl.or_else(comm)
    }
}

/// What an end of a connection does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It connected.
    Sender,
    /// It accepted.
    Receiver,
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Sender => "sending to",
            Self::Receiver => "receiving from",
        }
    }
}
