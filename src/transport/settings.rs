//! The settings that the connections of one communicator share.

use std::sync::Arc;

use nccl_net_versions::Profiler;

use crate::config::Config;
use crate::process::Process;
use crate::verbs::Timing;

/// The settings that the connections of one communicator share.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The state that all communicators share.
    pub process: Arc<Process>,
    /// The environment's settings, as init read them.
    pub config: Arc<Config>,
    /// The communicator's traffic class, if NCCL passed one.
    pub comm_traffic_class: Option<i32>,
    /// The communicator's profiler callback, if its NCCL has one.
    pub profiler: Option<Profiler>,
    /// Limit for the depth of a send queue. A device may allow less.
    pub(crate) queue_depth: u32,
}

impl Settings {
    /// Makes the settings of one communicator.
    pub fn new(
        process: Arc<Process>,
        config: impl Into<Arc<Config>>,
        comm_traffic_class: Option<i32>,
        profiler: Option<Profiler>,
    ) -> Self {
        Self { process, config: config.into(), comm_traffic_class, profiler, queue_depth: u32::MAX }
    }

    /// Returns the traffic class of RoCE packets, if the environment or the communicator sets one.
    pub(crate) fn traffic_class(&self) -> Option<u8> {
        self.config.tc.or_else(|| u8::try_from(self.comm_traffic_class?).ok())
    }

    /// Returns the transport timeout and retry count of queue pairs.
    pub(crate) fn timing(&self) -> Timing {
        Timing { timeout: self.config.timeout, retries: self.config.retry_cnt }
    }

    /// Returns the InfiniBand service level, 0 to 15, if the environment or the communicator sets
    /// one.
    pub(crate) fn service_level(&self) -> Option<u8> {
        let comm = || u8::try_from(self.comm_traffic_class?).ok().filter(|sl| *sl < 16);
        self.config.sl.or_else(comm)
    }
}
