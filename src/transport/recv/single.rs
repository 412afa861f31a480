//! The usual receive, by the shortest way: a group of one, whose CTS entry goes inline, and whose
//! data arrives on one rail. Everything else is [`start`](RecvState::start)'s and
//! [`arrived`](RecvState::arrived)'s.

use nccl_net_versions::{NetPlugin, RecvBuffer};

use crate::error::Result;
use crate::proto::SLOTS;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::recv::RecvState;
use crate::transport::unusual::Unusual;

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
