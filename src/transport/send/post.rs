//! How sends are posted. A usual one is the only receive of its group and one work request on each
//! rail that carries it: it takes the shortest way, whole or split. All others take the general one.

use std::sync::atomic::Ordering;

use mpib_proto::{
    FIFO_BYTES, ImmLayout, MAX_RAILS, MAX_RECVS, RECORD_BYTES, RailSet, Record, Sequence, SizeQ, Split,
};
use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::clock;
use crate::error::{Error, Fast, Result};
use crate::split::Splitter;
use crate::transport::Unusual;
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::send::SendState;
use crate::transport::send::cts_fifo::{self, Match};
use crate::transport::send::window::{Group, SendOp};
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Chain, ImmWrite, Local, Remote, Words};

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct UsualSends {
    /// The largest message, in bytes, that goes whole on a rail that need not be chosen.
    largest: usize,
    /// That rail.
    pub(super) rail: usize,
    /// That rail alone.
    carriers: RailSet,
    /// Their share for SUP, for the statistics.
    share: Option<u16>,
    /// They go inline up to this many bytes, from memory that the processor can read.
    inline: usize,
    /// The setting for that.
    wanted_inline: usize,
    /// Size above which the immediate travels in a separate work request: the setting's, or that of
    /// the largest single write.
    separate_above: usize,
    write: ImmWrite,
}

impl UsualSends {
    /// `wanted_inline`: bytes up to which they go inline where the queue pairs have room.
    pub(super) fn new(splitter: &Splitter, comm: &Comm, wanted_inline: usize, separate_above: usize) -> Self {
        let (below, rail) = splitter.decided().unwrap_or((1, 0));
        let rail = rail % MAX_RAILS;
        let room = comm.rails.get(rail).into_iter().flat_map(|rail| rail.send_queues.iter());
        let room = room.map(SendQueue::inline).min().unwrap_or(0);
        Self {
            largest: (below.min(comm.layout.exact_below()) - 1).min(separate_above),
            rail,
            carriers: RailSet::of(rail),
            share: splitter.share(1),
            inline: room.min(wanted_inline),
            wanted_inline,
            separate_above,
            write: ImmWrite::new(),
        }
    }

    /// Decides again, after the rails have changed.
    pub(super) fn renew(&mut self, splitter: &Splitter, comm: &Comm) {
        *self = Self::new(splitter, comm, self.wanted_inline, self.separate_above);
    }
}

