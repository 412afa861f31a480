//! The receiving end of a connection.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nccl_net_versions::{Buffer, DmaBuf, MemKind, NetPlugin, RecvBuffer, Tagged};

use super::Settings;
use super::arrival::{Slot, Wrong, read_record};
use super::core::{Core, Progress, progress};
use super::flush::{self, FLUSHES, Flushes, SINK_BYTES};
use super::mr::{Mr, Registrar};
use super::profile::Profile;
use super::rail::{Rail, Work};
use super::request::{Pool, Request};
use super::shared::Shared;
use crate::error::{Error, Fast, Result};
use crate::hints::Flow;
use crate::proto::{
    CTS_BYTES, CTS_WORDS, Cts, FIFO_BYTES, MAX_RAILS, MAX_RECVS, RECORDS_BYTES, Record, SLOTS, Sequence,
};
use crate::verbs::{Completion, Kind, Local, Remote};

/// Bytes of a receiver's control memory: the records that the sender writes into, CTS entries to send from, and what a
/// flush reads into.
pub(super) const MEMORY_BYTES: usize = SINK + SINK_BYTES;
pub(super) const SINK: usize = RECORDS_BYTES + FIFO_BYTES;

/// The lane that carries CTS writes: one, so that they arrive in order and one completion accounts for all before it.
const CTS_LANE: usize = 0;

/// A receiving comm.
#[derive(Debug)]
pub struct RecvComm(Arc<Receiver>);

/// What the comm and its requests share.
#[derive(Debug)]
pub(super) struct Receiver {
    /// By slot, then those of the flushes, where there are any.
    pool: Pool,
    memory: Registrar,
    /// With `MPIB_FLUSH=1`: host memory is flushed as well.
    flush_host: bool,
    /// The agent knows the connection as long as it lives. Its hints are the sender's affair.
    _flow: Option<Flow>,
    // Only NCCL's progress thread takes it; registration does not.
    state: Shared<State>,
}

#[derive(Debug)]
struct State {
    core: Core,
    seq: Sequence,
    pool: Pool,
    /// By slot; a request is its slot.
    slots: Box<[Slot; SLOTS]>,
    /// The rail that carries CTS writes.
    cts_rail: usize,
    /// Slots whose data has not come.
    outstanding: usize,
    /// Each n-th CTS write asks for a completion.
    signal_interval: u32,
    /// Where GPU memory can be registered, or `MPIB_FLUSH=1` wants it.
    flushes: Option<Flushes>,
}

impl RecvComm {
    pub(super) fn new(mut core: Core, settings: &Settings, flow: Option<Flow>) -> Self {
        let config = &settings.config;
        core.profile = Profile::of_receives(settings.profiler, &core);
        // At least twice per queue, so that it is never full of writes that nobody will account for.
        let cts_rail = core.rails.iter().position(|r| r.role == core.plan.cts()).unwrap_or(0);
        let depth = core.rails.get(cts_rail).map_or(2, |r| r.lanes[CTS_LANE].send_depth());
        let signal_interval = config.cts_signal_interval.min(depth / 2).max(1);
        Self(Arc::new_cyclic(|me: &Weak<Receiver>| {
            let flushes = flush::possible(&core.rails);
            let pool = Pool::of_receiver(me, SLOTS + if flushes { FLUSHES } else { 0 });
            Receiver {
                pool: pool.clone(),
                memory: Registrar::new(core.nics(), config),
                flush_host: config.flush == Some(true),
                _flow: flow,
                state: Shared::new(State {
                    flushes: flushes.then(|| Flushes::new(SINK / 8, &core.rails)),
                    core,
                    seq: Sequence::FIRST,
                    pool,
                    slots: Box::new([Slot::EMPTY; SLOTS]),
                    cts_rail,
                    outstanding: 0,
                    signal_interval,
                }),
            }
        }))
    }

