//! The receiving end of a connection.

mod arrivals;
pub(crate) mod cts_writer;
pub(crate) mod flush;
#[cfg(any(test, feature = "simulation"))]
mod model_tests;
mod offer;
pub(crate) mod receives;
mod recovery;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nccl_net_versions::{Buffer, MemKind, NetPlugin, RecvBuffer};

use crate::agent::Subscription;
use crate::config::Config;
use crate::error::{Error, Fast, Result};
use crate::failover;
use crate::grace::Grace;
use crate::housekeeping::{Housekeeping, Idleness, Job, JobId, Urgency, job, log_failure};
use crate::proto::{FIFO_BYTES, MAX_RECVS, RECORDS_BYTES, RailSet, SCRATCH, SCRATCH_BYTES, SLOTS, Sequence};
use crate::state_lock::{Entered, StateLock};
use crate::transport::comm::Comm;
use crate::transport::failover::Running;
use crate::transport::memory::{LivingMrs, Mr, Registrar};
use crate::transport::profiler::RECEIVES;
use crate::transport::progress::{Progress, progress};
use crate::transport::request::Cells;
use crate::transport::{Settings, Unusual};

use arrivals::Promises;
use cts_writer::CtsWriter;
use flush::{FLUSHES, Flushes, SINK_BYTES};
#[cfg(any(test, feature = "simulation"))]
pub use model_tests::simulated;
use recovery::KeyRenewal;
use window::Slot;

/// Offset of the bytes of control memory that flushes read into. They are scratch memory.
pub(crate) const SINK: usize = SCRATCH;

// The completion records that the sender writes, and the CTS entries to send from.
const _: () = assert!(RECORDS_BYTES + FIFO_BYTES == SCRATCH && SINK_BYTES <= SCRATCH_BYTES);

#[derive(Debug)]
pub(crate) struct RecvState {
    pub(crate) comm: Comm,
    pub(crate) cts: CtsWriter,
    /// By slot: the index of a receive's request is its slot.
    pub(crate) cells: Cells<SLOTS>,
    /// By slot.
    pub(crate) slots: Box<[Slot; SLOTS]>,
    /// Slots whose data is outstanding.
    pub(crate) outstanding: usize,
    /// Of these, the slots whose request has completed ahead of the data.
    pub(crate) ahead: usize,
    /// Groups that may be posted before [`ready`](Self::ready) has to look again.
    credit: usize,
    /// By next sequence number and outstanding slots: see [`optional`].
    pub(crate) idleness: Idleness<(Sequence, usize)>,
    recovery: failover::Receiver,
    /// The episode in progress.
    episode: Option<Running>,
    renewal: KeyRenewal,
    memory: Arc<LivingMrs>,
    /// No rail carries CTS writes. The entries from this group on are written when one does.
    unwritten: Option<Sequence>,
    /// When a sender's completed data that has not arrived counts as lost, in an episode.
    patience: Option<Instant>,
    promises: Promises,
    /// Present if GPU memory can be registered, or with `MPIB_FLUSH=1`, also if adapters cannot
    /// flush.
    flushes: Option<Flushes>,
}

/// A request of a receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    /// The receive in a slot.
    Receive(u8),
    /// The flush with an index.
    Flush(u8),
}

impl RecvState {
    fn new(
        comm: Comm,
        config: &Config,
        cells: Cells<SLOTS>,
        flushes: Option<Flushes>,
        memory: Arc<LivingMrs>,
    ) -> Self {
        Self {
            cts: CtsWriter::new(&comm),
            recovery: failover::Receiver::new(RailSet::from_bits(comm.layout.all_rails()))
                .without(RailSet::from_bits(comm.failures.noticed())),
            comm,
            cells,
            slots: Box::new([Slot::EMPTY; SLOTS]),
            outstanding: 0,
            ahead: 0,
            credit: 0,
            idleness: Idleness::UNKNOWN,
            episode: None,
            renewal: KeyRenewal::default(),
            memory,
            unwritten: None,
            patience: None,
            promises: Promises::new(config),
            flushes,
        }
    }

    #[cold]
    fn fail(&mut self, e: Box<Error>) -> Box<Error> {
        let e = self.comm.fail(e);
        self.revoke();
        e
    }

