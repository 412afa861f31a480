//! Receives whose completion NCCL calls optional. NCCL detects their data by itself, so their
//! requests complete as soon as the sender may write.
//!
//! A slot is reused only after all immediates of its data have arrived. Any poll of the queues
//! handles them: calls for other requests, now and then irecv, and housekeeping while NCCL makes no
//! call. Then housekeeping alone can notice a dead peer or a failed queue. It logs a warning; NCCL
//! gets the error from its next call.

use std::time::Instant;

use crate::error::Fast;
use crate::grace::Grace;
use crate::transport::progress::Progress;
use crate::transport::recv::RecvState;
use crate::transport::request::cell::RequestCell;

impl RecvState {
    /// With this many receives outstanding, an optional receive polls first. NCCL has at most this
    /// many operations in flight.
    pub(crate) const MANY: usize = 32;

    /// Returns whether an optional receive may complete ahead of its data. After the peer's death
    /// it may not, because the request must report it.
    pub(crate) fn may_complete_ahead(&mut self, receives: usize) -> Fast<bool> {
        if self.outstanding >= Self::MANY {
            self.poll()?;
        }
        Ok(receives == 1 && self.comm.peer.is_connected())
    }

    /// Completes a request ahead of its data.
    #[inline]
    pub(crate) fn complete_ahead(&mut self, slot: u8) {
        self.cells.get(slot).complete_ahead();
        self.ahead += 1;
    }

    /// Returns whether a request has completed ahead of data that is still outstanding.
    fn awaits_data(&self) -> bool {
        self.ahead > 0
    }

    /// After a failure of the comm, revokes the completions ahead of data that NCCL has not
    /// collected yet: those requests report the failure.
    #[cold]
    pub(crate) fn revoke(&self) {
        if self.comm.has_failed() {
            self.cells.iter().for_each(RequestCell::revoke);
        }
    }

    /// Handles news, or polls if nothing has changed for a while.
    pub(crate) fn poll_idle(&mut self) -> Fast<()> {
        if !self.comm.has_failed() {
            let kept = self.check_promises().and_then(|()| self.comm.look_for_life());
            self.comm.fail_on_error(kept)?;
        }
        if self.comm.has_old_news() || self.is_return_due() {
            return self.look_while_idle();
        }
        let idle = self.idleness.lasts((self.cts.next(), self.outstanding));
        let awaits = self.awaits_data() || self.comm.failures.is_enabled() && self.outstanding > 0;
        if !idle || !awaits || self.comm.has_failed() {
            return Ok(());
        }
        let polled = self.poll();
        self.comm.fail_on_error(polled)?;
        if self.comm.has_news() {
            return self.look_while_idle();
        }
        if !self.awaits_data() {
            return Ok(());
        }
        self.comm.check_usable()?;
        self.comm.check_peer("receives")
    }

    /// Waits for outstanding data of completed receives while it can still arrive. If the queue
    /// pair were destroyed too early, the sender's write would fail although its data is here.
    /// Receivers that close one after another, as in an abort, share the time.
    pub(crate) fn await_outstanding_data(&mut self, closing: &Grace) {
        if !self.awaits_data() {
            return;
        }
        let until = closing.begin(Instant::now());
        while self.awaits_data()
            && !self.comm.has_failed()
            && self.comm.peer.is_connected()
            && Instant::now() < until
        {
            if self.poll().is_err() {
                break;
            }
            std::thread::yield_now();
        }
        closing.end(Instant::now());
    }
}