    /// Registers memory for this comm's receives.
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.0.memory.register(buffer, kind, dmabuf)
    }

    /// Offers a group of 1 to 8 buffers to the sender; `None` where 256 groups are under way.
    #[inline]
    pub fn receive<P: NetPlugin<Mr = Mr>>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<&Tagged<Request>>> {
        if buffers.is_empty() || buffers.len() > MAX_RECVS {
            return Err(wrong_group(buffers.len()));
        }
        let comm = &*self.0;
        // By itself, since it is what comes most.
        match buffers {
            [one] => comm.memory.check(one.mr, one.buffer)?,
            several => several.iter().try_for_each(|b| comm.memory.check(b.mr, b.buffer))?,
        }
        comm.state.with(|state| {
            state.core.alive()?;
            match state.start(buffers) {
                Ok(slot) => Ok(slot.map(|i| comm.pool.get(usize::from(i)))),
                Err(e) => Err(state.core.fail(e)),
            }
        })
    }

    /// Makes what has arrived in `buffers` visible to the GPU; `None` where nothing has to be done for that, as for host memory.
    pub fn flush(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Fast<Option<&Tagged<Request>>> {
        for (buffer, mr) in buffers {
            self.0.memory.check(*mr, *buffer)?;
        }
        if self.0.pool.len() == SLOTS {
            return Ok(None);
        }
        let target = flush::target(buffers).filter(|(_, mr)| self.0.flush_host || mr.kind() != MemKind::Host);
        let Some(target) = target else { return Ok(None) };
        self.0.state.with(|state| {
            let State { core, flushes: Some(flushes), pool, .. } = state else { return Ok(None) };
            core.alive()?;
            let Some(index) = flushes.begin(pool)? else { return Ok(None) };
            let posted = flushes.post(core, index, target);
            core.settle(posted)?;
            core.stats.request(None);
            let request = self.0.pool.get(SLOTS + usize::from(index));
            request.begin();
            Ok(Some(request))
        })
    }

    /// Takes leave of the peer.
    pub fn close(self) -> Result<()> {
        self.0
            .state
            .with(|state| {
                state.core.peer.leave();
                Ok(())
            })
            .map_err(|e| *e)
    }
}

impl Receiver {
    pub(super) fn progress(&self, index: usize) -> Fast<()> {
        self.state.with(|state| progress(state, index))
    }
}

impl Progress for State {
    #[inline]
    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The peer has no part in a flush, so that it may be gone.
    fn owed(index: usize) -> Option<&'static str> {
        (index < SLOTS).then_some("receives")
    }

    #[inline]
    fn pending(&self, index: usize) -> bool {
        self.pool.get(index).is_under_way()
    }

    /// Takes what completed on every rail, and posts receives for what was used up.
    fn poll(&mut self) -> Fast<()> {
        self.drain()?;
        self.refill()
    }

    #[inline]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match completion.kind() {
            Kind::Arrived(word) => {
                self.core.rails[rail].arrived();
                self.core.stats.arrived(rail);
                self.arrived(rail, word)
            }
            Kind::Sent => self.sent(rail, completion.wr_id()),
            Kind::Other(_) => Err(unknown(completion)),
        }
    }
}

