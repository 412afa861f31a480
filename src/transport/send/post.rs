//! How sends are posted: the usual ones by the shortest way, all others by the general one.

use std::sync::atomic::Ordering;

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Fast, Result};
use crate::proto::{FIFO_BYTES, MAX_RAILS, MAX_RECVS, RECORD_BYTES, RailSet, Record, SizeQ, Split, rails};
use crate::split::Splitter;
use crate::transport::Unusual;
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::remote_memory::RemoteMemory;
use crate::transport::request::Cells;
use crate::transport::send::window::{Group, Matched, SENDS, SendOp, keep};
use crate::transport::send::{SendState, cts_fifo};
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Chain, ImmWrite, Local, Region, Remote, Words};

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct UsualSends {
    /// The largest message, in bytes, that goes whole on a rail that need not be chosen.
    pub(crate) largest: usize,
    /// That rail.
    pub(crate) rail: usize,
    /// The mask with that rail alone.
    pub(crate) mask: u8,
    /// Their share for SUP, for the statistics.
    pub(crate) share: Option<u16>,
    /// They go inline up to this many bytes, from memory that the processor can read.
    pub(crate) inline: usize,
    /// The setting for that.
    pub(crate) wanted_inline: usize,
    pub(crate) write: ImmWrite,
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
                CommProfiler::start_part(events, (index, profiler), part, wr_id, queue);
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

impl SendState {
    /// Starts a send on a comm that is marked.
    #[cold]
    pub(super) fn start_marked(
        &mut self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        self.poll_marked()?;
        self.look_closer()?;
        if self.blocks_sends() {
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_room());
        }
        self.start(buffer, tag, mr, profiler)
    }

    /// Starts a send of any kind.
    #[inline(never)]
    pub(super) fn start(
        &mut self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        let slot = self.seq.slot();
        let group = &mut self.groups[usize::from(slot)];
        if group.pending != 0 && !self.slot_comes_free(slot)? {
            return Ok(self.comm.stats.no_room());
        }
        let group = &mut self.groups[usize::from(slot)];
        let met = (group.matched != 0).then_some((group.matched, group.count));
        let Some(found) = cts_fifo::find(self.comm.region.words(), self.seq, tag, met)? else {
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_receive());
        };
        if buffer.len as u64 > found.room {
            return Err(too_large(buffer, tag, found.room));
        }
        let (place, count, target) = (found.place, found.count, found.target());
        let Some(index) = self.cells.find_free(&mut self.next) else { return Ok(self.comm.stats.no_room()) };
        self.split(slot, place, buffer.len)?;
        // Only an empty send has no registration.
        let lkeys = mr.map_or([0; MAX_RAILS], |mr| *mr.lkeys());
        let send = &mut self.ops[place];
        let is_split = keep(&mut self.splits, index, send.split);
        self.sends[usize::from(index)] = Matched { addr: buffer.addr, len: buffer.len, slot, is_split };
        let reported = CommProfiler::should_report(&mut self.comm.profiler, profiler);
        send.profiler = if reported { profiler } else { ProfilerHandle::NONE };
        (send.buffer, send.target, send.lkeys) = (buffer, target, lkeys);
        if !self.match_group(slot, index, place, count)? {
            return Ok(self.comm.stats.no_room());
        }
        self.splitter.posted(&self.ops[place].split);
        self.comm.stats.request(self.splitter.share(buffer.len));
        self.cells.get(index).begin();
        self.in_flight += 1;
        Ok(Some(index))
    }

    /// Splits a send of the group that is being matched. Sends of the group count as in flight: they
    /// will be posted together.
    pub(super) fn split(&mut self, slot: u8, place: usize, len: usize) -> Fast<()> {
        let Self { splitter, comm, ops, groups, .. } = self;
        let matched = groups[usize::from(slot)].matched;
        let in_flight = |rail: usize| {
            let waiting = rails(matched).filter(|place| ops[*place].split.bytes(rail) > 0).count();
            comm.rails[rail].in_flight() + waiting as u32
        };
        let mut split = Split::NONE;
        if !splitter.split(len, in_flight, &mut split) {
            return Err(no_rail());
        }
        ops[place].split = split;
        Ok(())
    }

    /// Matches a send with a receive of its group, and posts the group if it was the last. Returns
    /// `false` if a send queue has no room for the group yet; the send is then not matched.
    fn match_group(&mut self, slot: u8, index: u8, place: usize, count: usize) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        group.count = count as u8;
        group.sends[place] = index;
        group.matched |= 1 << place;
        if !group.is_matched() || self.post_group(slot)? {
            return Ok(true);
        }
        self.groups[usize::from(slot)].matched &= !(1 << place);
        Ok(false)
    }

    /// Polls, and returns whether the slot's previous group is completed now.
    #[cold]
    fn slot_comes_free(&mut self, slot: u8) -> Fast<bool> {
        self.poll()?;
        Ok(self.groups[usize::from(slot)].pending == 0)
    }

    /// Posts a group whose receives are all matched. Returns `false` if a send queue has no room for
    /// it yet.
    ///
    /// The immediate travels with the data of a group of one. It travels in a separate work request
    /// with grouped receives, sizes that `size_q` cannot encode, sends larger than the adapter's
    /// largest write, and adaptive-routing sends. Per rail: one RDMA WRITE per part, or several for
    /// a part larger than the largest write, then one WRITE_WITH_IMM. The latter carries no data,
    /// except on the leader rail of a group whose sizes the immediate does not contain: there it
    /// carries the completion record.
    fn post_group(&mut self, slot: u8) -> Fast<bool> {
        let (group, offset) = (self.groups[usize::from(slot)], self.seq.record_offset());
        let (mask, len) = (self.mask(&group), self.ops[0].buffer.len);
        let size = group.size(self.comm.layout, len);
        let joined = size != SizeQ::RECORD && len <= self.separate_imm_above;
        if !self.fits(slot, mask, &group, joined) {
            self.poll()?;
            if !self.fits(slot, mask, &group, joined) {
                return Ok(false);
            }
        }
        if size == SizeQ::RECORD {
            self.stage_record(&group)?;
        }
        self.groups[usize::from(slot)].mark_posted(mask);
        self.seq = self.seq.next();
        let Comm { rails: all, chain, layout, region, remote, stats, profiler, .. } = &mut self.comm;
        let imm = layout.encode(slot, mask, size);
        let ops = group.ops(&self.ops);
        let bytes = |rail| ops.iter().map(|op| op.split.bytes(rail)).sum();
        let measured = self.splitter.begin(slot, RailSet::from_bits(mask), bytes).bits();
        let mut failed = None;
        let leader = if size == SizeQ::RECORD { mask.trailing_zeros() as usize } else { MAX_RAILS };
        for rail in rails(mask) {
            let largest = all[rail].largest_write();
            let queue = all[rail].send_queue_mut(slot);
            let record = rail == leader;
            let work = Work::data(slot, rail, measured);
            let part = PartWrites { offset, part: rail, carrier: rail, largest, imm, work, record, joined };
            let written = match part.prepare(ops, queue, chain, (region, remote)) {
                Ok(written) => written,
                Err(e) => {
                    failed = Some((rail, e));
                    continue;
                }
            };
            if let Some(profiler) = profiler {
                let first = mask.trailing_zeros() as usize == rail;
                profiler.start_group(&group, ops, rail, (first, joined), written.signal, queue);
            }
            match queue.post(chain, true) {
                Ok(()) => stats.posted(rail, written.requests, written.writes, written.bytes),
                Err(e) => failed = Some((rail, e)),
            }
        }
        failed.map_or(Ok(true), |(rail, e)| self.comm.not_posted(rail, e).map(|()| true))
    }

    /// Returns the rails that carry any data of a group. A group without data goes on the rails of
    /// its first send.
    fn mask(&self, group: &Group) -> u8 {
        let filled = group.ops(&self.ops).iter().filter(|send| send.buffer.len > 0);
        match filled.fold(0, |mask, send| mask | send.split.rails().bits()) {
            0 => self.ops[0].split.rails().bits(),
            mask => mask,
        }
    }

    /// Returns whether the slot's send queue on every rail of `mask` has room for the group's
    /// writes, and for the one with the immediate unless that is [joined](PartWrites::joined).
    fn fits(&self, slot: u8, mask: u8, group: &Group, joined: bool) -> bool {
        rails(mask).all(|rail| {
            let of_rail = &self.comm.rails[rail];
            let writes = data_writes(group.ops(&self.ops), rail, of_rail.largest_write());
            let needed = if joined { writes.max(1) } else { writes + 1 };
            of_rail.send_queue(slot).room() >= needed
        })
    }

    /// Writes the completion record to the control memory from which the leader rail sends it.
    fn stage_record(&self, group: &Group) -> Result<()> {
        let mut sizes = [0; MAX_RECVS];
        let ops = group.ops(&self.ops);
        for (size, send) in sizes.iter_mut().zip(ops) {
            *size = send.buffer.len;
        }
        let record = Record::new(&sizes[..ops.len()]);
        let record = record.map_err(|e| Error::Internal(e.to_string()))?.encode();
        let start = (FIFO_BYTES + self.seq.record_offset()) / 8;
        for (word, bytes) in self.comm.region.words()[start..].iter().zip(record.chunks_exact(8)) {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(number), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cold]
fn no_rail() -> Box<Error> {
    Error::Internal("no rail may carry data".into()).into()
}

#[cold]
fn too_large(Buffer { len, .. }: Buffer, tag: i32, room: u64) -> Box<Error> {
    let what =
        format!("a send of {len} bytes with tag {tag} meets a receive of {room} bytes: nothing was sent");
    Error::Usage(what).into()
}

/// The work requests of one part of a group: its data, and the immediate.
#[derive(Debug)]
pub(crate) struct PartWrites {
    /// Offset of the group's completion record.
    pub(crate) offset: usize,
    /// The rail that was to carry the part.
    pub(crate) part: usize,
    /// The rail that carries it.
    pub(crate) carrier: usize,
    /// The largest write of the carrier in bytes.
    pub(crate) largest: usize,
    pub(crate) imm: u32,
    /// The purpose of the write with the immediate.
    pub(crate) work: Work,
    /// Whether that write carries the completion record.
    pub(crate) record: bool,
    /// Whether that write is the last one with data. Otherwise it follows.
    pub(crate) joined: bool,
}

/// What [`PartWrites::prepare`] has put into the chain, or posted if it was full.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Work requests.
    pub(crate) requests: usize,
    /// Those of them that stand for data.
    pub(crate) writes: usize,
    /// The sum of the writes' lengths, in bytes.
    pub(crate) bytes: usize,
    /// The `wr_id` of the write with the immediate, which is the last of the chain.
    pub(crate) signal: u64,
}

