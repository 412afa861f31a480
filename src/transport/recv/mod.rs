//! The receiving end of a connection.

pub(crate) mod cts_writer;
pub(crate) mod flush;
pub(crate) mod optional;
mod profiling;
pub(crate) mod receives;
mod slot;

use std::sync::{Arc, Weak};

use nccl_net_versions::{Buffer, DmaBuf, MemKind, NetPlugin, RecvBuffer, Tagged};

use crate::transport::Settings;
use crate::transport::comm::{Comm, Progress, progress};
use cts_writer::CtsWriter;
use slot::{ArrivalError, Slot, read_record};

use crate::agent::Subscription;
use crate::error::{Error, Fast, Result};
use crate::housekeeping::{Housekeeping, Job};
use crate::proto::{FIFO_BYTES, Imm, MAX_RECVS, RECORDS_BYTES, Record, SLOTS, Sequence};
use crate::transport::lock::StateLock;
use crate::transport::memory::{Mr, Registrar};
use crate::transport::profiler::CommProfiler;
use crate::transport::rail::Rail;
use crate::transport::request::{Owner, Pool, Request};
use crate::transport::work::Work;
use crate::verbs::{Completion, Kind};
use flush::{FLUSHES, Flushes, SINK_BYTES};

/// Bytes of a receiver's control memory: the completion records that the sender writes, the CTS
/// entries to send from, and the bytes that flushes read into.
pub(crate) const MEMORY_BYTES: usize = SINK + SINK_BYTES;
pub(crate) const SINK: usize = RECORDS_BYTES + FIFO_BYTES;

/// A receiving comm.
#[derive(Debug)]
pub struct RecvComm(Arc<Receiver>);

/// The part of a receiving comm that its requests refer to.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// By slot, then the requests of flushes, if the comm can flush.
    pool: Pool,
    memory: Registrar,
    /// Flushes also read host memory: `MPIB_FLUSH=1`.
    flush_host: bool,
    /// Keeps the connection registered with the agent. Only the sender uses its hints.
    _flow: Option<Subscription>,
    /// Polls this receiver while NCCL makes no call.
    housekeeping: Arc<Housekeeping>,
    // Locked by NCCL's progress thread, and by housekeeping. Registration does not need it.
    state: StateLock<RecvState>,
}

#[derive(Debug)]
pub(crate) struct RecvState {
    pub(crate) comm: Comm,
    pub(crate) cts: CtsWriter,
    pub(crate) pool: Pool,
    /// By slot. The index of a receive's request is its slot.
    pub(crate) slots: Box<[Slot; SLOTS]>,
    /// Slots whose data is outstanding.
    pub(crate) outstanding: usize,
    /// Next sequence number and outstanding slots at the last pass of housekeeping: see
    /// [`optional`].
    pub(crate) idle_mark: Option<(Sequence, usize)>,
    /// Present if GPU memory can be registered, or with `MPIB_FLUSH=1`, also if adapters cannot
    /// flush.
    flushes: Option<Flushes>,
}

