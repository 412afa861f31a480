//! The usual sends, by the shortest way: one receive in the group, and one work request on each rail
//! that carries the data. Everything else is [`start`](SendState::start)'s.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Fast, Result};
use crate::proto::{MAX_RAILS, rails};
use crate::split::Splitter;
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::request::cells::Cells;
use crate::transport::send::SendState;
use crate::transport::send::cts_fifo;
use crate::transport::send::group::{Matched, SENDS};
use crate::transport::send_queue::SendQueue;
use crate::transport::unusual::Unusual;
use crate::transport::work::Work;
use crate::verbs::{ImmWrite, Local, Words};

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct UsualSends {
    /// The largest message, in bytes, that goes whole on a rail that need not be chosen.
    pub(crate) largest: usize,
    /// That rail.
    pub(crate) rail: usize,
    /// The mask with that rail alone.
    mask: u8,
    /// Their share for SUP, for the statistics.
    share: Option<u16>,
    /// They go inline up to this many bytes, from memory that the processor can read.
    inline: usize,
    /// The setting for that.
    pub(crate) wanted_inline: usize,
    write: ImmWrite,
}

impl UsualSends {
    /// `wanted_inline`: bytes up to which they go inline where the queue pairs have room.
    pub(crate) fn new(
        splitter: &Splitter,
        comm: &Comm,
        wanted_inline: usize,
        separate_imm_above: usize,
    ) -> Self {
        let (below, rail) = splitter.decided().unwrap_or((1, 0));
        let rail = rail % MAX_RAILS;
        let room = comm.rails.get(rail).into_iter().flat_map(|rail| rail.send_queues.iter());
        let room = room.map(SendQueue::inline).min().unwrap_or(0);
        Self {
            largest: (below.min(comm.layout.exact_below()) - 1).min(separate_imm_above),
            rail,
            mask: 1 << rail,
            share: splitter.share(1),
            inline: room.min(wanted_inline),
            wanted_inline,
            write: ImmWrite::new(),
        }
    }
}

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
        let (group, cell) = (&mut self.groups[usize::from(slot)], self.cells.get(index));
        let Some(found) = cts_fifo::find_single(fifo, seq, tag) else { return Ok(None) };
        // A comm with a single rail splits nothing.
        let Some(split) = self.splits.get_mut(usize::from(index)) else { return Ok(None) };
        let Comm { rails: all, layout, stats, profiler: events, .. } = &mut self.comm;
        let size = layout.size(buffer.len);
        if buffer.len as u64 > found.room
            || size.bytes().is_none()
            || !group.is_untouched()
            || !cell.is_free()
            || !self.splitter.split(buffer.len, |rail| all[rail].in_flight(), split)
            || rails(split.rails().bits()).any(|rail| all[rail].send_queue(slot).room() == 0)
            || !CommProfiler::skips(events, profiler)
        {
            return Ok(None);
        }
        let mask = split.rails().bits();
        cell.begin();
        self.in_flight += 1;
        self.next = Cells::<SENDS>::after(index);
        (group.count, group.sends[0]) = (1, index);
        group.mark_posted(mask);
        self.seq = seq.next();
        self.sends[usize::from(index)] = Matched { addr: buffer.addr, len: buffer.len, slot, is_split: true };
        self.splitter.posted(split);
        let measured = self.splitter.begin(slot, split.rails(), |rail| split.bytes(rail)).bits();
        let imm = layout.encode(slot, mask, size);
        let (write, mut failed) = (&mut self.usual.write, None);
        for part in split.parts() {
            let queue = all[part.rail].send_queue_mut(slot);
            let addr = (buffer.addr + part.offset) as u64;
            // The length fits: no write is longer than a port's largest message, a 32-bit number.
            let local = Local { addr, len: part.len as u32, lkey: mr.lkeys()[part.rail % MAX_RAILS] };
            let mut remote = found.remote(part.rail);
            remote.addr = remote.addr.wrapping_add(part.offset as u64);
            let wr_id = queue.signal(Work::data(slot, part.rail, measured), 1);
            write.set(local, false, remote, imm, wr_id);
            match queue.post_imm(write) {
                Ok(()) => stats.posted(part.rail, 1, 1, part.len),
                Err(e) => failed = Some((part.rail, e)),
            }
        }
        stats.request(self.splitter.share(buffer.len));
        failed.map_or(Ok(Some(index)), |(rail, e)| self.comm.not_posted(rail, e).map(|()| Some(index)))
    }
}
