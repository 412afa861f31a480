//! The receives of a rail. Each takes one immediate.
//!
//! They are posted to a queue that all queue pairs of the rail share (SRQ), or, on an adapter whose
//! SRQs do not work, to the receive queue of each queue pair. The peer need not know which: an
//! immediate contains its slot, so any receive fits.
//!
//! A CTS write is posted only if every queue has a receive for each immediate that may arrive on
//! it. A slot consumes one receive at most. So `n` outstanding slots need `n` receives in each
//! queue, and never more than there are slots that use the queue.

use std::sync::{Arc, LazyLock};

use mpib_proto::{SLOTS, qp_of_slot};

use crate::error::Result;
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Blanks, Completion, Pd, Srq};

/// The receives of a rail, and how many of them are posted.
#[derive(Debug)]
pub(crate) struct Receives {
    // Counts are signed: one that a faulty device takes below zero does not wrap.
    /// Receives in the SRQ, or in that queue pair's queue that has the fewest.
    posted: isize,
    /// Receives that were ever posted to any of the queues, modulo 2^32.
    filled: u32,
    /// The queues are refilled when at most so many receives are left beyond those for outstanding
    /// slots.
    low: isize,
    /// Slots that use the same queue. With as many receives, each of them finds one.
    slots: isize,
    /// The depth of a queue.
    depth: isize,
    queues: Queues,
    /// The chain to fill a queue: the same for all connections on the adapter.
    blanks: Arc<Blanks>,
}

/// Entries of the deepest queue: a slot takes one. Twice as many are refilled in batches.
pub(crate) const MAX_DEPTH: u32 = 2 * SLOTS as u32;

/// Enough receives to fill the deepest queue. Posting only reads them.
const BLANKS: usize = MAX_DEPTH as usize;

/// The `wr_id` of all receives.
const RECEIVE: u64 = Work::Receive.id(0);

/// Those for the queues of queue pairs.
static OWN: LazyLock<Arc<Blanks>> = LazyLock::new(|| Arc::new(Blanks::new(BLANKS, RECEIVE, None)));

/// Where the receives are posted.
// With a `Vec`, one comparison finds the first case of an `Option<Receives>`.
#[derive(Debug)]
enum Queues {
    Shared(Arc<Srq>),
    /// By queue pair: the receives in its queue.
    Own(Vec<isize>),
}

/// Returns the number of slots that use one of `qps` queue pairs.
pub(crate) const fn slots_per_queue(qps: u32) -> u32 {
    (SLOTS as u32).div_ceil(qps)
}

/// Returns whether the completion is that of a receive whose queue pair has failed.
pub(crate) fn is_flushed(completion: &Completion) -> bool {
    // A flushed write without a signal does not name the cause either.
    completion.is_flushed() && matches!(Work::of(completion.wr_id()), Work::Receive | Work::Unsignalled)
}

impl Receives {
    /// Makes an SRQ of this depth. It is refilled when half of what the slots leave free is used, or
    /// when the outstanding slots need more.
    pub(crate) fn shared(pd: &Arc<Pd>, depth: u32) -> Result<Self> {
        let (srq, blanks) = (Srq::new(pd, depth)?, pd.srq_receives(BLANKS, RECEIVE)?);
        Ok(Self::new(Queues::Shared(Arc::new(srq)), blanks, depth, depth / 2, SLOTS as u32))
    }

    /// Makes receives for the queues of `qps` queue pairs, each of this depth. They are refilled
    /// when one of them is nearly empty, or when the outstanding slots need more.
    pub(crate) fn own(qps: u32, depth: u32) -> Self {
        let posted = vec![0; qps as usize];
        Self::new(Queues::Own(posted), Arc::clone(&OWN), depth, depth / 8, slots_per_queue(qps))
    }