impl SendState {
    /// Starts a send to the only receive of its group, if nothing is in its way.
    #[inline(always)]
    pub(super) fn start_usual(
        &mut self,
        fifo: &Words,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Result<u8, Unusual> {
        let seq = self.window.seq();
        let (Some(mr), Some(found)) = (mr, cts_fifo::find_single(fifo, seq, tag)) else {
            return Err(Unusual::General);
        };
        if buffer.len as u64 > found.room || !self.window.takes_single() {
            return Err(Unusual::General);
        }
        let slot = seq.slot();
        match buffer.len.wrapping_sub(1) {
            len if len < self.usual.largest && self.goes_whole(slot, profiler) => {
                self.start_whole(slot, buffer, mr, &found)
            }
            len if len < self.usual.separate_above => self.start_split(slot, buffer, mr, &found, profiler),
            _ => Err(Unusual::General),
        }
    }

    /// Returns whether a send whose rail is decided may start there. It is counted for the profiler, also
    /// if the queue is full: then it counts twice among those from which a profiler gets one in 32.
    #[inline(always)]
    fn goes_whole(&mut self, slot: u8, profiler: ProfilerHandle) -> bool {
        let Comm { rails, profiler: events, .. } = &mut self.comm;
        CommProfiler::skips(events, profiler) && rails[self.usual.rail].send_queue(slot).room() > 0
    }

    /// Starts a send on the rail that is decided for its size.
    #[inline(always)]
    fn start_whole(&mut self, slot: u8, buffer: Buffer, mr: &Mr, found: &Match<'_>) -> Result<u8, Unusual> {
        let UsualSends { rail, carriers, inline, ref mut write, .. } = self.usual;
        let queue = self.comm.rails[rail].send_queue_mut(slot);
        let index = self.window.begin_whole(buffer, carriers);
        let local =
            Local { addr: buffer.addr as u64, len: buffer.len as u32, lkey: mr.lkeys()[rail % MAX_RAILS] };
        let imm = self.comm.layout.encode_exact(slot, carriers.bits(), local.len);
        let wr_id = queue.signal(Work::Data { slot }, 1);
        let inline = buffer.len <= inline && mr.is_readable();
        write.set(local, inline, found.remote(rail), imm, wr_id);
        match queue.post_imm(write) {
            Ok(()) => self.comm.stats.sent_whole(rail, buffer.len, self.usual.share),
            Err(e) => self.whole_not_posted(e)?,
        }
        Ok(index)
    }

    /// Handles a failed post of a send that goes whole. If it costs no more than the rail, the send
    /// counts as begun: it is lost with the rail.
    #[cold]
    #[inline(never)]
    fn whole_not_posted(&mut self, why: NotPosted) -> Result<(), Unusual> {
        self.comm.not_posted(self.usual.rail, why).map_err(Unusual::Failed)?;
        self.comm.stats.request(self.usual.share);
        Ok(())
    }

    /// Starts a send on the rails that the splitter chooses.
    #[inline(always)]
    fn start_split(
        &mut self,
        slot: u8,
        buffer: Buffer,
        mr: &Mr,
        found: &Match<'_>,
        profiler: ProfilerHandle,
    ) -> Result<u8, Unusual> {
        let Some(size) = self.comm.layout.size_bits(buffer.len) else { return Err(Unusual::General) };
        let (rails, mut split) = (&mut self.comm.rails, Split::NONE);
        if !self.splitter.split(buffer.len, |rail| rails[rail].in_flight(), &mut split) {
            return Err(Unusual::General);
        }
        for rail in split.rails().iter() {
            if rails[rail].send_queue(slot).room() == 0 {
                return Err(Unusual::General);
            }
        }
        let index = self.window.begin_split(buffer, &split);
        self.splitter.posted(&split);
        self.comm.stats.request(self.splitter.share(buffer.len));
        let bytes = |rail| split.bytes(rail);
        let measured = self.splitter.begin(slot, split.rails(), buffer.len, bytes, clock::now);
        let work = Work::data(slot, measured);
        let Comm { rails, profiler: events, .. } = &mut self.comm;
        if CommProfiler::should_report(events, profiler) {
            CommProfiler::start_parts(events, (index, profiler), &split, rails, (slot, work));
        }
        let imm = ImmLayout::encode_bits(slot, split.rails().bits(), size);
        let (lkeys, write) = (mr.lkeys(), &mut self.usual.write);
        for part in split.parts() {
            let queue = self.comm.rails[part.rail].send_queue_mut(slot);
            let addr = (buffer.addr + part.offset) as u64;
            // The length fits: no write is longer than a port's largest message, a 32-bit number.
            let local = Local { addr, len: part.len as u32, lkey: lkeys[part.rail % MAX_RAILS] };
            let mut remote = found.remote(part.rail);
            remote.addr = remote.addr.wrapping_add(part.offset as u64);
            let wr_id = queue.signal(work, 1);
            write.set(local, false, remote, imm, wr_id);
            match queue.post_imm(write) {
                Ok(()) => self.comm.stats.posted(part.rail, 1, 1, part.len),
                Err(e) => self.comm.not_posted(part.rail, e).map_err(Unusual::Failed)?,
            }
        }
        Ok(index)
    }

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
        if !self.comm.has_rail() {
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
        if !self.window.has_slot() {
            self.poll()?;
            if !self.window.has_slot() {
                return Ok(self.comm.stats.no_room());
            }
        }
        let (seq, met) = (self.window.seq(), self.window.met());
        let Some(found) = cts_fifo::find(self.comm.region.words(), seq, tag, met)? else {
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_receive());
        };
        if buffer.len as u64 > found.room {
            return Err(too_large(buffer, tag, found.room));
        }
        let (place, count, target) = (found.place, found.count, found.target());
        let Some(index) = self.window.find_free() else { return Ok(self.comm.stats.no_room()) };
        let split = self.split(buffer.len)?;
        let reported = CommProfiler::should_report(&mut self.comm.profiler, profiler);
        let profiler = if reported { profiler } else { ProfilerHandle::NONE };
        // Only an empty send has no registration.
        let lkeys = mr.map_or([0; MAX_RAILS], |mr| *mr.lkeys());
        let op = SendOp { buffer, lkeys, target, split, profiler };
        if self.window.match_send(index, (place, count), &op) && !self.post_group()? {
            self.window.unmatch(place);
            return Ok(self.comm.stats.no_room());
        }
        self.splitter.posted(&split);
        self.comm.stats.request(self.splitter.share(buffer.len));
        self.window.begin(index);
        Ok(Some(index))
    }

