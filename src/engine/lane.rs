//! One queue pair of a rail, and an account of what is in its send queue.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::verbs::{Chain, Qp, Ready};

/// A queue pair in use.
#[derive(Debug)]
pub(super) struct Lane {
    qp: Qp<Ready>,
    /// The peer's queue pair.
    pub(super) remote_qpn: u32,
    /// Work requests that each completion to come will account for, in order of posting.
    covered: VecDeque<u32>,
    /// Work requests posted after the last one that asks for a completion.
    uncovered: u32,
    /// Work requests in the send queue that are not known to be done.
    outstanding: u32,
}

impl Lane {
    pub(super) fn new(qp: Qp<Ready>, remote_qpn: u32) -> Self {
        let depth = qp.send_depth() as usize;
        // Never more entries than work requests, so that it never grows.
        let covered = VecDeque::with_capacity(depth + 1);
        Self { qp, remote_qpn, covered, uncovered: 0, outstanding: 0 }
    }

    /// Our number.
    pub(super) fn number(&self) -> u32 {
        self.qp.number()
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

    /// Takes a successful completion of a request that asked for it: it and all before it are done. Gives how many these are.
    pub(super) fn sent(&mut self) -> Result<u32> {
        match self.covered.pop_front() {
            Some(n) => {
                self.outstanding -= n;
                Ok(n)
            }
            None => Err(Error::Internal("a completion for a work request that was never posted".into())),
        }
    }
}
