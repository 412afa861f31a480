//! The usual sends, by the shortest way: one receive in the group, and one work request on each rail
//! that carries the data. Everything else is [`start`](SendState::start)'s.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Fast, Result};
use crate::proto::MAX_RAILS;
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::request::cells::Cells;
use crate::transport::send::SendState;
use crate::transport::send::group::{Matched, SENDS};
use crate::transport::send::usual::UsualSends;
use crate::transport::send::{cts_fifo, profiling};
use crate::transport::unusual::Unusual;
use crate::transport::work::Work;
use crate::verbs::{Local, Words};

impl SendState {
    /// Starts a send on the rail that is decided for its size, if nothing is in its way.
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

    /// Starts a send on the rails that the splitter chooses, if nothing is in its way. Returns
    /// `None`, and has done nothing, if something is.
    #[inline(always)]
    pub(super) fn start_split(
        &mut self,
        fifo: &Words,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        let (true, Some(mr)) = (buffer.len.wrapping_sub(1) < self.separate_imm_above, mr) else {
            return Ok(None);
        };
        let (seq, index) = (self.seq, self.next);
        let slot = seq.slot();
        let Some(found) = cts_fifo::find_single(fifo, seq, tag) else { return Ok(None) };
        let (group, cell) = (&mut self.groups[usize::from(slot)], self.cells.get(index));
        let Comm { rails: all, layout, stats, profiler: events, .. } = &mut self.comm;
        let Some(size) = layout.size_bits(buffer.len) else { return Ok(None) };
        if buffer.len as u64 > found.room || !group.is_untouched() || !cell.is_free() {
            return Ok(None);
        }
        // A comm with a single rail keeps no splits.
        let is_split = !self.splits.is_empty();
        let split = match self.splits.get_mut(usize::from(index)) {
            Some(split) => split,
            None => &mut self.ops[0].split,
        };
        if !self.splitter.split(buffer.len, |rail| all[rail].in_flight(), split) {
            return Ok(None);
        }
        for part in split.parts() {
            if all[part.rail].send_queue(slot).room() == 0 {
                return Ok(None);
            }
        }
        let mask = split.rails().bits();
        cell.begin();
        self.in_flight += 1;
        self.next = Cells::<SENDS>::after(index);
        (group.count, group.sends[0]) = (1, index);
        group.mark_posted(mask);
        self.seq = seq.next();
        self.sends[usize::from(index)] = Matched { addr: buffer.addr, len: buffer.len, slot, is_split };
        self.splitter.posted(split);
        stats.request(self.splitter.share(buffer.len));
        let measured = self.splitter.begin(slot, split.rails(), |rail| split.bytes(rail)).bits();
        let reported = CommProfiler::should_report(events, profiler);
        let imm = u32::from(slot) | u32::from(mask) << 8 | size;
        let (write, mut failed) = (&mut self.usual.write, None);
        for part in split.parts() {
            let queue = all[part.rail].send_queue_mut(slot);
            let addr = (buffer.addr + part.offset) as u64;
            // The length fits: no write is longer than a port's largest message, a 32-bit number.
            let local = Local { addr, len: part.len as u32, lkey: mr.lkeys()[part.rail % MAX_RAILS] };
            let mut remote = found.remote(part.rail);
            remote.addr = remote.addr.wrapping_add(part.offset as u64);
            let wr_id = queue.signal(Work::data(slot, part.rail, measured), 1);
            if reported {
                profiling::part(events, (index, profiler), part, wr_id, queue);
            }
            write.set(local, false, remote, imm, wr_id);
            match queue.post_imm(write) {
                Ok(()) => stats.posted(part.rail, 1, 1, part.len),
                Err(e) => failed = Some((part.rail, e)),
            }
        }
        match failed {
            None => Ok(Some(index)),
            Some((rail, e)) => self.comm.not_posted(rail, e).map(|()| Some(index)),
        }
    }
}