/// Returns the number of writes with data of one part of a group, on a rail with this largest write.
#[inline]
pub(crate) fn data_writes(ops: &[SendOp], part: usize, largest: usize) -> usize {
    ops.iter().map(|send| send.split.bytes(part).div_ceil(largest)).sum()
}

impl PartWrites {
    /// Fills the chain. The caller posts it, signalled.
    pub(crate) fn prepare(
        &self,
        ops: &[SendOp],
        queue: &mut SendQueue,
        chain: &mut Chain,
        (region, remote): (&Region, &RemoteMemory),
    ) -> Result<Prepared, NotPosted> {
        chain.clear();
        let (mut writes, mut bytes, mut last) = (0, 0, None);
        for send in ops.iter().filter(|send| send.buffer.len > 0) {
            let Some(part) = send.split.parts().find(|p| p.rail == self.part) else { continue };
            for at in (0..part.len).step_by(self.largest) {
                let ends = send.ends(self.carrier, part.offset + at, self.largest.min(part.len - at));
                if let Some((local, to)) = last.replace(ends) {
                    push(queue, chain, Some(local), to, None)?;
                }
                writes += 1;
            }
            bytes += part.len;
        }
        let (local, to, requests) = match (last, self.joined) {
            (Some((local, to)), true) => (Some(local), to, writes),
            (last, _) => {
                if let Some((local, to)) = last {
                    push(queue, chain, Some(local), to, None)?;
                }
                let (addr, lkey) =
                    (region.addr((FIFO_BYTES + self.offset) / 8), region.mrs()[self.carrier].lkey());
                let record = Local { addr: addr as u64, len: RECORD_BYTES as u32, lkey };
                let to = Remote { addr: remote.addr + self.offset as u64, rkey: remote.rkeys[self.carrier] };
                (self.record.then_some(record), to, writes + 1)
            }
        };
        queue.post_if_full(chain)?;
        let signal = queue.signal(self.work, chain.len() + 1);
        push(queue, chain, local, to, Some((self.imm, signal)))?;
        // A joined write without data stands for an empty message.
        Ok(Prepared { requests, writes: if self.joined { requests } else { writes }, bytes, signal })
    }
}

/// Adds a write to the chain, after a post if that is full. The last one has the immediate and a
/// `wr_id`.
fn push(
    queue: &mut SendQueue,
    chain: &mut Chain,
    local: Option<Local>,
    to: Remote,
    last: Option<(u32, u64)>,
) -> Result<(), NotPosted> {
    queue.post_if_full(chain)?;
    let is_written = chain.write(local, to, last.map(|(imm, _)| imm), last.map(|(_, signal)| signal));
    if is_written { Ok(()) } else { Err(chain_full()) }
}

/// There was room, so this is a bug.
#[cold]
fn chain_full() -> NotPosted {
    NotPosted::internal("a chain has no room for a work request")
}