impl RecvComm {
    pub(crate) fn new(mut comm: Comm, settings: &Settings, flow: Option<Subscription>) -> Self {
        let config = &settings.config;
        comm.start_profiling(settings, profiling::RECEIVES);
        let cts = CtsWriter::new(&comm, config);
        let receiver = Arc::new_cyclic(|me: &Weak<Receiver>| {
            let flushes = flush::possible(&comm.rails);
            let pool = Pool::new(me, SLOTS + if flushes { FLUSHES } else { 0 });
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
                    idle_mark: None,
                }),
            }
        });
        settings.process.housekeeping.add(JOB, job(&receiver));
        Self(receiver)
    }

    /// Registers memory for this comm's receives.
    pub fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        self.0.memory.register(buffer, kind, dmabuf)
    }

    /// Offers a group of 1 to 8 buffers to the sender. Returns `None` while 256 groups are in
    /// flight. `OPTIONAL`: NCCL does not need the completion of a single buffer.
    // Compiled for both cases: ordinary receives pay nothing for optional ones.
    #[inline]
    pub fn receive<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<&Tagged<Request>>> {
        let inner = &*self.0;
        match buffers {
            // The usual case first.
            [one] => inner.memory.check(one.mr, one.buffer)?,
            wrong if wrong.is_empty() || wrong.len() > MAX_RECVS => return Err(wrong_group(wrong.len())),
            several => several.iter().try_for_each(|b| inner.memory.check(b.mr, b.buffer))?,
        }
        inner.with(|state| {
            state.comm.check_usable()?;
            let slot = state.cts.next().slot();
            let request = inner.pool.get(slot.into());
            match state.start::<P, OPTIONAL>(slot, request, buffers) {
                Ok(taken) => Ok(taken.then_some(request)),
                Err(e) => Err(state.comm.fail(e)),
            }
        })
    }

    /// Makes arrived data in `buffers` visible to the GPU. Returns `None` if nothing has to be
    /// done, as for host memory.
    pub fn flush(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Fast<Option<&Tagged<Request>>> {
        for (buffer, mr) in buffers {
            self.0.memory.check_start(*mr, *buffer)?;
        }
        if self.0.pool.len() == SLOTS {
            return Ok(None);
        }
        let target = flush::target(buffers).filter(|(_, mr)| self.0.flush_host || mr.kind() != MemKind::Host);
        let Some(target) = target else { return Ok(None) };
        self.0.with(|state| {
            state.comm.check_usable()?;
            state.check_flushable(buffers)?;
            let RecvState { comm, flushes: Some(flushes), pool, .. } = state else { return Ok(None) };
            let Some(index) = flushes.begin(pool)? else { return Ok(None) };
            let posted = flushes.post(comm, index, target);
            comm.fail_on_error(posted)?;
            comm.stats.request(None);
            let request = self.0.pool.get(SLOTS + usize::from(index));
            request.cell().begin();
            Ok(Some(request))
        })
    }

    /// Sends BYE to the peer.
    pub fn close(self) -> Result<()> {
        self.0.housekeeping.remove(&self.0);
        let close = |state: &mut RecvState| {
            state.await_outstanding_data();
            state.comm.peer.close();
            Ok(())
        };
        self.0.state.with(close).map_err(|e| *e)
    }
}

impl Receiver {
    /// Runs `f` on the state. If the comm has failed, also revokes completions ahead of data.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut RecvState) -> Fast<R>) -> Fast<R> {
        self.state.with(|state| f(state).inspect_err(|_| state.revoke()))
    }

    /// Runs one pass of housekeeping for optional receives. Returns `None` if a call holds the
    /// state.
    pub(crate) fn poll_idle(&self) -> Option<Fast<()>> {
        self.state.try_with(|state| state.poll_idle().inspect_err(|_| state.revoke()))
    }
}

impl Owner for Receiver {
    fn progress(&self, index: usize) -> Fast<()> {
        self.with(|state| progress(state, index))
    }

    fn operation(&self, index: usize) -> &'static str {
        if index < SLOTS { "receive" } else { "flush" }
    }
}

/// The name of the receivers' job.
const JOB: &str = "receiving";

/// Returns a receiver as a job of the process.
fn job(receiver: &Arc<Receiver>) -> Weak<dyn Job> {
    let job: Arc<dyn Job> = Arc::<Receiver>::clone(receiver);
    Arc::downgrade(&job)
}

/// Polls a receiver that NCCL is not calling but that has optional receives outstanding. An error
/// fails the connection.
impl Job for Receiver {
    fn run(&self) -> Result<()> {
        self.poll_idle().unwrap_or(Ok(())).map_err(|e| *e)
    }
}

impl Progress for RecvState {
    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
    }

    /// A flush does not involve the peer, so a dead peer does not fail it.
    fn outstanding(index: usize) -> Option<&'static str> {
        (index < SLOTS).then_some("receives")
    }

    #[inline]
    fn pending(&self, index: usize) -> bool {
        self.pool.cell(index).is_in_flight()
    }

    /// Polls every CQ, then replaces consumed receives.
    fn poll(&mut self) -> Fast<()> {
        self.drain()?;
        self.refill()
    }

    #[inline]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match completion.kind() {
            Kind::Arrived(word) => {
                self.comm.stats.arrived(rail);
                match self.comm.rails[rail].arrived(completion, word as u8) {
                    true => self.arrived(rail, word),
                    false => Err(self.protocol_error(rail, word, ArrivalError::Queue(word as u8))),
                }
            }
            Kind::Sent => self.sent(rail, completion.wr_id()),
            Kind::Other(_) => Err(unknown(completion)),
        }
    }
}

