//! How buffers are offered. A usual group is one receive, whose CTS entry goes inline: it takes the
//! shortest way. All others take the general one.
//!
//! The completion of some receives is optional for NCCL, which detects their data by itself. Their
//! requests complete as soon as the sender may write. A slot is reused only after all immediates of
//! its data have arrived. Any poll of the queues handles them: calls for other requests, now and then
//! irecv, and housekeeping while NCCL makes no call. Then housekeeping alone can notice a dead peer or
//! a failed queue. It logs a warning; NCCL gets the error from its next call.

use std::time::Instant;

use nccl_net_versions::{NetPlugin, RecvBuffer};

use crate::error::{Fast, Result};
use crate::grace::Grace;
use crate::transport::Unusual;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::recv::RecvState;
use crate::transport::send_queue::NotPosted;

/// With this many receives outstanding, an optional receive polls first. NCCL has at most this many
/// operations in flight.
const MANY: usize = 32;

impl RecvState {
    /// Starts a group if it is a usual one and nothing is in its way.
    #[inline(always)]
    pub(super) fn start_single<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Result<u8, Unusual> {
        let [RecvBuffer { buffer, tag, mr: Some(mr), profiler }] = buffers else {
            return Err(Unusual::General);
        };
        let queue = self.cts.queue(&mut self.comm.rails);
        if !self.window.has_credit() || !self.window.has_slot() || !self.cts.is_simple(queue) {
            return Err(Unusual::General);
        }
        let possible = match OPTIONAL {
            true => self.window.outstanding() < MANY && self.comm.peer.is_connected(),
            false => CommProfiler::skips(&mut self.comm.profiler, *profiler),
        };
        if !possible {
            return Err(Unusual::General);
        }
        let seq = self.window.begin(std::iter::once(*buffer));
        match self.cts.write_inline(queue, seq, *buffer, *tag, mr.rkeys(), None) {
            Ok(()) => self.comm.stats.offered(self.cts.rail()),
            Err(e) => self.cts_not_posted(e)?,
        }
        if OPTIONAL {
            self.window.complete_ahead(seq.slot());
        }
        Ok(seq.slot())
    }

    /// Handles a failed CTS write of a usual group. If it costs no more than the rail, the group counts
    /// as begun: it is offered again.
    #[cold]
    #[inline(never)]
    fn cts_not_posted(&mut self, why: NotPosted) -> Result<(), Unusual> {
        self.comm.not_posted(self.cts.rail(), why).map_err(Unusual::Failed)?;
        self.comm.stats.request(None);
        Ok(())
    }

    /// Starts a group on a comm that is marked.
    #[cold]
    pub(super) fn start_marked<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        self.poll_marked()?;
        self.look_closer()?;
        if self.blocks_offers() {
            if !self.settles_alone() {
                self.comm.check_peer("receives")?;
            }
            return Ok(self.comm.stats.no_room());
        }
        self.start::<P, OPTIONAL>(buffers)
    }

    /// Starts a group of any kind. Returns `None` if there is no room.
    #[inline(never)]
    pub(super) fn start<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        self.try_cts_home();
        let ahead = OPTIONAL && self.may_complete_ahead(buffers.len())?;
        if !self.is_ready()? {
            self.poll()?;
            if !self.is_ready()? {
                return Ok(self.comm.stats.no_room());
            }
        }
        let seq = self.window.begin(buffers.iter().map(|b| b.buffer));
        // A receive that completes ahead of its data has no profiler events: NCCL's own event ends
        // first.
        if let Err(e) = self.cts.post(&mut self.comm, seq, buffers, !ahead) {
            self.comm.not_posted(self.cts.rail(), e)?;
        }
        self.comm.stats.request(None);
        if ahead {
            self.window.complete_ahead(seq.slot());
        }
        Ok(Some(seq.slot()))
    }

    /// Replaces consumed receives if few are left. Returns whether the next slot is free, a CTS write
    /// fits, and each rail has a receive for every outstanding slot and one more.
    fn is_ready(&mut self) -> Fast<bool> {
        if !self.window.has_slot() {
            return Ok(false);
        }
        let mut credit = usize::MAX;
        for rail in self.comm.living().iter() {
            match self.comm.rails[rail].refill(self.window.outstanding()) {
                Ok(of_rail) => credit = credit.min(of_rail),
                Err(e) => self.comm.not_posted(rail, e)?,
            }
        }
        self.window.set_credit(credit);
        Ok(credit > 0 && self.cts.has_room(&self.comm))
    }

    /// Returns whether an optional receive may complete ahead of its data. After the peer's death
    /// it may not, because the request must report it.
    fn may_complete_ahead(&mut self, receives: usize) -> Fast<bool> {
        if self.window.outstanding() >= MANY {
            self.poll()?;
        }
        Ok(receives == 1 && self.comm.peer.is_connected())
    }

    /// After a failure of the comm, revokes the completions ahead of data that NCCL has not
    /// collected yet: those requests report the failure.
    #[cold]
    pub(super) fn revoke(&self) {
        if self.comm.has_failed() {
            self.window.revoke();
        }
    }

    /// Handles news, or polls if nothing has changed for a while.
    pub(super) fn poll_idle(&mut self) -> Fast<()> {
        if !self.comm.has_failed() {
            let kept = self.check_incomplete().and_then(|()| self.comm.look_for_life());
            self.comm.fail_on_error(kept)?;
        }
        if self.comm.has_old_news() || self.is_return_due() {
            return self.look_while_idle();
        }
        let outstanding = self.window.outstanding();
        let idle = self.comm.is_left_alone(self.window.next(), outstanding);
        let awaits = self.window.awaits_data() || self.comm.failures.is_enabled() && outstanding > 0;
        if !idle || !awaits || self.comm.has_failed() {
            return Ok(());
        }
        let polled = self.poll();
        self.comm.fail_on_error(polled)?;
        if self.comm.has_news() {
            return self.look_while_idle();
        }
        if !self.window.awaits_data() {
            return Ok(());
        }
        self.comm.check_usable()?;
        self.comm.check_peer("receives")
    }

    /// Waits for outstanding data of completed receives while it can still arrive. If the queue
    /// pair were destroyed too early, the sender's write would fail although its data is here.
    /// Receivers that close one after another, as in an abort, share the time.
    pub(super) fn await_outstanding_data(&mut self, closing: &Grace) {
        if !self.window.awaits_data() {
            return;
        }
        let until = closing.begin(Instant::now());
        while self.window.awaits_data()
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
