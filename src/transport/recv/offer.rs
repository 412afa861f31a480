//! How buffers are offered: the usual ones by the shortest way, all others by the general one.

use std::time::Instant;

use nccl_net_versions::{NetPlugin, RecvBuffer};

use crate::error::{Fast, Result};
use crate::grace::Grace;
use crate::proto::SLOTS;
use crate::transport::Unusual;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::recv::RecvState;
use crate::transport::request::cell::RequestCell;

impl RecvState {
    /// Starts a group if it is a usual one and nothing is in its way.
    #[inline(always)]
    pub(crate) fn start_single<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Result<u8, Unusual> {
        let [RecvBuffer { buffer, tag, mr: Some(mr), profiler }] = buffers else {
            return Err(Unusual::General);
        };
        let (slot, cell) = (self.cts.next().slot(), self.cells.get(self.cts.next().slot()));
        let queue = self.cts.queue(&mut self.comm.rails);
        if self.credit == 0 || !cell.is_free() || !self.cts.is_simple(queue) {
            return Err(Unusual::General);
        }
        let possible = match OPTIONAL {
            true => self.outstanding < Self::MANY && self.comm.peer.is_connected(),
            false => CommProfiler::skips(&mut self.comm.profiler, *profiler),
        };
        if !possible {
            return Err(Unusual::General);
        }
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        place.begin(1);
        place.set_buffer(0, *buffer);
        cell.begin();
        self.outstanding += 1;
        self.credit -= 1;
        let written = self.cts.write_inline(queue, *buffer, *tag, mr.rkeys(), None);
        written.map_err(|e| Unusual::NotPosted(slot, e))?;
        self.comm.stats.offered(self.cts.rail());
        if OPTIONAL {
            self.complete_ahead(slot);
        }
        Ok(slot)
    }

    /// Handles an immediate if it completes a usual receive. Otherwise returns `false` and has done
    /// nothing.
    #[inline(always)]
    pub(crate) fn arrived_single(&mut self, rail: usize, word: u32) -> bool {
        let Some((slot, size)) = self.comm.layout.decode_whole(word, rail) else { return false };
        let (cell, place) = (self.cells.get(slot), &mut self.slots[usize::from(slot) % SLOTS]);
        let usual = CommProfiler::active(&mut self.comm.profiler).is_none()
            && cell.is_in_flight()
            && place.arrived_whole(rail, size);
        if usual {
            if let Some(flushes) = &mut self.flushes {
                flushes.carried(rail);
            }
            self.comm.stats.arrived_whole(rail, size);
            cell.complete_one(size);
            self.outstanding -= 1;
        }
        usual
    }
}

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
