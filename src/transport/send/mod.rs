//! The sending end of a connection.

mod completions;
mod cts_fifo;
mod episode;
mod failback;
pub(crate) mod group;
mod part_writes;
mod profiling;
mod separate_imm;
mod single;
mod timing;
mod usual;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::async_events::CommWatch;
use crate::error::{Error, Fast, Result};
use crate::housekeeping::{Housekeeping, Idleness, Job, SOON, TICK, job};
use crate::policy::{Cut, Policy};
use crate::proto::{FIFO_BYTES, MAX_RAILS, MAX_RECVS, RECORD_BYTES, SCRATCH, SLOTS, Sequence, Split, rails};
use crate::state_lock::{Entered, StateLock};
use crate::stats::Waits;
use crate::transport::comm::Comm;
use crate::transport::episode::{Running, SenderAttempts, SenderEpisodes};
use crate::transport::memory::{Mr, Registrar};
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::{Progress, progress};
use crate::transport::request::cells::Cells;
use crate::transport::settings::Settings;
use crate::transport::unusual::Unusual;
use crate::transport::work::Work;
use crate::verbs::Words;
use group::{Group, Matched, NO_SEND, SENDS, SendOp};
use timing::Timing;
use usual::UsualSends;

// The CTS FIFO, and one completion record per slot to send from.
const _: () = assert!(FIFO_BYTES + SLOTS * RECORD_BYTES == SCRATCH);

/// Of so many calls of isend that find no receive, one takes the lock and checks the peer.
const EARLY_CALLS: u32 = 32;

/// The part of a sending comm that its requests refer to.
#[derive(Debug)]
pub(crate) struct Sender {
    cells: Cells<SENDS>,
    memory: Registrar,
    /// Size of the largest message in bytes.
    longest: usize,
    /// The CTS FIFO, to look into without the lock.
    fifo: Words,
    /// Number of the group that the next send matches. Written under the lock.
    next: AtomicU64,
    /// Calls of isend that found no receive. NCCL's progress thread alone calls isend.
    early: AtomicU32,
    /// Counts them.
    waits: Waits,
    watch: Arc<CommWatch>,
    /// Polls this sender while NCCL makes no call.
    housekeeping: Arc<Housekeeping>,
    /// Whether the last pass of housekeeping has left news to NCCL.
    urgent: AtomicBool,
    // Locked by NCCL's progress thread alone; registration does not need it.
    state: StateLock<SendState>,
}

#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) comm: Comm,
    policy: Policy,
    /// Size above which the immediate travels in a separate work request: the setting's, or that of
    /// the largest single write.
    separate_imm_above: usize,
    /// Sequence number of the group that the next send matches.
    pub(crate) seq: Sequence,
    cells: Cells<SENDS>,
    /// By request.
    pub(crate) sends: Box<[Matched; SENDS]>,
    /// By request: how those that say so are split.
    splits: Box<[Split; SENDS]>,
    episodes: SenderEpisodes,
    /// The episode in progress.
    episode: Option<Running>,
    attempts: SenderAttempts,
    /// The sends of the group that is being matched, by receive.
    pub(crate) ops: Box<[SendOp; MAX_RECVS]>,
    /// Where the search for a free request begins.
    next: u8,
    /// Sends in flight.
    in_flight: usize,
    idleness: Idleness<(Sequence, usize)>,
    /// By slot: the groups in flight, and the one that is being matched.
    pub(crate) groups: Box<[Group; SLOTS]>,
    usual: UsualSends,
    /// Present if the policy measures.
    timing: Option<Box<Timing>>,
    /// The rails on drained ports.
    drained: u8,
}

impl Sender {
    pub(crate) fn new(mut comm: Comm, mut policy: Policy, settings: &Settings) -> Arc<Self> {
        let config = &settings.config;
        comm.start_profiling(settings, SENDS);
        let (cells, separate_imm_above) =
            (Cells::new(), comm.separate_imm_above(config).min(comm.largest_write()));
        let drained = comm.drained();
        policy.keep(comm.undrained(drained));
        let sender = Arc::new(Self {
            housekeeping: Arc::clone(&settings.process.housekeeping),
            urgent: AtomicBool::new(false),
            cells: cells.clone(),
            memory: Registrar::new(comm.nics(), config),
            longest: comm.longest_send(),
            fifo: comm.region.share(),
            next: AtomicU64::new(Sequence::FIRST.number()),
            early: AtomicU32::new(0),
            waits: comm.stats.waits(),
            watch: comm.watch(),
            state: StateLock::new(SendState {
                usual: UsualSends::new(&policy, &comm, config.inline as usize, separate_imm_above),
                timing: timing::of(&mut policy, comm.rails.len()),
                drained,
                comm,
                policy,
                separate_imm_above,
                seq: Sequence::FIRST,
                cells,
                sends: Box::new([Matched::default(); SENDS]),
                splits: Box::new([Split::NONE; SENDS]),
                episodes: SenderEpisodes::default(),
                episode: None,
                attempts: SenderAttempts::default(),
                ops: Box::new([NO_SEND; MAX_RECVS]),
                next: 0,
                in_flight: 0,
                idleness: Idleness::UNKNOWN,
                groups: Box::new([Group::default(); SLOTS]),
            }),
        });
        settings.process.housekeeping.add("sending", job(&sender));
        sender
    }

