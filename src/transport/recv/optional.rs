//! Optional receives: NCCL sees by the data itself that it is there, so their requests are done as soon as the sender may write.
//!
//! The slot is not used again before all immediates of its data have come. They are taken by whatever looks at the queues: calls for
//! other requests, now and then irecv, and where NCCL makes no call the thread of the adapters' events, which is then the only one
//! who sees that the peer is gone or a queue has failed. It tells the log; NCCL is told at its next call.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::{Fast, Result};
use crate::housekeeping::Job;
use crate::proto::SLOTS;
use crate::transport::comm::Progress;
use crate::transport::recv::{Receiver, RecvState};

/// With so many receives without data, an optional one looks whether some has come: as many as NCCL has under way at most.
const MANY: usize = 32;
/// How long close waits for immediates: they are right behind the data that NCCL has seen.
const LAST: Duration = Duration::from_millis(200);

/// The name of the receivers' job.
pub(crate) const JOB: &str = "receiving";

/// Returns a receiver as a job of the process.
pub(crate) fn job(receiver: &Arc<Receiver>) -> Weak<dyn Job> {
    let job: Arc<dyn Job> = Arc::<Receiver>::clone(receiver);
    Arc::downgrade(&job)
}

/// Does for a receiver that no call is made for what calls would do, where data is owed to early receives. The connection has failed
/// with what it finds wrong.
impl Job for Receiver {
    fn run(&self) -> Result<()> {
        self.look_after().unwrap_or(Ok(())).map_err(|e| *e)
    }
}

impl RecvState {
    /// Whether a receive that NCCL has called optional may be done before its data is here: where the peer is known to be gone, its
    /// request has to tell that.
    pub(crate) fn may_be_early(&mut self, receives: usize) -> Fast<bool> {
        if self.outstanding >= MANY {
            self.poll()?;
        }
        Ok(receives == 1 && self.comm.peer.is_here())
    }

    /// Whether data is owed to receives that are done.
    fn owes(&self) -> bool {
        self.outstanding > 0 && (0..SLOTS).any(|slot| self.pool.get(slot).is_owed())
    }

    /// After a failure of the comm: the data of early receives will not come, and those that NCCL has not asked for say so.
    #[cold]
    pub(crate) fn revoke(&self) {
        if self.comm.has_failed() {
            (0..SLOTS).for_each(|slot| self.pool.get(slot).revoke());
        }
    }

    /// One look, if nothing has changed since the last one.
    pub(crate) fn look_after(&mut self) -> Fast<()> {
        let seen = Some((self.cts.next(), self.outstanding));
        let idle = std::mem::replace(&mut self.looked, seen) == seen;
        if !idle || !self.owes() || self.comm.has_failed() {
            return Ok(());
        }
        let polled = self.poll();
        self.comm.settle(polled)?;
        if !self.owes() {
            return Ok(());
        }
        self.comm.alive()?;
        self.comm.look("receives")
    }

    /// Waits for what early receives are owed, as long as it can come: a queue pair that goes too soon lets the sender's write fail,
    /// though its data is here.
    pub(crate) fn last_arrivals(&mut self) {
        let until = Instant::now() + LAST;
        while self.owes() && !self.comm.has_failed() && self.comm.peer.is_here() && Instant::now() < until {
            if self.poll().is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
