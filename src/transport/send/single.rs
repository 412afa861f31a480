//! The usual send, by the shortest way: one receive in its group, all data on one rail that the
//! policy need not choose, one work request. Everything else is [`start`](SendState::start)'s.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::Result;
use crate::proto::MAX_RAILS;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::request::cells::Cells;
use crate::transport::send::SendState;
use crate::transport::send::cts_fifo;
use crate::transport::send::group::{Matched, SENDS};
use crate::transport::send::usual::UsualSends;
use crate::transport::unusual::Unusual;
use crate::transport::work::Work;
use crate::verbs::{Local, Words};

impl SendState {
    /// Starts a send if it is a usual one and nothing is in its way.
    #[inline(always)]
    pub(crate) fn start_single(
        &mut self,
        fifo: &Words,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Result<u8, Unusual> {
        let UsualSends { largest, rail, mask, inline, ref mut write, .. } = self.usual;
        let (true, Some(mr)) = (buffer.len.wrapping_sub(1) < largest, mr) else {
            return Err(Unusual::General);
        };
        let seq = self.seq;
        let Some(found) = cts_fifo::find_single(fifo, seq, tag) else { return Err(Unusual::General) };
        let (slot, index) = (seq.slot(), self.next);
        let (group, cell) = (&mut self.groups[usize::from(slot)], self.cells.get(index));
        let queue = self.comm.rails[rail].send_queue_mut(slot);
        if buffer.len as u64 > found.room
            || !group.is_untouched()
            || !cell.is_free()
            || queue.room() == 0
            || !CommProfiler::skips(&mut self.comm.profiler, profiler)
        {
            return Err(Unusual::General);
        }
        cell.begin();
        self.in_flight += 1;
        self.next = Cells::<SENDS>::after(index);
        (group.count, group.sends[0]) = (1, index);
        group.mark_posted(mask);
        self.seq = seq.next();
        self.sends[usize::from(index)] =
            Matched { addr: buffer.addr, len: buffer.len, slot, is_split: false };
        let local =
            Local { addr: buffer.addr as u64, len: buffer.len as u32, lkey: mr.lkeys()[rail % MAX_RAILS] };
        let imm = self.comm.layout.encode_exact(slot, mask, local.len);
        let wr_id = queue.signal(Work::Data { slot }, 1);
        let inline = buffer.len <= inline && mr.is_readable();
        write.set(local, inline, found.remote(rail), imm, wr_id);
        queue.post_imm(write).map_err(|e| Unusual::NotPosted(index, e))?;
        self.comm.stats.sent_whole(rail, buffer.len, self.usual.share);
        Ok(index)
    }
}