impl State {
    #[inline]
    fn start<P: NetPlugin<Mr = Mr>>(&mut self, buffers: &[RecvBuffer<'_, P>]) -> Fast<Option<u8>> {
        let slot = self.seq.slot();
        if !self.pool.get(slot.into()).is_free() || !self.ready() && !self.made_ready()? {
            return Ok(self.core.stats.no_room());
        }
        self.slots[usize::from(slot)].begin(buffers.len());
        // The slot is ready for its arrivals before the peer can know of it.
        self.pool.get(slot.into()).begin();
        self.outstanding += 1;
        match buffers {
            [one] => {
                if !one.profiler.is_none() {
                    Profile::receive(&mut self.core, slot, 0, one.profiler);
                }
                let words = self.stage(slot, 0, one, 1);
                self.post_cts(1, Some(&words))?;
            }
            several => self.offer(slot, several)?,
        }
        self.seq = self.seq.next();
        self.core.stats.request(None);
        Ok(Some(slot))
    }

    /// The CTS entries of a group of several.
    #[inline(never)]
    fn offer<P: NetPlugin<Mr = Mr>>(&mut self, slot: u8, buffers: &[RecvBuffer<'_, P>]) -> Fast<()> {
        for (i, b) in buffers.iter().enumerate() {
            if !b.profiler.is_none() {
                Profile::receive(&mut self.core, slot, i, b.profiler);
            }
            self.stage(slot, i, b, buffers.len());
        }
        self.post_cts(buffers.len(), None)
    }

    /// Puts a CTS entry into our memory, where it stays as long as the receive; gives its words.
    #[inline]
    fn stage<P: NetPlugin<Mr = Mr>>(
        &mut self,
        slot: u8,
        index: usize,
        recv: &RecvBuffer<'_, P>,
        count: usize,
    ) -> [u64; CTS_WORDS] {
        let Buffer { addr, len } = recv.buffer;
        self.slots[usize::from(slot)].set_room(index, len);
        let cts = Cts {
            addr: addr as u64,
            size: len as u64,
            rkeys: *recv.mr.map_or(&[0; MAX_RAILS], Mr::rkeys),
            tag: recv.tag,
            count: count as u8,
            index: index as u8,
            seq: self.seq.number(),
        };
        let words = cts.words().map(u64::to_le);
        let start = (RECORDS_BYTES + self.seq.cts_offset(index)) / 8;
        for (place, word) in self.core.region.words()[start..start + CTS_WORDS].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        words
    }

    /// As [`ready`](Self::ready), after a look at what has completed.
    #[cold]
    fn made_ready(&mut self) -> Fast<bool> {
        self.poll()?;
        Ok(self.ready())
    }

    /// Whether there is room for a CTS write, and on each rail a receive for one more slot than there are.
    #[inline]
    fn ready(&self) -> bool {
        let enough = |r: &Rail| r.receives.as_ref().is_some_and(|s| s.posted() > self.outstanding);
        let lane = &self.core.rails[self.cts_rail].lanes[CTS_LANE];
        lane.room() > 0 && self.core.rails.iter().all(enough)
    }

    /// One write carries the entries of the whole group: from where they stay, or in itself where there is `one`.
    #[inline(always)]
    fn post_cts(&mut self, count: usize, one: Option<&[u64; CTS_WORDS]>) -> Fast<()> {
        let offset = self.seq.cts_offset(0);
        let rail = self.cts_rail;
        let Core { rails, region, remote, chain, stats, .. } = &mut self.core;
        let lane = &mut rails[rail].lanes[CTS_LANE];
        let to = Remote { addr: remote.addr + offset as u64, rkey: remote.rkeys[rail] };
        let signalled = lane.uncovered() + 1 >= self.signal_interval;
        let signal = signalled.then(|| lane.signal(Work::Cts, 1));
        chain.clear();
        let fitted = match one {
            Some(words) if lane.inline() >= CTS_BYTES => chain.write_inline(words, to, signal),
            _ => {
                let addr = region.addr((RECORDS_BYTES + offset) / 8) as u64;
                let lkey = region.mrs()[rail].lkey();
                chain.write(Some(Local { addr, len: (count * CTS_BYTES) as u32, lkey }), to, None, signal)
            }
        };
        if !fitted {
            return Err(internal("a CTS write did not fit into its chain"));
        }
        lane.post(chain, signalled)?;
        stats.posted_bare(rail);
        Ok(())
    }

    /// Keeps enough receives posted for every slot that is under way, and one more.
    #[inline]
    fn refill(&mut self) -> Fast<()> {
        let needed = self.outstanding + 1;
        for receives in self.core.rails.iter_mut().filter_map(|r| r.receives.as_mut()) {
            receives.refill(needed)?;
        }
        Ok(())
    }

    /// Takes the completion of a work request of ours.
    fn sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        let on = &mut self.core.rails[rail];
        let known = match Work::of(wr_id) {
            Work::Cts => on.lanes[CTS_LANE].sent(wr_id)?,
            Work::Flush { index } => {
                let known = on.flush.as_mut().map_or(Ok(0), |lane| lane.sent(wr_id))?;
                if let Some(flushes) = &mut self.flushes
                    && flushes.read(rail, index, &self.pool)
                {
                    self.core.stats.done(0, 0);
                }
                known
            }
            other => return Err(internal(&format!("a receiver's queue completed {other:?}"))),
        };
        self.core.stats.completed(rail, known);
        Ok(())
    }

    /// Takes one immediate of the peer.
    #[inline]
    fn arrived(&mut self, rail: usize, word: u32) -> Fast<()> {
        self.judged(rail, word).map_err(|wrong| self.wrong(rail, word, wrong))
    }

    #[inline]
    fn judged(&mut self, rail: usize, word: u32) -> Result<(), Wrong> {
        let imm = self.core.layout.decode(word).ok_or(Wrong::Word)?;
        let request = self.pool.get(imm.slot.into());
        if !request.is_under_way() {
            return Err(Wrong::Idle(imm.slot));
        }
        let slot = &mut self.slots[usize::from(imm.slot)];
        let size = slot.arrived(imm, rail)?;
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
        if let Some(profile) = Profile::at_work(&mut self.core.profile) {
            profile.arrived(imm.slot, rail, size.is_some());
        }
        let Some(size) = size else { return Ok(()) };
        match size.bytes() {
            Some(size) => {
                self.core.stats.done(1, size);
                request.done_one(size);
            }
            None => {
                let record = Record::decode(&read_record(&self.core, imm.slot), slot.rooms());
                let record = record.map_err(|e| Wrong::Record(imm.slot, e))?;
                self.core.stats.done(record.sizes().len(), record.sizes().iter().sum());
                request.done(record.sizes());
            }
        }
        self.outstanding -= 1;
        Ok(())
    }

    #[cold]
    fn wrong(&self, rail: usize, word: u32, wrong: Wrong) -> Box<Error> {
        let peer = self.core.peer.name();
        Error::Protocol(format!("{wrong} (rail {rail}, immediate {word:#010x}, from {peer})")).into()
    }
}

#[cold]
fn unknown(completion: &Completion) -> Box<Error> {
    let (kind, work) = (completion.kind(), Work::of(completion.wr_id()));
    Error::Internal(format!("a receiver's queue completed {kind:?} as {work:?}")).into()
}

#[cold]
fn internal(what: &str) -> Box<Error> {
    Error::Internal(what.into()).into()
}

#[cold]
fn wrong_group(receives: usize) -> Box<Error> {
    Error::Argument(format!("a group of {receives} receives: expected 1 to {MAX_RECVS}")).into()
}
