//! One queue pair of a rail, the account of its send queue, and the purposes of its work requests.

use std::ops::{Deref, DerefMut};

use mpib_proto::qp_of_slot;

use crate::error::{Error, Fast, Result};
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

/// The purpose of a work request. It travels in `wr_id`, the only field that a failed completion
/// keeps: a place in bits `[7:0]`, the kind in `[15:8]`, and the number of the work request on its
/// queue pair in `[63:32]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A write of the handshake's probe.
    Probe,
    /// The signalled write of a group of sends.
    Data {
        /// Slot of the group.
        slot: u8,
    },
    /// Like `Data`, with a part that is measured.
    Measured {
        /// Slot of the group.
        slot: u8,
    },
    /// A signalled CTS write.
    Cts,
    /// The signalled write of a part that is sent again.
    Replay {
        /// Slot of the group.
        slot: u8,
        /// The rail that was to carry the part, below 8.
        part: u8,
    },
    /// The read of a flush.
    Flush {
        /// Place of the flush.
        index: u8,
    },
    /// The signalled write of the mailbox.
    Mail,
    /// A [ping](super::life).
    Ping,
    /// A write without a signal, at either end. It has no number, and completes only if it fails.
    Unsignalled,
    /// A receive, which has no number. Also any `wr_id` that the plugin never uses.
    Receive,
}

/// The kind of a replay of part 0. Those of the other parts follow.
const REPLAY: u64 = 16;
const REPLAYS_END: u64 = REPLAY + mpib_proto::MAX_RAILS as u64;

impl Work {
    /// Returns the purpose of the signalled write of a group of sends on one rail.
    #[inline(always)]
    pub(crate) const fn data(slot: u8, measured: bool) -> Self {
        if measured { Self::Measured { slot } } else { Self::Data { slot } }
    }

    /// Returns the `wr_id` of work request `number` of its queue pair.
    #[inline(always)]
    pub(crate) const fn id(self, number: u32) -> u64 {
        let what = match self {
            Self::Unsignalled => 0,
            Self::Probe => 1 << 8,
            Self::Cts => 2 << 8,
            Self::Data { slot } => 3 << 8 | slot as u64,
            Self::Flush { index } => 4 << 8 | index as u64,
            Self::Mail => 5 << 8,
            Self::Receive => 6 << 8,
            Self::Ping => 8 << 8,
            Self::Measured { slot } => 7 << 8 | slot as u64,
            Self::Replay { slot, part } => (REPLAY + part as u64) << 8 | slot as u64,
        };
        what | (number as u64) << 32
    }

    /// Returns the number that [`id`](Self::id) encoded.
    #[inline]
    pub(crate) const fn number(id: u64) -> u32 {
        (id >> 32) as u32
    }

    #[inline]
    pub(crate) const fn of(id: u64) -> Self {
        match (id as u32 >> 8) as u64 {
            0 => Self::Unsignalled,
            1 => Self::Probe,
            2 => Self::Cts,
            3 => Self::Data { slot: id as u8 },
            4 => Self::Flush { index: id as u8 },
            5 => Self::Mail,
            8 => Self::Ping,
            7 => Self::Measured { slot: id as u8 },
            REPLAY..REPLAYS_END => Self::Replay { slot: id as u8, part: (id >> 8) as u8 - REPLAY as u8 },
            _ => Self::Receive,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Data { .. } | Self::Measured { .. } | Self::Replay { .. } => "data write",
            Self::Cts => "CTS write",
            Self::Flush { .. } => "flush read",
            Self::Mail => "mailbox write",
            Self::Ping => "ping",
            Self::Unsignalled => "write",
            Self::Receive => "receive",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_decodes_to_its_work_and_number() {
        let numbered = [0, 255]
            .map(|n| [Work::Data { slot: n }, Work::Measured { slot: n }, Work::Flush { index: n }])
            .concat();
        let again = (0..8).map(|part| Work::Replay { slot: 63, part });
        let bare = [Work::Probe, Work::Cts, Work::Mail, Work::Ping, Work::Unsignalled, Work::Receive];
        for work in bare.into_iter().chain(numbered).chain(again) {
            for number in [0, 1, u32::MAX] {
                let id = work.id(number);
                assert_eq!((Work::of(id), Work::number(id)), (work, number));
            }
        }
        assert_eq!(Work::of(u64::MAX), Work::Receive);
    }
}