    /// Starts a group on a comm that is marked.
    #[cold]
    fn start_marked<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        self.poll_marked()?;
        self.look_closer()?;
        if self.blocks_offers() {
            if !self.may_have_lost() {
                self.comm.check_peer("receives")?;
            }
            return Ok(self.comm.stats.no_room());
        }
        self.start::<P, OPTIONAL>(buffers)
    }

    /// Starts a group of any kind. Returns `None` if there is no room.
    #[inline(never)]
    fn start<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &mut self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        self.try_cts_home();
        let slot = self.cts.next().slot();
        let ahead = OPTIONAL && self.may_complete_ahead(buffers.len())?;
        let ready = self.cells.get(slot).is_free() && self.ready()?;
        if !ready && !self.made_ready(slot)? {
            return Ok(self.comm.stats.no_room());
        }
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        place.begin(buffers.len());
        // The slot must be ready before the peer learns of it.
        self.cells.get(slot).begin();
        self.outstanding += 1;
        self.credit -= 1;
        // A receive that completes ahead of its data has no profiler events: NCCL's own event ends
        // first.
        if let Err(e) = self.cts.post(&mut self.comm, place, buffers, !ahead) {
            self.comm.not_posted(self.cts.rail(), e)?;
        }
        self.comm.stats.request(None);
        if ahead {
            self.complete_ahead(slot);
        }
        Ok(Some(slot))
    }

    /// Polls, and returns whether the request is free and everything is [`ready`](Self::ready) now.
    #[cold]
    fn made_ready(&mut self, slot: u8) -> Fast<bool> {
        self.poll()?;
        Ok(self.cells.get(slot).is_free() && self.ready()?)
    }

    /// Replaces consumed receives if few are left. Returns whether a CTS write fits, and each rail
    /// has a receive for every outstanding slot and one more.
    fn ready(&mut self) -> Fast<bool> {
        self.credit = usize::MAX;
        let mut failed = None;
        for (i, rail) in self.comm.rails.iter_mut().enumerate().filter(|(_, rail)| rail.is_alive()) {
            if let Err(e) = rail.refill(self.outstanding) {
                failed = Some((i, e));
                continue;
            }
            let credit = rail.receives.as_ref().map_or(0, |receives| receives.credit(self.outstanding));
            self.credit = self.credit.min(credit);
        }
        if let Some((rail, e)) = failed {
            self.comm.not_posted(rail, e)?;
        }
        Ok(self.credit > 0 && self.cts.has_room(&self.comm))
    }

    /// Returns an error if data in one of `buffers` has come over a rail that cannot flush.
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
            // The newest group of those that a slot still describes.
            let newest_first = self.cts.next().predecessors();
            let slot = newest_first
                .map(|seq| &self.slots[usize::from(seq.slot()) % SLOTS])
                .find(|slot| slot.is_into(buffer.addr));
            flushes.check(&self.comm.rails, slot.map(Slot::carriers))?;
        }
        Ok(())
    }
}

/// The part of a receiving comm that its requests refer to.
#[derive(Debug)]
pub(crate) struct Receiver {
    cells: Cells<SLOTS>,
    /// Those of flushes. `None` if the comm cannot flush.
    flush_cells: Option<Cells<FLUSHES>>,
    memory: Registrar,
    /// Flushes also read host memory: `MPIB_FLUSH=1`.
    flush_host: bool,
    /// Keeps the connection registered with the agent. Only the sender uses its hints.
    _flow: Option<Subscription>,
    /// Polls this receiver while NCCL makes no call.
    housekeeping: Arc<Housekeeping>,
    job: JobId,
    closing: Arc<Grace>,
    /// Whether the last pass of housekeeping has left news to NCCL.
    urgency: Urgency,
    // Locked by NCCL's progress thread, and by housekeeping. Registration does not need it.
    state: StateLock<RecvState>,
}

impl Receiver {
    pub(crate) fn new(mut comm: Comm, settings: &Settings, flow: Option<Subscription>) -> Arc<Self> {
        let config = &settings.config;
        comm.start_profiling(settings, RECEIVES);
        let cells = Cells::new();
        let flush_cells = flush::possible(&comm.rails).then(Cells::new);
        let flushes = flush_cells.clone().map(|cells| Flushes::new(cells, SINK / 8, &comm.rails));
        let memory = Registrar::new(comm.nics(), config);
        let living = memory.living();
        let receiver = Arc::new(Self {
            cells: cells.clone(),
            flush_cells,
            memory,
            flush_host: config.flush == Some(true),
            _flow: flow,
            housekeeping: Arc::clone(&settings.process.housekeeping),
            closing: Arc::clone(&settings.process.closing),
            job: comm.watch().job(),
            urgency: Urgency::default(),
            state: StateLock::new(RecvState::new(comm, config, cells, flushes, living)),
        });
        settings.process.housekeeping.add(receiver.job, JOB, job(&receiver));
        receiver
    }

    pub(crate) fn cells(&self) -> &Cells<SLOTS> {
        &self.cells
    }

    /// Returns the states of flushes. `None` if the comm cannot flush.
    pub(crate) fn flush_cells(&self) -> Option<Cells<FLUSHES>> {
        self.flush_cells.clone()
    }

    pub(crate) fn memory(&self) -> &Registrar {
        &self.memory
    }