    pub(crate) fn cells(&self) -> &Cells<SENDS> {
        &self.cells
    }

    pub(crate) fn memory(&self) -> &Registrar {
        &self.memory
    }

    /// Returns whether the next receive has been posted, or there is something to report.
    #[inline(always)]
    pub(crate) fn may_send(&self) -> bool {
        let seq = Sequence::from_number(self.next.load(Ordering::Relaxed));
        if cts_fifo::has_arrived(&self.fifo, seq) || self.watch.is_marked() {
            return true;
        }
        let early = self.early.load(Ordering::Relaxed).wrapping_add(1);
        self.early.store(early, Ordering::Relaxed);
        if early.is_multiple_of(EARLY_CALLS) {
            return true;
        }
        self.waits.no_receive();
        false
    }

    /// Starts a send, and returns the index of its request.
    #[inline(always)]
    pub(crate) fn send(
        &self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        self.memory.check(mr, buffer)?;
        if buffer.len > self.longest {
            return Err(self.too_long(buffer.len));
        }
        let mut state = self.state.enter()?;
        let started = match state.comm.is_marked() {
            false => state.start_single(&self.fifo, buffer, tag, mr, profiler),
            true => Err(Unusual::Marked),
        };
        match started {
            Ok(index) => {
                self.next.store(state.seq.number(), Ordering::Relaxed);
                state.leave(Ok(Some(index)))
            }
            Err(why) => self.send_unusual(state, why, buffer, tag, mr, profiler),
        }
    }

    /// Starts a send that is not [`single`].
    #[inline(never)]
    fn send_unusual(
        &self,
        mut state: Entered<'_, SendState>,
        why: Unusual,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        let index = match why {
            Unusual::General => state.start(buffer, tag, mr, profiler),
            Unusual::Marked => state.start_marked(buffer, tag, mr, profiler),
            Unusual::NotPosted(index, e) => {
                let rail = state.usual.rail;
                state.comm.rail_failed(rail, e).map(|()| Some(index))
            }
        };
        self.next.store(state.seq.number(), Ordering::Relaxed);
        let index = index.map_err(|e| state.comm.fail(e));
        state.leave(index)
    }

    #[inline(always)]
    pub(crate) fn progress(&self, index: u8) -> Fast<()> {
        let mut state = self.state.enter()?;
        let progress = progress(&mut *state, index);
        state.leave(progress)
    }

    /// Handles news while NCCL makes no call. Returns `None` if a call holds the state.
    fn poll_idle(&self) -> Option<Fast<()>> {
        self.state.try_with(|state| {
            let idle = state.idleness.lasts((state.seq, state.in_flight));
            let waits = state.in_flight > 0 && state.comm.failures.is_enabled();
            if idle && waits && !state.comm.has_failed() {
                let polled = state.poll();
                state.comm.fail_on_error(polled)?;
            }
            if state.comm.has_old_news() || state.is_failback_due() {
                state.look_while_idle()?;
            }
            self.urgent.store(state.comm.has_news(), Ordering::Relaxed);
            Ok(())
        })
    }

    /// Sends BYE to the peer.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.housekeeping.remove(self);
        let close = |state: &mut SendState| {
            state.comm.peer.close();
            Ok(())
        };
        self.state.with(close).map_err(|e| *e)
    }

    #[cold]
    fn too_long(&self, len: usize) -> Box<Error> {
        let longest = self.longest;
        Error::Usage(format!("a send of {len} bytes: the largest message of these ports is {longest}")).into()
    }
}

/// Handles news of the peer and of rails while NCCL makes no call. An error fails the connection.
impl Job for Sender {
    fn run(&self) -> Result<()> {
        self.urgent.store(false, Ordering::Relaxed);
        self.poll_idle().unwrap_or(Ok(())).map_err(|e| *e)
    }

    fn interval(&self) -> Duration {
        if self.urgent.load(Ordering::Relaxed) { SOON } else { TICK }
    }
}

impl SendState {
    /// Starts a send on a comm that is marked.
    #[cold]
    fn start_marked(
        &mut self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        self.look_closer()?;
        if self.blocks_sends() {
            return Ok(self.comm.stats.no_room());
        }
        self.start(buffer, tag, mr, profiler)
    }

