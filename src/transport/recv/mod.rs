//! The receiving end of a connection.

pub(crate) mod cts_writer;
pub(crate) mod flush;
pub(crate) mod optional;
mod slot;

use std::sync::{Arc, Weak};

use nccl_net_versions::{Buffer, DmaBuf, MemKind, NetPlugin, RecvBuffer, Tagged};

use crate::transport::Settings;
use crate::transport::comm::{Comm, Progress, progress};
use cts_writer::CtsWriter;
use slot::{Slot, Wrong, read_record};

use crate::agent::Subscription;
use crate::error::{Error, Fast, Result};
use crate::housekeeping::Housekeeping;
use crate::proto::{FIFO_BYTES, Imm, MAX_RECVS, RECORDS_BYTES, Record, SLOTS, Sequence};
use crate::transport::lock::StateLock;
use crate::transport::memory::{Mr, Registrar};
use crate::transport::profiler::CommProfiler;
use crate::transport::rail::Rail;
use crate::transport::request::{Pool, Request};
use crate::transport::work::Work;
use crate::verbs::{Completion, Kind};
use flush::{FLUSHES, Flushes, SINK_BYTES};

/// Bytes of a receiver's control memory: the records that the sender writes into, CTS entries to send from, and what a
/// flush reads into.
pub(crate) const MEMORY_BYTES: usize = SINK + SINK_BYTES;
pub(crate) const SINK: usize = RECORDS_BYTES + FIFO_BYTES;

/// A receiving comm.
#[derive(Debug)]
pub struct RecvComm(Arc<Receiver>);

/// What the comm and its requests share.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// By slot, then those of the flushes, where there are any.
    pool: Pool,
    memory: Registrar,
    /// With `MPIB_FLUSH=1`: host memory is flushed as well.
    flush_host: bool,
    /// The agent knows the connection as long as it lives. Its hints are the sender's affair.
    _flow: Option<Subscription>,
    /// Runs [`look_after`](Self::look_after).
    housekeeping: Arc<Housekeeping>,
    // NCCL's progress thread takes it, registration does not, and the watch only where no call is seen.
    state: StateLock<RecvState>,
}

#[derive(Debug)]
pub(crate) struct RecvState {
    pub(crate) comm: Comm,
    pub(crate) cts: CtsWriter,
    pub(crate) pool: Pool,
    /// By slot; a request is its slot.
    pub(crate) slots: Box<[Slot; SLOTS]>,
    /// Slots whose data has not come.
    pub(crate) outstanding: usize,
    /// What was offered and had not come when the watch looked last: see [`early`].
    pub(crate) looked: Option<(Sequence, usize)>,
    /// Where GPU memory can be registered, or `MPIB_FLUSH=1` wants it.
    flushes: Option<Flushes>,
}

impl RecvComm {
    pub(crate) fn new(mut comm: Comm, settings: &Settings, flow: Option<Subscription>) -> Self {
        let config = &settings.config;
        comm.profiler = CommProfiler::of_receives(settings, &comm);
        let cts = CtsWriter::new(&comm, config);
        let receiver = Arc::new_cyclic(|me: &Weak<Receiver>| {
            let flushes = flush::possible(&comm.rails);
            let pool = Pool::of_receiver(me, SLOTS + if flushes { FLUSHES } else { 0 });
            Receiver {
                pool: pool.clone(),
                memory: Registrar::new(comm.nics(), config),
                flush_host: config.flush == Some(true),
                _flow: flow,
                housekeeping: Arc::clone(&settings.process.housekeeping),
                state: StateLock::new(RecvState {
                    flushes: flushes.then(|| Flushes::new(SINK / 8, &comm.rails)),
                    comm,
                    cts,
                    pool,
                    slots: Box::new([Slot::EMPTY; SLOTS]),
                    outstanding: 0,
                    looked: None,
                }),
            }
        });
        settings.process.housekeeping.add(optional::JOB, optional::job(&receiver));
        Self(receiver)
    }

    /// Registers memory for this comm's receives.
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.0.memory.register(buffer, kind, dmabuf)
    }

    /// Offers a group of 1 to 8 buffers to the sender; `None` where 256 groups are under way. `OPTIONAL`: NCCL does not need to know
    /// when the data of a single buffer is there.
    // Compiled for each, so that the others pay nothing for optional ones.
    #[inline]
    pub fn receive<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<&Tagged<Request>>> {
        let inner = &*self.0;
        match buffers {
            // By itself and first, since it is what comes most.
            [one] => inner.memory.check(one.mr, one.buffer)?,
            wrong if wrong.is_empty() || wrong.len() > MAX_RECVS => return Err(wrong_group(wrong.len())),
            several => several.iter().try_for_each(|b| inner.memory.check(b.mr, b.buffer))?,
        }
        inner.with(|state| {
            state.comm.alive()?;
            let slot = state.cts.next().slot();
            let request = inner.pool.get(slot.into());
            match state.start::<P, OPTIONAL>(slot, request, buffers) {
                Ok(taken) => Ok(taken.then_some(request)),
                Err(e) => Err(state.comm.fail(e)),
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
        self.0.with(|state| {
            let RecvState { comm, flushes: Some(flushes), pool, .. } = state else { return Ok(None) };
            comm.alive()?;
            let Some(index) = flushes.begin(pool)? else { return Ok(None) };
            let posted = flushes.post(comm, index, target);
            comm.settle(posted)?;
            comm.stats.request(None);
            let request = self.0.pool.get(SLOTS + usize::from(index));
            request.begin();
            Ok(Some(request))
        })
    }

    /// Takes leave of the peer.
    pub fn close(self) -> Result<()> {
        self.0.housekeeping.remove(&self.0);
        let leave = |state: &mut RecvState| {
            state.last_arrivals();
            state.comm.peer.leave();
            Ok(())
        };
        self.0.state.with(leave).map_err(|e| *e)
    }
}

impl Receiver {
    /// What `f` makes of the state. Where the comm has failed, no request is done that waits for data.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut RecvState) -> Fast<R>) -> Fast<R> {
        self.state.with(|state| f(state).inspect_err(|_| state.revoke()))
    }

    pub(crate) fn progress(&self, index: usize) -> Fast<()> {
        self.with(|state| progress(state, index))
    }

    /// Does what calls would do, where none come and data is owed to optional receives. `None` where somebody has the state.
    pub(crate) fn look_after(&self) -> Option<Fast<()>> {
        self.state.try_with(|state| state.look_after().inspect_err(|_| state.revoke()))
    }
}

impl Progress for RecvState {
    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
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
                self.comm.rails[rail].arrived();
                self.comm.stats.arrived(rail);
                self.arrived(rail, word)
            }
            Kind::Sent => self.sent(rail, completion.wr_id()),
            Kind::Other(_) => Err(unknown(completion)),
        }
    }
}