    fn new(queues: Queues, blanks: Arc<Blanks>, depth: u32, low: u32, slots: u32) -> Self {
        // The chain fills no deeper queue.
        let [depth, low, slots] = [depth.min(MAX_DEPTH), low, slots].map(|n| n as isize);
        // Also with all slots outstanding, half of the other receives go in one batch.
        let low = low.min((depth - slots) / 2).max(0);
        Self { posted: 0, filled: 0, low, slots, depth, queues, blanks }
    }

    /// Returns the SRQ, if there is one.
    pub(crate) fn srq(&self) -> Option<&Arc<Srq>> {
        match &self.queues {
            Queues::Shared(srq) => Some(srq),
            Queues::Own(_) => None,
        }
    }

    /// Returns how many more slots may be used while so many are outstanding.
    fn spare(&self, outstanding: usize) -> isize {
        // A slot is used only if it is free, so at most all others of its queue are outstanding.
        self.posted - (outstanding as isize).min(self.slots - 1)
    }

    /// Returns how many more slots may be used, while so many are outstanding, before
    /// [`refill`](Self::refill) has to be called. After as many CTS writes each queue still has a
    /// receive for every outstanding slot.
    pub(crate) fn credit(&self, outstanding: usize) -> usize {
        // A slot consumes at most one receive of a queue, so arrivals do not change the number.
        let spare = self.spare(outstanding);
        usize::try_from((spare - self.low).max(spare.min(1))).unwrap_or(0)
    }

    /// Counts the receive that an immediate has consumed, if it was in an SRQ. Otherwise returns
    /// `false` and counts nothing.
    #[inline(always)]
    pub(crate) fn consumed_shared(&mut self) -> bool {
        let shared = matches!(self.queues, Queues::Shared(_));
        if shared {
            self.posted -= 1;
        }
        shared
    }

    /// Counts the receive that an immediate for `slot` has consumed, if there is no SRQ. Returns
    /// `false` if the immediate arrived on another queue pair than the slot's.
    pub(crate) fn consumed_own(&mut self, slot: u8, completion: &Completion, qps: &[SendQueue]) -> bool {
        match &mut self.queues {
            Queues::Shared(_) => true,
            Queues::Own(posted) => {
                let index = qp_of_slot(slot, posted.len());
                posted[index] -= 1;
                self.posted = self.posted.min(posted[index]);
                qps.get(index).is_some_and(|qp| qp.number() == completion.qpn())
            }
        }
    }

    /// Returns how many receives immediates have consumed, modulo 2^32.
    pub(crate) fn consumed(&self) -> u32 {
        let left = match &self.queues {
            Queues::Shared(_) => self.posted,
            Queues::Own(posted) => posted.iter().sum(),
        };
        self.filled.wrapping_sub(left as u32)
    }

    /// Fills the queues, each with one call, if few receives are left or the outstanding slots need
    /// more.
    pub(crate) fn refill(&mut self, outstanding: usize, qps: &[SendQueue]) -> Result<(), NotPosted> {
        let enough = self.spare(outstanding) > self.low;
        if enough { Ok(()) } else { self.fill(qps) }
    }

    /// Fills the queues of these connected queue pairs. What a provider puts off is missing until
    /// the next call.
    pub(crate) fn fill(&mut self, qps: &[SendQueue]) -> Result<(), NotPosted> {
        let missing = |posted: isize| (self.depth - posted) as usize;
        match &mut self.queues {
            Queues::Shared(srq) => {
                let new = srq.post(&self.blanks, missing(self.posted))?;
                self.posted += new as isize;
                self.filled = self.filled.wrapping_add(new as u32);
            }
            Queues::Own(posted) => {
                for (posted, qp) in posted.iter_mut().zip(qps) {
                    let new = qp.post_receives(&self.blanks, missing(*posted))?;
                    *posted += new as isize;
                    self.filled = self.filled.wrapping_add(new as u32);
                }
                self.posted = posted.iter().copied().min().unwrap_or(0);
            }
        }
        Ok(())
    }
}