    /// Starts a send of any kind.
    #[inline(never)]
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
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_receive());
        };
        if buffer.len as u64 > found.room {
            return Err(too_large(buffer, tag, found.room));
        }
        let (place, count, target) = (found.place, found.count, found.target());
        let Some(index) = self.cells.find_free(&mut self.next) else { return Ok(self.comm.stats.no_room()) };
        let share = self.split(slot, place, buffer.len)?;
        // Only an empty send has no registration.
        let lkeys = mr.map_or([0; MAX_RAILS], |mr| *mr.lkeys());
        self.sends[usize::from(index)] =
            Matched { addr: buffer.addr, len: buffer.len, lkeys, slot, is_split: true };
        self.splits[usize::from(index)] = self.ops[place].split;
        let send = &mut self.ops[place];
        let reported = CommProfiler::should_report(&mut self.comm.profiler, profiler);
        send.profiler = if reported { profiler } else { ProfilerHandle::NONE };
        (send.buffer, send.target, send.lkeys) = (buffer, target, lkeys);
        let posted = match count {
            1 => self.post_one(slot, index)?,
            count => self.match_group(slot, index, place, count)?,
        };
        if !posted {
            return Ok(self.comm.stats.no_room());
        }
        self.policy.posted(buffer.len, share, &self.ops[place].split);
        self.comm.stats.request(share);
        self.cells.get(index).begin();
        self.in_flight += 1;
        Ok(Some(index))
    }

    /// Splits a send of the group that is being matched. Returns the share for SUP.
    #[inline(always)]
    fn split(&mut self, slot: u8, place: usize, len: usize) -> Fast<Option<u16>> {
        let share = self.policy.share(len);
        let cut = match self.policy.cut(len, share, &mut self.ops[place].split) {
            Cut::Measured => {
                let split = &mut self.ops[place].split;
                timing::cut(self.timing.as_deref(), &mut self.policy, len, split)
            }
            cut => cut,
        };
        match cut {
            Cut::Done => {}
            Cut::Whole => {
                let rail = self.least_busy(slot);
                self.ops[place].split.whole(len, rail);
            }
            Cut::NoRail | Cut::Measured => return Err(internal("the policy has no rail")),
        }
        Ok(share)
    }

    /// Returns the rail for a whole send. Sends of the group that is being matched count as in
    /// flight: they will be posted together.
    #[inline(never)]
    fn least_busy(&self, slot: u8) -> usize {
        let group = &self.groups[usize::from(slot)];
        self.policy.least_busy(|rail| {
            let waiting = rails(group.matched).filter(|place| self.ops[*place].split.bytes(rail) > 0).count();
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

    /// Posts a group of one, with data and immediate in one work request per rail. Returns `false`
    /// if a send queue has no room for it yet.
    fn post_one(&mut self, slot: u8, index: u8) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        (group.count, group.sends[0]) = (1, index);
        let send = &self.ops[0];
        let (len, mask) = (send.buffer.len, send.split.mask());
        let size = self.comm.layout.size(len);
        if size.bytes().is_none() || len > self.separate_imm_above {
            return self.post_separate_imm(slot);
        }
        let imm = self.comm.layout.encode(slot, mask, size);
        if !self.has_room(slot, mask) {
            self.poll()?;
            if !self.has_room(slot, mask) {
                return Ok(false);
            }
        }
        self.groups[usize::from(slot)].mark_posted(mask);
        self.seq = self.seq.next();
        match &mut self.timing {
            None => self.post_parts(slot, index, imm, |_| Work::Data { slot }),
            Some(timing) => {
                let split = &self.ops[0].split;
                let measured = timing.begin(slot, mask, |rail| split.bytes(rail));
                self.post_parts(slot, index, imm, |rail| Work::data(slot, rail, measured))
            }
        }
    }

    /// Posts the parts of a group of one. `work` returns the purpose of each rail's write.
    #[inline(always)]
    fn post_parts(&mut self, slot: u8, index: u8, imm: u32, work: impl Fn(usize) -> Work) -> Fast<bool> {
        let send = &self.ops[0];
        let Comm { rails, chain, stats, profiler, .. } = &mut self.comm;
        let mut failed = None;
        for part in send.split.parts() {
            let queue = rails[part.rail].send_queue_mut(slot);
            let work = work(part.rail);
            if !send.profiler.is_none() {
                profiling::part(profiler, index, send, part, work, queue);
            }
            match send.post(part, queue, chain, work, imm) {
                Ok(()) => stats.posted(part.rail, 1, 1, part.len),
                Err(e) => failed = Some((part.rail, e)),
            }
        }
        failed.map_or(Ok(true), |(rail, e)| self.comm.rail_failed(rail, e).map(|()| true))
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
