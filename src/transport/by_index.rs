//! Messages of one buffer, by the index of their request: for callers inside the plugin, which keep
//! comm and requests in one place.

use nccl_net_versions::{Buffer, NetPlugin, ProfilerHandle, RecvBuffer, Sizes};

use crate::error::Fast;
use crate::transport::memory::{Mr, Registrar};
use crate::transport::recv::flush::LocalCopy;
use crate::transport::request::Request;
use crate::transport::{RecvComm, SendComm};

/// The tag of all these messages.
const TAG: i32 = 0;

/// How a copy inside of this host has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    Done,
    /// Its adapter has failed. The copy may have been made, and will not be made any more.
    Lost,
}

/// Returns whether a request is completed, which is free from then on.
fn is_done(request: &Request) -> Fast<bool> {
    let mut ignored = Sizes::IGNORED;
    if request.collect_one().is_some() { Ok(true) } else { request.test(&mut ignored) }
}

impl SendComm {
    /// Starts a send. Returns `None` if there is no receive yet, or no room; an error if the peer has
    /// ended. So callers ask [`may_send`](Self::may_send) before, and once: without a receive, one of many
    /// answers is yes, and that call finds the end.
    pub(crate) fn start(&self, buffer: Buffer, mr: &Mr) -> Fast<Option<u8>> {
        self.sender.send(buffer, TAG, Some(mr), ProfilerHandle::NONE)
    }

    /// Returns whether a send is done: its data is in the peer's memory.
    pub(crate) fn has_sent(&self, index: u8) -> Fast<bool> {
        is_done(self.requests.get(index))
    }

    /// Returns what registers memory on the comm's rails.
    pub(crate) fn registrar(&self) -> &Registrar {
        self.sender.memory()
    }

    /// Returns the size in bytes of the largest message.
    pub(crate) fn longest(&self) -> usize {
        self.sender.longest()
    }
}

impl RecvComm {
    /// Returns what registers memory on the comm's rails.
    pub(crate) fn registrar(&self) -> &Registrar {
        self.receiver.memory()
    }

    /// Offers a buffer. Returns `None` if all slots are in use.
    pub(crate) fn start<P: NetPlugin<Mr = Mr>>(&self, buffer: Buffer, mr: &Mr) -> Fast<Option<u8>> {
        let one = RecvBuffer { buffer, tag: TAG, mr: Some(mr), profiler: ProfilerHandle::NONE };
        self.receiver.receive::<P, false>(&[one])
    }

    /// Returns the size in bytes of a message that has come, once.
    pub(crate) fn received(&self, index: u8) -> Fast<Option<usize>> {
        self.requests.get(index).test_one()
    }

    /// Starts to make received data visible to the GPU. Returns `None` if it is.
    pub(crate) fn start_flush(&self, buffer: Buffer, mr: &Mr) -> Fast<Option<u8>> {
        self.receiver.flush(&[(buffer, Some(mr))])
    }

    /// Starts a copy inside of this host. Returns `None` if there is no room, or no rail lives.
    pub(crate) fn start_copy(&self, copy: LocalCopy<'_>) -> Fast<Option<u8>> {
        self.receiver.copy(copy)
    }

    /// Returns how a copy has ended if it has.
    pub(crate) fn has_copied(&self, index: u8) -> Fast<Option<Copied>> {
        let Some(flushes) = &self.flushes else { return Ok(None) };
        let copies = flushes.get(index).test_one()?;
        Ok(copies.map(|copies| if copies == 0 { Copied::Lost } else { Copied::Done }))
    }

    /// Returns whether a flush is done.
    pub(crate) fn has_flushed(&self, index: u8) -> Fast<bool> {
        self.flushes.as_ref().map_or(Ok(true), |flushes| is_done(flushes.get(index)))
    }
}