impl RecvState {
    /// Starts a group in `slot`, the next one. Returns `false` if there is no room.
    #[inline]
    fn start<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        slot: u8,
        request: &Request,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<bool> {
        let ahead = OPTIONAL && self.may_complete_ahead(buffers.len())?;
        let ready = request.cell().is_free() && self.ready();
        if !ready && !self.made_ready(request)? {
            self.comm.stats.no_room::<()>();
            return Ok(false);
        }
        let place = &mut self.slots[usize::from(slot)];
        place.begin(buffers.len());
        // The slot must be ready before the peer learns of it.
        request.cell().begin();
        self.outstanding += 1;
        // A receive that completes ahead of its data has no profiler events: NCCL's own event ends
        // first.
        self.cts.post(&mut self.comm, place, buffers, !ahead)?;
        self.comm.stats.request(None);
        if ahead {
            request.cell().complete_ahead();
        }
        Ok(true)
    }

    /// Polls, and returns whether the request is free and everything is [`ready`](Self::ready) now.
    #[cold]
    fn made_ready(&mut self, request: &Request) -> Fast<bool> {
        self.poll()?;
        Ok(request.cell().is_free() && self.ready())
    }

    /// Returns whether a CTS write fits, and each rail has receives for every outstanding slot and
    /// one more.
    #[inline]
    fn ready(&self) -> bool {
        let enough = |r: &Rail| r.receives.as_ref().is_some_and(|s| s.suffice(self.outstanding));
        self.cts.has_room(&self.comm) && self.comm.rails.iter().all(enough)
    }

    /// Keeps receives posted for every outstanding slot and one more.
    #[inline]
    fn refill(&mut self) -> Fast<()> {
        self.comm.rails.iter_mut().try_for_each(|rail| rail.refill(self.outstanding))
    }

    /// Returns an error if data in one of `buffers` has come over a rail that cannot flush.
    #[inline]
    fn check_flushable(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Fast<()> {
        match &self.flushes {
            Some(flushes) if flushes.may_lack() => Ok(self.check_carriers(flushes, buffers)?),
            _ => Ok(()),
        }
    }

    #[cold]
    fn check_carriers(&self, flushes: &Flushes, buffers: &[(Buffer, Option<&Mr>)]) -> Result<()> {
        // Also those that seem empty: a size may belong to another buffer of the group.
        let registered = buffers.iter().filter(|(_, mr)| mr.is_some());
        for (buffer, _) in registered {
            let slot = self.cts.latest_into(&self.comm, buffer.addr).map(Sequence::slot);
            let carriers = slot.map(|slot| self.slots[usize::from(slot)].carriers());
            flushes.check(&self.comm.rails, carriers)?;
        }
        Ok(())
    }

    /// Handles the completion of one of this end's work requests.
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

    /// Handles an immediate from the peer.
    #[inline]
    fn arrived(&mut self, rail: usize, word: u32) -> Fast<()> {
        self.check_arrival(rail, word).map_err(|e| self.protocol_error(rail, word, e))
    }

    #[inline]
    fn check_arrival(&mut self, rail: usize, word: u32) -> Result<(), ArrivalError> {
        let imm = self.comm.layout.decode(word).ok_or(ArrivalError::Word)?;
        match self.pool.cell(imm.slot.into()).is_in_flight() {
            true => self.apply_arrival::<false>(imm, rail),
            false => self.apply_arrival::<true>(imm, rail),
        }
    }

    /// `AHEAD`: the request is not in flight, so it must have completed ahead of its data.
    #[inline(always)]
    fn apply_arrival<const AHEAD: bool>(&mut self, imm: Imm, rail: usize) -> Result<(), ArrivalError> {
        let request = self.pool.cell(imm.slot.into());
        if AHEAD && !request.awaits_data() {
            return Err(ArrivalError::Idle(imm.slot));
        }
        let slot = &mut self.slots[usize::from(imm.slot)];
        let size = slot.arrived(imm, rail)?;
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
        if let Some(profiler) = CommProfiler::active(&mut self.comm.profiler) {
            profiling::arrived(profiler, imm.slot, rail, size.is_some());
        }
        let Some(size) = size else { return Ok(()) };
        match size.bytes() {
            Some(size) => {
                self.comm.stats.done(1, size);
                if AHEAD { request.data_arrived(size) } else { request.complete_one(size) }
            }
            None => {
                let record = Record::decode(&read_record(&self.comm, imm.slot), slot.rooms());
                let record = record.map_err(|e| ArrivalError::Record(imm.slot, e))?;
                let bytes = record.sizes().iter().sum();
                self.comm.stats.done(record.sizes().len(), bytes);
                if AHEAD { request.data_arrived(bytes) } else { request.complete(record.sizes()) }
            }
        }
        self.outstanding -= 1;
        Ok(())
    }

    #[cold]
    fn protocol_error(&self, rail: usize, word: u32, wrong: ArrivalError) -> Box<Error> {
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
