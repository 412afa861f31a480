//! One queue pair of a rail, and the account of its send queue.

use std::ops::{Deref, DerefMut};

use crate::error::{Error, Fast, Result};
use crate::proto::qp_of_slot;
use crate::transport::work::Work;
use crate::verbs::{Blanks, Chain, ImmWrite, Qp, Ready, WordsWrite};

/// Why work requests were not posted. It is no error of the caller yet: the caller says whether it
/// costs the [rail](crate::transport::comm::Comm::not_posted) or the [route](Self::of_route) that a
/// handshake tries.
#[derive(Debug)]
#[must_use]
pub(crate) struct NotPosted(Box<Error>);

/// A connected queue pair.
#[derive(Debug)]
pub(crate) struct SendQueue {
    qp: Qp<Ready>,
    /// Number of the peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// Work requests posted so far, modulo 2^32.
    posted: u32,
    /// Work requests posted up to the last signalled one.
    signalled: u32,
    /// Work requests known to be completed: up to the last polled completion.
    done: u32,
}

/// The send queues of a rail, at least one.
#[derive(Debug)]
pub(crate) struct SendQueues {
    queues: Box<[SendQueue]>,
    /// All bits below the number of queues if that is a power of two, else all bits.
    mask: usize,
}

impl SendQueues {
    /// Takes all queues: a rail that is given up has none.
    pub(crate) fn take(&mut self) -> Vec<SendQueue> {
        self.mask = 0;
        std::mem::take(&mut self.queues).into_vec()
    }
}

impl FromIterator<SendQueue> for SendQueues {
    fn from_iter<I: IntoIterator<Item = SendQueue>>(queues: I) -> Self {
        let queues: Box<[_]> = queues.into_iter().collect();
        let mask = if queues.len().is_power_of_two() { queues.len() - 1 } else { usize::MAX };
        Self { queues, mask }
    }
}

impl Deref for SendQueues {
    type Target = [SendQueue];

    fn deref(&self) -> &[SendQueue] {
        &self.queues
    }
}

impl DerefMut for SendQueues {
    fn deref_mut(&mut self) -> &mut [SendQueue] {
        &mut self.queues
    }
}

impl SendQueues {
    /// Returns the index of the queue of a slot.
    #[inline(always)]
    fn index(&self, slot: u8) -> usize {
        // As usual, without a division.
        let index = usize::from(slot) & self.mask;
        if index < self.queues.len() { index } else { qp_of_slot(slot, self.queues.len()) }
    }

    /// Returns the queue of a slot.
    #[inline(always)]
    pub(crate) fn of_slot(&self, slot: u8) -> &SendQueue {
        &self.queues[self.index(slot)]
    }

    /// Like [`of_slot`](Self::of_slot).
    #[inline(always)]
    pub(crate) fn of_slot_mut(&mut self, slot: u8) -> &mut SendQueue {
        let index = self.index(slot);
        &mut self.queues[index]
    }
}

impl NotPosted {
    /// A mistake of the plugin, which ends the connection.
    #[cold]
    pub(crate) fn internal(what: &str) -> Self {
        Self(Error::Internal(what.into()).into())
    }

    /// Returns the reason why a route of a handshake does not work.
    pub(crate) fn of_route(self) -> Error {
        *self.0
    }

    /// Returns the failure of a rail.
    pub(crate) fn of_rail(self) -> Box<Error> {
        self.0
    }
}

// Not for `Box<Error>`: a failed post must not end a connection by a question mark.
impl From<Error> for NotPosted {
    fn from(e: Error) -> Self {
        Self(e.into())
    }
}

impl SendQueue {
    pub(crate) fn new(qp: Qp<Ready>, remote_qpn: u32) -> Self {
        Self { qp, remote_qpn, posted: 0, signalled: 0, done: 0 }
    }

    /// Destroys the queue pair.
    pub(crate) fn destroy(self) -> Result<()> {
        self.qp.destroy()
    }

    /// Returns the queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Returns how many work requests are known to be completed, modulo 2^32.
    pub(crate) fn completed(&self) -> u32 {
        self.done
    }

    /// Returns how many more work requests fit into the send queue.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.qp.send_depth() - self.in_flight()) as usize
    }

    /// Returns the number of work requests that are not known to be completed.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.posted.wrapping_sub(self.done)
    }

    /// Returns the number of work requests since the last signalled one.
    #[inline]
    pub(crate) fn uncovered(&self) -> u32 {
        self.posted.wrapping_sub(self.signalled)
    }

    /// Returns the `wr_id` of the last of the next `n` work requests, which is signalled.
    #[inline(always)]
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

    /// Posts `n` receives to the queue pair's own receive queue. Returns how many are posted.
    pub(crate) fn post_receives(&self, blanks: &Blanks, n: usize) -> Result<usize> {
        self.qp.post_receives(blanks, n)
    }

    /// Posts the chain with one doorbell. If `signalled`, its last work request is signalled, with
    /// the `wr_id` from [`signal`](Self::signal). No other one is.
    #[inline(always)]
    pub(crate) fn post(&mut self, chain: &mut Chain, signalled: bool) -> Result<(), NotPosted> {
        let n = chain.len();
        if n > self.room() {
            return Err(self.full(chain));
        }
        self.qp.post(chain).map_err(NotPosted)?;
        self.posted = self.posted.wrapping_add(n as u32);
        if signalled {
            self.signalled = self.posted;
        }
        Ok(())
    }

    /// Posts the chain and empties it if it has no room for another work request. None of its work
    /// requests is signalled.
    #[inline]
    pub(crate) fn post_if_full(&mut self, chain: &mut Chain) -> Result<(), NotPosted> {
        if !chain.is_full() {
            return Ok(());
        }
        self.post(chain, false)?;
        chain.clear();
        Ok(())
    }

    /// Posts a signalled write with immediate, for which there is room.
    #[inline(always)]
    pub(crate) fn post_imm(&mut self, write: &mut ImmWrite) -> Result<(), NotPosted> {
        self.qp.post_imm(write).map_err(NotPosted)?;
        self.posted = self.posted.wrapping_add(1);
        self.signalled = self.posted;
        Ok(())
    }

    /// Posts a write of words, for which there is room.
    #[inline(always)]
    pub(crate) fn post_words<const N: usize>(
        &mut self,
        write: &mut WordsWrite<N>,
        signalled: bool,
    ) -> Result<(), NotPosted> {
        self.qp.post_words(write).map_err(NotPosted)?;
        self.posted = self.posted.wrapping_add(1);
        if signalled {
            self.signalled = self.posted;
        }
        Ok(())
    }

    #[cold]
    fn full(&self, chain: &mut Chain) -> NotPosted {
        let (n, room) = (chain.len(), self.room());
        chain.clear();
        NotPosted::internal(&format!("{n} work requests for a send queue with room for {room}"))
    }

    /// Returns whether the work request with this `wr_id`, one of the last 2^31, is known to be
    /// completed.
    pub(crate) fn has_completed(&self, wr_id: u64) -> bool {
        self.done.wrapping_sub(Work::number(wr_id)) < 1 << 31
    }

    /// Handles a successful completion: its work request and all earlier ones are completed.
    /// Returns how many of them are newly known to be.
    #[inline]
    pub(crate) fn sent(&mut self, wr_id: u64) -> Fast<u32> {
        let to = Work::number(wr_id);
        let known = to.wrapping_sub(self.done);
        // Zero, or more than were posted: a completion that was polled before, or that belongs to
        // no work request.
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