impl RecvState {
    /// `slot` is the next one, and `request` its request. `false` where there is no room.
    #[inline]
    fn start<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        slot: u8,
        request: &Request,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<bool> {
        let early = OPTIONAL && self.may_be_early(buffers.len())?;
        let ready = request.is_free() && self.ready();
        if !ready && !self.made_ready(request)? {
            self.comm.stats.no_room::<()>();
            return Ok(false);
        }
        let place = &mut self.slots[usize::from(slot)];
        place.begin(buffers.len());
        // The slot is ready for its arrivals before the peer can know of it.
        request.begin();
        self.outstanding += 1;
        // NCCL's own event is over before the data of an early one comes.
        self.cts.post(&mut self.comm, place, buffers, !early)?;
        self.comm.stats.request(None);
        if early {
            request.done_early();
        }
        Ok(true)
    }

    /// Whether the request has come free and all is [`ready`](Self::ready), after a look at what has completed.
    #[cold]
    fn made_ready(&mut self, request: &Request) -> Fast<bool> {
        self.poll()?;
        Ok(request.is_free() && self.ready())
    }

    /// Whether there is room for a CTS write, and on each rail a receive for one more slot than there are.
    #[inline]
    fn ready(&self) -> bool {
        let enough = |r: &Rail| r.receives.as_ref().is_some_and(|s| s.posted() > self.outstanding);
        self.cts.has_room(&self.comm) && self.comm.rails.iter().all(enough)
    }

    /// Keeps enough receives posted for every slot that is under way, and one more.
    #[inline]
    fn refill(&mut self) -> Fast<()> {
        let needed = self.outstanding + 1;
        for receives in self.comm.rails.iter_mut().filter_map(|r| r.receives.as_mut()) {
            receives.refill(needed)?;
        }
        Ok(())
    }

    /// Takes the completion of a work request of ours.
    fn sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        let on = &mut self.comm.rails[rail];
        let known = match Work::of(wr_id) {
            Work::Cts => on.send_queues[cts_writer::CTS_QUEUE].sent(wr_id)?,
            Work::Flush { index } => {
                let known = on.flush.as_mut().map_or(Ok(0), |queue| queue.sent(wr_id))?;
                if let Some(flushes) = &mut self.flushes
                    && flushes.read(rail, index, &self.pool)
                {
                    self.comm.stats.done(0, 0);
                }
                known
            }
            other => return Err(internal(&format!("a receiver's queue completed {other:?}"))),
        };
        self.comm.stats.completed(rail, known);
        Ok(())
    }

    /// Takes one immediate of the peer.
    #[inline]
    fn arrived(&mut self, rail: usize, word: u32) -> Fast<()> {
        self.judged(rail, word).map_err(|wrong| self.wrong(rail, word, wrong))
    }

    #[inline]
    fn judged(&mut self, rail: usize, word: u32) -> Result<(), Wrong> {
        let imm = self.comm.layout.decode(word).ok_or(Wrong::Word)?;
        match self.pool.get(imm.slot.into()).is_under_way() {
            true => self.took::<false>(imm, rail),
            false => self.took::<true>(imm, rail),
        }
    }

    /// `EARLY`: its request is not under way.
    #[inline(always)]
    fn took<const EARLY: bool>(&mut self, imm: Imm, rail: usize) -> Result<(), Wrong> {
        let request = self.pool.get(imm.slot.into());
        if EARLY && !request.is_owed() {
            return Err(Wrong::Idle(imm.slot));
        }
        let slot = &mut self.slots[usize::from(imm.slot)];
        let size = slot.arrived(imm, rail)?;
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
        if let Some(profiler) = CommProfiler::at_work(&mut self.comm.profiler) {
            profiler.arrived(imm.slot, rail, size.is_some());
        }
        let Some(size) = size else { return Ok(()) };
        match size.bytes() {
            Some(size) => {
                self.comm.stats.done(1, size);
                if EARLY { request.settle(size) } else { request.done_one(size) }
            }
            None => {
                let record = Record::decode(&read_record(&self.comm, imm.slot), slot.rooms());
                let record = record.map_err(|e| Wrong::Record(imm.slot, e))?;
                let bytes = record.sizes().iter().sum();
                self.comm.stats.done(record.sizes().len(), bytes);
                if EARLY { request.settle(bytes) } else { request.done(record.sizes()) }
            }
        }
        self.outstanding -= 1;
        Ok(())
    }

    #[cold]
    fn wrong(&self, rail: usize, word: u32, wrong: Wrong) -> Box<Error> {
        let peer = self.comm.peer.name();
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
