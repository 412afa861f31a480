//! Sends of any kind, also those that are not [usual](super::single).

use std::sync::atomic::Ordering;

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Fast, Result};
use crate::proto::{FIFO_BYTES, MAX_RAILS, MAX_RECVS, RailSet, Record, SizeQ, Split, rails};
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::send::group::{Group, Matched, keep};
use crate::transport::send::part_writes::{PartWrites, data_writes};
use crate::transport::send::{SendState, cts_fifo, profiling};
use crate::transport::work::Work;

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
                profiling::group(profiler, &group, ops, rail, (first, joined), written.signal, queue);
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