    /// Starts a group of receives, and returns the index of its request.
    #[inline(always)]
    pub(crate) fn receive<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        match buffers {
            // The usual case first.
            [one] => self.memory.check(one.mr, one.buffer)?,
            wrong if wrong.is_empty() || wrong.len() > MAX_RECVS => return Err(wrong_group(wrong.len())),
            several => several.iter().try_for_each(|b| self.memory.check(b.mr, b.buffer))?,
        }
        let mut state = self.state.enter()?;
        let started = match state.comm.is_marked() {
            false => state.start_single::<P, OPTIONAL>(buffers),
            true => Err(Unusual::Marked),
        };
        match started {
            Ok(slot) => state.leave(Ok(Some(slot))),
            Err(why) => match buffers {
                // A copy: the usual receive then stays in registers.
                [one] => Self::receive_unusual::<P, OPTIONAL>(state, why, &[RecvBuffer { ..*one }]),
                several => Self::receive_unusual::<P, OPTIONAL>(state, why, several),
            },
        }
    }

    /// Starts a group that cannot take the short path of [`single`](super::single).
    #[inline(never)]
    fn receive_unusual<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        mut state: Entered<'_, RecvState>,
        why: Unusual,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        let slot = match why {
            Unusual::General => state.start::<P, OPTIONAL>(buffers),
            Unusual::Marked => state.start_marked::<P, OPTIONAL>(buffers),
            Unusual::NotPosted(slot, e) => {
                let rail = state.cts.rail();
                let failed = state.comm.not_posted(rail, e);
                if OPTIONAL && failed.is_ok() {
                    state.complete_ahead(slot);
                }
                failed.map(|()| Some(slot))
            }
        };
        let slot = slot.map_err(|e| state.fail(e));
        state.leave(slot)
    }

    /// Starts a flush, and returns the index of its request.
    pub(crate) fn flush(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Fast<Option<u8>> {
        for (buffer, mr) in buffers {
            self.memory.check_start(*mr, *buffer)?;
        }
        if self.flush_cells.is_none() {
            return Ok(None);
        }
        let target = flush::target(buffers).filter(|(_, mr)| self.flush_host || mr.kind() != MemKind::Host);
        let Some(target) = target else { return Ok(None) };
        self.with(|state| {
            if state.comm.is_marked() {
                state.look_closer()?;
            }
            state.check_flushable(buffers)?;
            let RecvState { comm, flushes: Some(flushes), .. } = state else { return Ok(None) };
            let Some(index) = flushes.begin()? else { return Ok(None) };
            let posted = flushes.post(comm, index, target);
            comm.fail_on_error(posted)?;
            comm.stats.request(None);
            flushes.posted(index);
            Ok(Some(index))
        })
    }

    /// Sends BYE to the peer.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.housekeeping.remove(self.job);
        let close = |state: &mut RecvState| {
            state.await_outstanding_data(&self.closing);
            state.comm.peer.close();
            Ok(())
        };
        self.state.with(close).map_err(|e| *e)
    }

    #[inline(always)]
    pub(crate) fn progress(&self, index: u8) -> Fast<()> {
        let mut state = self.state.enter()?;
        match progress(&mut *state, Operation::Receive(index)) {
            Ok(()) => state.leave(Ok(())),
            Err(e) => Self::failed(state, e),
        }
    }

    #[cold]
    fn failed(state: Entered<'_, RecvState>, e: Box<Error>) -> Fast<()> {
        state.revoke();
        state.leave(Err(e))
    }

    pub(crate) fn progress_flush(&self, index: u8) -> Fast<()> {
        self.with(|state| progress(state, Operation::Flush(index)))
    }

    /// Runs `f` on the state. If the comm has failed, also revokes completions ahead of data.
    fn with<R>(&self, f: impl FnOnce(&mut RecvState) -> Fast<R>) -> Fast<R> {
        self.state.with(|state| f(state).inspect_err(|_| state.revoke()))
    }
}

/// The name of the receivers' job.
const JOB: &str = "receiving";

/// Polls a receiver that NCCL is not calling but that has optional receives outstanding. An error
/// fails the connection.
impl Job for Receiver {
    fn run(&self) -> Result<()> {
        self.urgency.set(false);
        let polled = self.state.try_with(|state| {
            let polled = state.poll_idle().inspect_err(|_| state.revoke());
            self.urgency.set(state.comm.has_news());
            log_failure(JOB, &polled);
            Ok(())
        });
        polled.unwrap_or(Ok(())).map_err(|e| *e)
    }

    fn interval(&self) -> Duration {
        self.urgency.interval()
    }
}

#[cold]
fn wrong_group(receives: usize) -> Box<Error> {
    Error::Argument(format!("a group of {receives} receives: expected 1 to {MAX_RECVS}")).into()
}
