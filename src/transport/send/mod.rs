//! The sending end of a connection.

mod cts_fifo;
pub(crate) mod group;
mod profiling;
mod separate_imm;

use std::sync::{Arc, Weak};

use nccl_net_versions::{Buffer, DmaBuf, MemKind, ProfilerHandle, Tagged};

use crate::transport::Settings;
use crate::transport::comm::{Comm, Progress, progress};

use crate::error::{Error, Fast, Result};
use crate::policy::{Cut, Policy};
use crate::proto::{FIFO_BYTES, Part, RECORD_BYTES, SLOTS, Sequence, rails};
use crate::transport::lock::StateLock;
use crate::transport::memory::{Mr, Registrar};
use crate::transport::profiler::CommProfiler;
use crate::transport::request::{Owner, Pool, REQUESTS, Request};
use crate::transport::work::Work;
use crate::verbs::{Completion, Kind};
use group::{Group, NO_SEND, SendOp};

/// Bytes of a sender's control memory: the CTS FIFO that the receiver writes, and one completion
/// record per slot to send from.
pub(crate) const MEMORY_BYTES: usize = FIFO_BYTES + SLOTS * RECORD_BYTES;

/// A sending comm.
#[derive(Debug)]
pub struct SendComm(Arc<Sender>);

/// The part of a sending comm that its requests refer to.
#[derive(Debug)]
pub(crate) struct Sender {
    pool: Pool,
    memory: Registrar,
    max_message: usize,
    // Locked by NCCL's progress thread alone; registration does not need it.
    state: StateLock<SendState>,
}

#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) comm: Comm,
    policy: Policy,
    /// Size above which the immediate travels in a separate work request.
    separate_imm_above: usize,
    /// Sequence number of the group that the next send matches.
    pub(crate) seq: Sequence,
    pool: Pool,
    /// By request.
    pub(crate) sends: Box<[SendOp; REQUESTS]>,
    /// Where the search for a free request begins.
    next: u8,
    /// By slot: the groups in flight, and the one that is being matched.
    pub(crate) groups: Box<[Group; SLOTS]>,
}

impl SendComm {
    pub(crate) fn new(mut comm: Comm, policy: Policy, settings: &Settings) -> Self {
        let config = &settings.config;
        comm.start_profiling(settings, REQUESTS);
        Self(Arc::new_cyclic(|me: &Weak<Sender>| {
            let pool = Pool::new(me, REQUESTS);
            let separate_imm_above = comm.separate_imm_above(config);
            Sender {
                pool: pool.clone(),
                memory: Registrar::new(comm.nics(), config),
                max_message: comm.max_message(),
                state: StateLock::new(SendState {
                    comm,
                    policy,
                    separate_imm_above,
                    seq: Sequence::FIRST,
                    pool,
                    sends: Box::new([NO_SEND; REQUESTS]),
                    next: 0,
                    groups: Box::new([Group::default(); SLOTS]),
                }),
            }
        }))
    }

    /// Registers memory for this comm's sends.
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.0.memory.register(buffer, kind, dmabuf)
    }

    /// Starts a send to the receive with `tag` of the group that is being matched. Returns `None`
    /// if there is no such receive yet, or no room for another send.
    #[inline]
    pub fn send(
        &self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<&Tagged<Request>>> {
        let inner = &*self.0;
        inner.memory.check(mr, buffer)?;
        if buffer.len > inner.max_message {
            return Err(inner.too_long(buffer.len));
        }
        inner.state.with(|state| {
            state.comm.check_usable()?;
            match state.start(buffer, tag, mr, profiler) {
                Ok(Some(index)) => {
                    let request = inner.pool.get(usize::from(index));
                    request.cell().begin();
                    Ok(Some(request))
                }
                Ok(None) => Ok(None),
                Err(e) => Err(state.comm.fail(e)),
            }
        })
    }

    /// Sends BYE to the peer.
    pub fn close(self) -> Result<()> {
        self.0
            .state
            .with(|state| {
                state.comm.peer.close();
                Ok(())
            })
            .map_err(|e| *e)
    }
}

impl Sender {
    #[cold]
    fn too_long(&self, len: usize) -> Box<Error> {
        let largest = self.max_message;
        Error::Usage(format!("a send of {len} bytes: the largest message of these ports is {largest}")).into()
    }
}

impl Owner for Sender {
    fn progress(&self, index: usize) -> Fast<()> {
        self.state.with(|state| progress(state, index))
    }

    fn operation(&self, _: usize) -> &'static str {
        "send"
    }
}

impl Progress for SendState {
    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
    }

    fn outstanding(_: usize) -> Option<&'static str> {
        Some("sends")
    }

    #[inline]
    fn pending(&self, index: usize) -> bool {
        self.pool.cell(index).is_in_flight()
    }

    #[inline]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        let (Kind::Sent, Work::Data { slot }) = (completion.kind(), Work::of(completion.wr_id())) else {
            return Err(unknown(completion));
        };
        let known = self.comm.rails[rail].send_queue_mut(slot).sent(completion.wr_id())?;
        self.comm.stats.completed(rail, known);
        let group = &mut self.groups[usize::from(slot)];
        if group.pending >> rail & 1 == 0 {
            return Err(twice(rail, slot));
        }
        if let Some(profiler) = CommProfiler::active(&mut self.comm.profiler) {
            profiling::completed(profiler, group, rail);
        }
        group.pending &= !(1 << rail);
        if group.pending == 0 {
            for index in group.members() {
                let size = self.sends[index].buffer.len;
                self.comm.stats.done(1, size);
                self.pool.cell(index).complete_one(size);
            }
        }
        Ok(())
    }
}

