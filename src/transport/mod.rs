//! Established connections: sends, receives, progress, memory registration.

mod by_index;
pub(crate) mod comm;
pub(crate) mod failback;
pub(crate) mod failover;
pub(crate) mod life;
mod looks;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod peer;
mod profiler;
mod progress;
pub(crate) mod rail;
pub(crate) mod recv;
pub(crate) mod remote_memory;
mod request;
pub(crate) mod send;
pub(crate) mod send_queue;
mod waiting;

use std::sync::Arc;

use mpib_proto::SLOTS;
use nccl_net_versions::{Buffer, DmaBuf, MemKind, NetPlugin, Profiler, ProfilerHandle, RecvBuffer, Tagged};

use crate::agent::Subscription;
use crate::config::Config;
use crate::error::{Error, Fast, Result};
use crate::process::Process;
use crate::split::Splitter;
use crate::stats::Traffic;
pub(crate) use crate::transport::by_index::Copied;
use crate::transport::comm::Comm;
use crate::transport::recv::Receiver;
pub(crate) use crate::transport::recv::flush::{FLUSHES, LocalCopy, Towards};
use crate::transport::request::{Owner, Requests};
use crate::transport::send::Sender;
use crate::transport::send::window::SENDS;
use crate::verbs::Timing;

pub(crate) use memory::Mr;
#[cfg(any(test, feature = "simulation"))]
pub use recv::simulated as simulated_receiver;
pub(crate) use request::Request;

/// The settings that the connections of one communicator share.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The state that all communicators share.
    pub(crate) process: Arc<Process>,
    /// The environment's settings, as init read them.
    pub(crate) config: Arc<Config>,
    /// The communicator's traffic class, if NCCL passed one.
    pub(crate) comm_traffic_class: Option<i32>,
    /// The communicator's profiler callback, if its NCCL has one.
    pub(crate) profiler: Option<Profiler>,
    /// What its connections are for.
    pub(crate) traffic: Traffic,
    /// Limit for the depth of a send queue. A device may allow less.
    pub(crate) queue_depth: u32,
}

impl Settings {
    /// Makes the settings of one communicator.
    pub(crate) fn new(
        process: Arc<Process>,
        config: impl Into<Arc<Config>>,
        comm_traffic_class: Option<i32>,
        profiler: Option<Profiler>,
    ) -> Self {
        Self {
            process,
            config: config.into(),
            comm_traffic_class,
            profiler,
            traffic: Traffic::Messages,
            queue_depth: u32::MAX,
        }
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

/// Why a send or a receive has not been started by the shortest way.
#[derive(Debug)]
pub(crate) enum Unusual {
    /// It is not a usual one, or something is in its way. Nothing has been done.
    General,
    /// The comm is marked. Nothing has been done.
    Marked,
    /// A post has failed, which ends the connection.
    Failed(Box<Error>),
}

/// A sending comm.
#[derive(Debug)]
pub struct SendComm {
    /// Each refers to the sender, which does not refer to them.
    requests: Requests<SENDS>,
    sender: Arc<Sender>,
}

/// A receiving comm.
#[derive(Debug)]
pub struct RecvComm {
    /// By slot. Each refers to the receiver, which does not refer to them.
    requests: Requests<SLOTS>,
    /// `None` if the comm cannot flush.
    flushes: Option<Requests<FLUSHES>>,
    receiver: Arc<Receiver>,
}

impl SendComm {
    pub(crate) fn new(comm: Comm, splitter: Splitter, settings: &Settings) -> Self {
        let sender = Sender::new(comm, splitter, settings);
        let owner = |index| Owner::Send(index, Arc::clone(&sender));
        Self { requests: Requests::new(sender.cells(), owner), sender }
    }

    /// Registers memory for this comm's sends.
    pub(crate) fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.sender.memory().register(buffer, kind, dmabuf)
    }

    /// Returns whether [`send`](Self::send) is worth a call: whether the next receive has been
    /// posted, or there is something to report. Takes no lock.
    #[inline(always)]
    pub(crate) fn may_send(&self) -> bool {
        self.sender.may_send()
    }

    /// Starts a send to the receive with `tag` of the group that is being matched. Returns `None`
    /// if there is no such receive yet, or no room for another send.
    #[inline(always)]
    pub(crate) fn send(
        &self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<&Tagged<Request>>> {
        let index = self.sender.send(buffer, tag, mr, profiler)?;
        Ok(index.map(|index| self.requests.get(index)))
    }

    /// Sends BYE to the peer, and destroys the queue pairs.
    pub(crate) fn close(self) -> Result<()> {
        self.sender.close()
    }
}

impl RecvComm {
    pub(crate) fn new(comm: Comm, settings: &Settings, flow: Option<Subscription>) -> Self {
        let receiver = Receiver::new(comm, settings, flow);
        let flushes = receiver.flush_cells();
        let owner = |index| Owner::Flush(index, Arc::clone(&receiver));
        let flushes = flushes.map(|cells| Requests::new(&cells, owner));
        let owner = |index| Owner::Receive(index, Arc::clone(&receiver));
        Self { requests: Requests::new(receiver.cells(), owner), flushes, receiver }
    }

    /// Registers memory for this comm's receives.
    pub(crate) fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.receiver.memory().register(buffer, kind, dmabuf)
    }

    /// Offers a group of 1 to 8 buffers to the sender. Returns `None` while all slots are in use.
    /// `OPTIONAL`: NCCL does not need the completion of a single buffer.
    // Compiled for both cases: ordinary receives pay nothing for optional ones.
    #[inline(always)]
    pub(crate) fn receive<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<&Tagged<Request>>> {
        let index = self.receiver.receive::<P, OPTIONAL>(buffers)?;
        Ok(index.map(|index| self.requests.get(index)))
    }

    /// Makes arrived data in `buffers` visible to the GPU. Returns `None` if nothing has to be
    /// done, as for host memory.
    pub fn flush(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Fast<Option<&Tagged<Request>>> {
        let index = self.receiver.flush(buffers)?;
        Ok(index.zip(self.flushes.as_ref()).map(|(index, requests)| requests.get(index)))
    }

    /// Sends BYE to the peer, and destroys the queue pairs.
    pub(crate) fn close(self) -> Result<()> {
        self.receiver.close()
    }
}
