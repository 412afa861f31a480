//! One queue pair of a rail, and an account of what is in its send queue.

use crate::error::{Error, Fast};
use crate::transport::work::Work;
use crate::verbs::{Chain, Qp, Ready};

/// A queue pair in use.
#[derive(Debug)]
pub(crate) struct SendQueue {
    qp: Qp<Ready>,
    /// The peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// Work requests posted so far; comes round.
    posted: u32,
    /// Of these, those up to the last one that asks for a completion.
    signalled: u32,
    /// Of these, those known to be done: up to the last completion.
    done: u32,
}

impl SendQueue {
    pub(crate) fn new(qp: Qp<Ready>, remote_qpn: u32) -> Self {
        Self { qp, remote_qpn, posted: 0, signalled: 0, done: 0 }
    }

    /// Our number.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Work requests that still fit into the send queue.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.qp.send_depth() - self.posted.wrapping_sub(self.done)) as usize
    }

    /// Work requests since the last one that asks for a completion.
    #[inline]
    pub(crate) fn uncovered(&self) -> u32 {
        self.posted.wrapping_sub(self.signalled)
    }

    /// The `wr_id` of the last of the next `n` work requests, which asks for a completion.
    #[inline]
    pub(crate) fn signal(&self, work: Work, n: usize) -> u64 {
        work.id(self.posted.wrapping_add(n as u32))
    }

    pub(crate) fn send_depth(&self) -> u32 {
        self.qp.send_depth()
    }

    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.qp.inline() as usize
    }

    /// Posts the chain with one doorbell. `signalled`: its last request asks for a completion, by the number that
    /// [`signal`](Self::signal) gave; no other does.
    #[inline(always)]
    pub(crate) fn post(&mut self, chain: &mut Chain, signalled: bool) -> Fast<()> {
        let n = chain.len();
        if n > self.room() {
            return Err(self.full(chain));
        }
        self.qp.post(chain)?;
        self.posted = self.posted.wrapping_add(n as u32);
        if signalled {
            self.signalled = self.posted;
        }
        Ok(())
    }

    #[cold]
    fn full(&self, chain: &mut Chain) -> Box<Error> {
        let (n, room) = (chain.len(), self.room());
        chain.clear();
        Error::Internal(format!("{n} work requests for a send queue with room for {room}")).into()
    }

    /// Takes a successful completion with this `wr_id`: its request and all before it are done. Gives how many of these were not
    /// known to be.
    #[inline]
    pub(crate) fn sent(&mut self, wr_id: u64) -> Fast<u32> {
        let to = Work::number(wr_id);
        let known = to.wrapping_sub(self.done);
        // None, or more than there can be: an earlier one, or one that is still to be posted.
        if known == 0 || known > self.signalled.wrapping_sub(self.done) {
            return Err(never_posted(wr_id));
        }
        self.done = to;
        Ok(known)
    }
}

#[cold]
fn never_posted(wr_id: u64) -> Box<Error> {
    Error::Internal(format!("a completion for a work request that was never posted, wr_id {wr_id:#x}")).into()
}