impl SendState {
    #[inline]
    fn start(
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
        let Some(found) = cts_fifo::find(self.comm.region.words(), self.seq, tag, group.matched)? else {
            self.comm.peer.check("sends")?;
            return Ok(self.comm.stats.no_receive());
        };
        if buffer.len as u64 > found.room {
            return Err(too_large(buffer, tag, found.room));
        }
        let Some(index) = self.pool.free(0, &mut self.next) else { return Ok(self.comm.stats.no_room()) };
        let share = self.policy.share(buffer.len);
        match self.policy.cut(buffer.len, share, &mut self.sends[usize::from(index)].split) {
            Cut::Done => {}
            Cut::Whole => {
                let rail = self.least_busy(slot);
                self.sends[usize::from(index)].split.whole(buffer.len, rail);
            }
            Cut::NoRail => return Err(internal("the policy has no rail")),
        }
        let send = &mut self.sends[usize::from(index)];
        let reported = CommProfiler::should_report(&mut self.comm.profiler, profiler);
        send.profiler = if reported { profiler } else { ProfilerHandle::NONE };
        (send.buffer, send.target) = (buffer, found.target());
        // Only an empty send has no registration.
        if let Some(mr) = mr {
            send.lkeys = *mr.lkeys();
        }
        let posted = match found.count {
            1 => self.post_one(slot, index)?,
            count => self.match_group(slot, index, found.place, count)?,
        };
        if !posted {
            return Ok(self.comm.stats.no_room());
        }
        self.comm.stats.request(share);
        Ok(Some(index))
    }

    /// Returns the rail for a whole send. Sends of the group that is being matched count as in
    /// flight: they will be posted together.
    #[inline(never)]
    fn least_busy(&self, slot: u8) -> usize {
        let group = &self.groups[usize::from(slot)];
        self.policy.least_busy(|rail| {
            let matched = rails(group.matched).map(|place| usize::from(group.sends[place]));
            let waiting = matched.filter(|index| self.sends[*index].split.bytes(rail) > 0).count();
            self.comm.rails[rail].in_flight() + waiting as u32
        })
    }

    /// Matches a send with one of a group's several receives, and posts the group if it was the
    /// last. Returns `false` if a send queue has no room for the group yet; the send is then not
    /// matched.
    #[inline(never)]
    fn match_group(&mut self, slot: u8, index: u8, place: usize, count: usize) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        group.count = count as u8;
        group.sends[place] = index;
        group.matched |= 1 << place;
        if !group.is_matched() || self.post_separate_imm(slot)? {
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

    /// The fast path: a group of one, with data and immediate in one work request per rail. Returns
    /// `false` if a send queue has no room for it yet.
    #[inline(always)]
    fn post_one(&mut self, slot: u8, index: u8) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        (group.count, group.sends[0]) = (1, index);
        let send = &self.sends[usize::from(index)];
        let Comm { rails, chain, layout, stats, profiler, .. } = &mut self.comm;
        let size = layout.size(send.buffer.len);
        if size.bytes().is_none() || send.buffer.len > self.separate_imm_above {
            return self.post_separate_imm(slot);
        }
        let mask = send.split.mask();
        let imm = layout.encode(slot, mask, size);
        let rail = mask.trailing_zeros() as usize;
        let queue = rails[rail].send_queue_mut(slot);
        if mask & mask.wrapping_sub(1) != 0 || queue.room() == 0 {
            return self.post_parts(slot, index, imm);
        }
        group.mark_posted(mask, &mut self.seq);
        let part = Part { rail, offset: 0, len: send.buffer.len };
        if !send.profiler.is_none() {
            profiling::part(profiler, index, send, part, slot, queue);
        }
        send.post(part, queue, chain, slot, imm)?;
        stats.posted(rail, 1, 1, send.buffer.len);
        Ok(true)
    }

    /// Like [`post_one`](Self::post_one), on several rails, or after a send queue was full.
    #[inline(never)]
    fn post_parts(&mut self, slot: u8, index: u8, imm: u32) -> Fast<bool> {
        let mask = self.sends[usize::from(index)].split.mask();
        if !self.has_room(slot, mask) {
            self.poll()?;
            if !self.has_room(slot, mask) {
                return Ok(false);
            }
        }
        self.groups[usize::from(slot)].mark_posted(mask, &mut self.seq);
        let send = &self.sends[usize::from(index)];
        let Comm { rails, chain, stats, profiler, .. } = &mut self.comm;
        for part in send.split.parts() {
            let queue = rails[part.rail].send_queue_mut(slot);
            if !send.profiler.is_none() {
                profiling::part(profiler, index, send, part, slot, queue);
            }
            send.post(part, queue, chain, slot, imm)?;
            stats.posted(part.rail, 1, 1, part.len);
        }
        Ok(true)
    }

    /// Returns whether each rail of `mask` has room for one work request.
    fn has_room(&self, slot: u8, mask: u8) -> bool {
        rails(mask).all(|rail| self.comm.rails[rail].send_queue(slot).room() > 0)
    }
}

#[cold]
fn internal(what: &str) -> Box<Error> {
    Error::Internal(what.into()).into()
}

#[cold]
fn too_large(Buffer { len, .. }: Buffer, tag: i32, room: u64) -> Box<Error> {
    let what =
        format!("a send of {len} bytes with tag {tag} meets a receive of {room} bytes: nothing was sent");
    Error::Usage(what).into()
}

#[cold]
fn unknown(completion: &Completion) -> Box<Error> {
    let (kind, work) = (completion.kind(), Work::of(completion.wr_id()));
    Error::Internal(format!("a sender's queue completed {kind:?} as {work:?}")).into()
}

#[cold]
fn twice(rail: usize, slot: u8) -> Box<Error> {
    Error::Internal(format!("slot {slot} completed twice on rail {rail}")).into()
}
