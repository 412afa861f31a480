//! The two kinds of comms, as NCCL holds them: one end of a connection with its requests.

use std::sync::Arc;

use nccl_net_versions::{Buffer, DmaBuf, MemKind, NetPlugin, ProfilerHandle, RecvBuffer, Tagged};

use crate::agent::Subscription;
use crate::error::{Fast, Result};
use crate::proto::SLOTS;
use crate::split::Splitter;
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::recv::Receiver;
use crate::transport::recv::flush::FLUSHES;
use crate::transport::request::{Owner, Request, Requests};
use crate::transport::send::Sender;
use crate::transport::send::group::SENDS;
use crate::transport::settings::Settings;

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
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.sender.memory().register(buffer, kind, dmabuf)
    }

    /// Returns whether [`send`](Self::send) is worth a call: whether the next receive has been
    /// posted, or there is something to report. Takes no lock.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.sender.may_send()
    }

    /// Starts a send to the receive with `tag` of the group that is being matched. Returns `None`
    /// if there is no such receive yet, or no room for another send.
    #[inline(always)]
    pub fn send(
        &self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<&Tagged<Request>>> {
        let index = self.sender.send(buffer, tag, mr, profiler)?;
        Ok(index.map(|index| self.requests.get(index)))
    }

    /// Sends BYE to the peer.
    pub fn close(self) -> Result<()> {
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
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.receiver.memory().register(buffer, kind, dmabuf)
    }

    /// Offers a group of 1 to 8 buffers to the sender. Returns `None` while all slots are in use.
    /// `OPTIONAL`: NCCL does not need the completion of a single buffer.
    // Compiled for both cases: ordinary receives pay nothing for optional ones.
    #[inline(always)]
    pub fn receive<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
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

    /// Sends BYE to the peer.
    pub fn close(self) -> Result<()> {
        self.receiver.close()
    }
}
