//! What the connections of one communicator have in common.

use std::sync::Arc;

use nccl_net_versions::Profiler;

use crate::config::Config;
use crate::process::Process;
use crate::verbs::Timing;

/// What a communicator's connections have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The state that all communicators share.
    pub process: Arc<Process>,
    /// The process's settings.
    pub config: Arc<Config>,
    /// What NCCL wants of this communicator's packets, where it says so.
    pub comm_traffic_class: Option<i32>,
    /// Whom NCCL wants to be told of work requests, where its version can say so.
    pub profiler: Option<Profiler>,
    /// Work requests in a send queue, at most. A device may have fewer.
    pub(crate) queue_depth: u32,
}

impl Settings {
    /// For one communicator.
    pub fn new(
        process: Arc<Process>,
        config: impl Into<Arc<Config>>,
        comm_traffic_class: Option<i32>,
        profiler: Option<Profiler>,
    ) -> Self {
        Self { process, config: config.into(), comm_traffic_class, profiler, queue_depth: u32::MAX }
    }

    /// Traffic class of RoCE packets, where the settings or the communicator say one.
    pub(crate) fn traffic_class(&self) -> Option<u8> {
        self.config.tc.or_else(|| u8::try_from(self.comm_traffic_class?).ok())
    }

    /// How long queue pairs wait for their peers.
    pub(crate) fn timing(&self) -> Timing {
        Timing { timeout: self.config.timeout, retries: self.config.retry_cnt }
    }

    /// InfiniBand service level, 0 to 15, likewise.
    pub(crate) fn service_level(&self) -> Option<u8> {
        let comm = || u8::try_from(self.comm_traffic_class?).ok().filter(|sl| *sl < 16);
        self.config.sl.or_else(comm)
    }
}