    /// Splits a send of the group that is being matched. Sends of the group count as in flight: they
    /// will be posted together.
    pub(super) fn split(&mut self, len: usize) -> Fast<Split> {
        let Self { splitter, comm, window, .. } = self;
        let in_flight = |rail: usize| comm.rails[rail].in_flight() + window.waiting(rail);
        let mut split = Split::NONE;
        match splitter.split(len, in_flight, &mut split) {
            true => Ok(split),
            false => Err(no_rail()),
        }
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
    fn post_group(&mut self) -> Fast<bool> {
        let (group, ops) = self.window.matched();
        let (seq, parts, len) = (self.window.seq(), carriers(ops), ops[0].buffer.len);
        let size = group.size(self.comm.layout, len);
        let joined = size != SizeQ::RECORD && len <= self.usual.separate_above;
        if !self.fits(parts, joined) {
            self.poll()?;
            if !self.fits(parts, joined) {
                return Ok(false);
            }
        }
        if size == SizeQ::RECORD {
            self.stage_record(seq)?;
        }
        let (slot, ops) = (seq.slot(), self.window.post_group(parts));
        let imm = self.comm.layout.encode(slot, parts.bits(), size);
        let bytes = |part| ops.iter().map(|op| op.split.bytes(part)).sum();
        let len = ops.iter().map(|op| op.split.size()).sum();
        let measured = self.splitter.begin(slot, parts, len, bytes, clock::now);
        for part in parts.iter() {
            let leads = parts.lowest() == Some(part);
            let (work, record) = (Work::data(slot, measured), leads && size == SizeQ::RECORD);
            let writes = PartWrites { ops, seq, part, carrier: part, imm, work, record, joined };
            if let Err(e) = writes.post(&mut self.comm, Some((&group, leads))) {
                self.comm.not_posted(part, e)?;
            }
        }
        Ok(true)
    }

    /// Returns whether the send queues of these parts have room for the present group.
    fn fits(&self, parts: RailSet, joined: bool) -> bool {
        let (slot, (_, ops)) = (self.window.seq().slot(), self.window.matched());
        parts.iter().all(|part| fits(&self.comm, slot, ops, (part, part), joined))
    }

    /// Writes the completion record to the control memory from which the leader rail sends it.
    fn stage_record(&self, seq: Sequence) -> Result<()> {
        let (_, ops) = self.window.matched();
        let mut sizes = [0; MAX_RECVS];
        for (size, send) in sizes.iter_mut().zip(ops) {
            *size = send.buffer.len;
        }
        let record = Record::new(&sizes[..ops.len()]);
        let record = record.map_err(|e| Error::Internal(e.to_string()))?.encode();
        let start = (FIFO_BYTES + seq.record_offset()) / 8;
        for (word, bytes) in self.comm.region.words()[start..].iter().zip(record.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns the rails that carry any data of a group. A group without data goes on the rails of its
/// first send.
fn carriers(ops: &[SendOp]) -> RailSet {
    let filled = ops.iter().filter(|send| send.buffer.len > 0);
    let carriers = filled.fold(RailSet::EMPTY, |all, send| all | send.split.rails());
    if carriers.is_empty() { ops[0].split.rails() } else { carriers }
}

/// Returns whether the carrier's send queue of a slot has room for the writes of a part, and for the
/// one with the immediate unless that is [joined](PartWrites::joined).
pub(super) fn fits(
    comm: &Comm,
    slot: u8,
    ops: &[SendOp],
    (part, carrier): (usize, usize),
    joined: bool,
) -> bool {
    let rail = &comm.rails[carrier];
    let largest = rail.largest_write();
    let writes: usize = ops.iter().map(|send| send.split.bytes(part).div_ceil(largest)).sum();
    rail.send_queue(slot).room() >= if joined { writes.max(1) } else { writes + 1 }
}

/// The work requests of one part of a group: its data, and the immediate.
#[derive(Debug)]
pub(super) struct PartWrites<'a> {
    pub(super) ops: &'a [SendOp],
    pub(super) seq: Sequence,
    /// The rail that was to carry the part.
    pub(super) part: usize,
    /// The rail that carries it.
    pub(super) carrier: usize,
    pub(super) imm: u32,
    /// The purpose of the write with the immediate.
    pub(super) work: Work,
    /// Whether that write carries the completion record.
    pub(super) record: bool,
    /// Whether that write is the last one with data. Otherwise it follows.
    pub(super) joined: bool,
}

impl PartWrites<'_> {
    /// Posts the work requests, for which there is [room](fits). Returns the bytes of data. `group`:
    /// the group for NCCL's profiler, and whether the part leads it.
    pub(super) fn post(&self, comm: &mut Comm, group: Option<(&Group, bool)>) -> Result<usize, NotPosted> {
        let Comm { rails: all, chain, region, remote, stats, profiler, .. } = comm;
        let largest = all[self.carrier].largest_write();
        let queue = all[self.carrier].send_queue_mut(self.seq.slot());
        chain.clear();
        let (mut writes, mut bytes, mut last) = (0, 0, None);
        for send in self.ops.iter().filter(|send| send.buffer.len > 0) {
            let Some(part) = send.split.parts().find(|p| p.rail == self.part) else { continue };
            for at in (0..part.len).step_by(largest) {
                let ends = send.ends(self.carrier, part.offset + at, largest.min(part.len - at));
                if let Some(before) = last.replace(ends) {
                    push(queue, chain, before)?;
                }
                writes += 1;
            }
            bytes += part.len;
        }
        let joined = last.filter(|_| self.joined);
        if let Some(before) = last.filter(|_| !self.joined) {
            push(queue, chain, before)?;
        }
        let offset = self.seq.record_offset();
        let (local, to) = match joined {
            Some((local, to)) => (Some(local), to),
            None => {
                let (addr, lkey) =
                    (region.addr((FIFO_BYTES + offset) / 8), region.mrs()[self.carrier].lkey());
                let record = Local { addr: addr as u64, len: RECORD_BYTES as u32, lkey };
                let to = Remote { addr: remote.addr + offset as u64, rkey: remote.rkeys[self.carrier] };
                (self.record.then_some(record), to)
            }
        };
        let requests = writes + usize::from(joined.is_none());
        queue.post_if_full(chain)?;
        let signal = queue.signal(self.work, chain.len() + 1);
        if !chain.write(local, to, Some(self.imm), Some(signal)) {
            return Err(chain_full());
        }
        if let (Some(profiler), Some((group, leads))) = (profiler, group) {
            profiler.start_group(group, self.ops, self.part, (leads, self.joined), signal, queue);
        }
        queue.post(chain, true)?;
        // A joined write without data stands for an empty message.
        stats.posted(self.carrier, requests, if self.joined { requests } else { writes }, bytes);
        Ok(bytes)
    }
}

/// Adds a write of data to the chain, after a post if that is full.
fn push(queue: &mut SendQueue, chain: &mut Chain, (local, to): (Local, Remote)) -> Result<(), NotPosted> {
    queue.post_if_full(chain)?;
    if chain.write(Some(local), to, None, None) { Ok(()) } else { Err(chain_full()) }
}

/// There was room, so this is a bug.
#[cold]
fn chain_full() -> NotPosted {
    NotPosted::internal("a chain has no room for a work request")
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
