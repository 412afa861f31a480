//! One rail of a connection: its queues, and an account of what is in them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::Nic;
use crate::error::{Completion as Failed, Error, Result};
use crate::verbs::{Chain, Completion, Cq, Qp, Ready, Srq};

/// What a work request of ours is for. It lies in `wr_id`, the only thing that a failed completion keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The zero-byte write of the handshake.
    Probe,
    /// The signalling write of a group of sends.
    Data {
        /// The group's slot.
        slot: u8,
    },
    /// A CTS write that asked for a completion.
    Cts,
    /// A receive: it has no number of its own. Also a number that we never give.
    Receive,
}

impl Work {
    pub(super) const fn id(self) -> u64 {
        match self {
            Self::Receive => 0,
            Self::Probe => 1 << 8,
            Self::Cts => 2 << 8,
            Self::Data { slot } => 3 << 8 | slot as u64,
        }
    }

    pub(super) const fn of(id: u64) -> Self {
        match id >> 8 {
            1 => Self::Probe,
            2 => Self::Cts,
            3 => Self::Data { slot: id as u8 },
            _ => Self::Receive,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Data { .. } => "data write",
            Self::Cts => "CTS write",
            Self::Receive => "receive",
        }
    }
}

/// One rail, connected.
#[derive(Debug)]
pub(super) struct Rail {
    // First, so that it goes before the memory that it writes.
    qp: Qp<Ready>,
    /// Work requests that each completion to come will account for, in order of posting.
    covered: VecDeque<u32>,
    /// Work requests posted after the last one that asks for a completion.
    uncovered: u32,
    /// Work requests in the send queue that are not known to be done.
    outstanding: u32,
    pub(super) receives: Option<Receives>,
    pub(super) cq: Arc<Cq>,
    pub(super) nic: Arc<Nic>,
    pub(super) names: Names,
}

/// What an error message says of a rail.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) local_gid: [u8; 16],
    pub(super) remote_gid: [u8; 16],
    pub(super) remote_qpn: u32,
    pub(super) peer: String,
}

/// The SRQ of a rail, and how many receives are in it.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) srq: Arc<Srq>,
    posted: usize,
    low: usize,
}

impl Rail {
    pub(super) fn new(
        qp: Qp<Ready>,
        receives: Option<Receives>,
        cq: Arc<Cq>,
        nic: Arc<Nic>,
        names: Names,
    ) -> Self {
        let depth = qp.send_depth() as usize;
        // Never more entries than work requests, so that it never grows.
        let covered = VecDeque::with_capacity(depth + 1);
        Self { qp, covered, uncovered: 0, outstanding: 0, receives, cq, nic, names }
    }

    /// Work requests that still fit into the send queue.
    pub(super) fn room(&self) -> usize {
        (self.qp.send_depth() - self.outstanding) as usize
    }

    /// Work requests since the last one that asks for a completion.
    pub(super) fn uncovered(&self) -> u32 {
        self.uncovered
    }

    pub(super) fn send_depth(&self) -> u32 {
        self.qp.send_depth()
    }

    pub(super) fn inline(&self) -> usize {
        self.qp.inline() as usize
    }

    /// Posts the chain with one doorbell. `signalled`: its last request asks for a completion, no other does.
    pub(super) fn post(&mut self, chain: &mut Chain, signalled: bool) -> Result<()> {
        let n = chain.len() as u32;
        if n as usize > self.room() {
            chain.clear();
            return Err(Error::Internal(format!(
                "{n} work requests for a send queue with room for {}",
                self.room()
            )));
        }
        self.qp.post(chain)?;
        self.outstanding += n;
        self.uncovered += n;
        if signalled {
            self.covered.push_back(self.uncovered);
            self.uncovered = 0;
        }
        Ok(())
    }

    /// Takes a successful completion of a request that asked for it: it and all before it are done.
    pub(super) fn sent(&mut self) -> Result<()> {
        match self.covered.pop_front() {
            Some(n) => {
                self.outstanding -= n;
                Ok(())
            }
            None => Err(Error::Internal("a completion for a work request that was never posted".into())),
        }
    }

    /// One receive was used up.
    pub(super) fn arrived(&mut self) {
        if let Some(receives) = &mut self.receives {
            receives.posted = receives.posted.saturating_sub(1);
        }
    }

    /// Names everything about a failed completion.
    #[cold]
    pub(super) fn failed(&self, rail: usize, completion: &Completion) -> Error {
        let events = self.nic.pd().context().take_events();
        if !events.is_empty() {
            tracing::warn!(target: "net", "{} reported before the failure: {}", self.nic.name(), events.join(", "));
        }
        Error::Completion(Box::new(Failed {
            status: completion.status,
            vendor_err: completion.vendor_err,
            operation: Work::of(completion.wr_id).name(),
            rail,
            device: self.nic.name().to_owned(),
            local_gid: self.names.local_gid,
            remote_gid: self.names.remote_gid,
            local_qpn: completion.qpn,
            remote_qpn: self.names.remote_qpn,
            peer: self.names.peer.clone(),
        }))
    }
}

impl Receives {
    /// An SRQ filled to the brim, that is refilled when it falls to `low`.
    pub(super) fn new(srq: Srq, low: usize) -> Result<Self> {
        let mut receives = Self { srq: Arc::new(srq), posted: 0, low };
        receives.refill(usize::MAX)?;
        Ok(receives)
    }

    /// Fills up, in one call, where fewer than the low mark or than `needed` are posted.
    pub(super) fn refill(&mut self, needed: usize) -> Result<()> {
        let depth = self.srq.depth();
        if self.posted <= self.low || self.posted < needed {
            let n = depth - self.posted;
            self.srq.post(n)?;
            self.posted = depth;
        }
        Ok(())
    }

    /// Receives that the peer may use up.
    pub(super) fn posted(&self) -> usize {
        self.posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_by_its_number() {
        for work in [Work::Probe, Work::Cts, Work::Receive, Work::Data { slot: 0 }, Work::Data { slot: 255 }]
        {
            assert_eq!(Work::of(work.id()), work);
        }
        assert_eq!(Work::of(u64::MAX), Work::Receive);
    }
}
