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

use mpib_proto::{FIFO_BYTES, MAX_RECVS, RECORDS_BYTES, SCRATCH, SCRATCH_BYTES, SLOTS};
use nccl_net_versions::{Buffer, MemKind, NetPlugin, RecvBuffer};

use crate::agent::Subscription;
use crate::config::Config;
use crate::error::{Error, Fast, Result};
use crate::failover;
use crate::grace::Grace;
use crate::housekeeping::{Housekeeping, Job, JobId, Pace, PaceCell, job, log_failure};
use crate::state_lock::{Entered, StateLock};
use crate::transport::comm::Comm;
use crate::transport::memory::{LivingMrs, Mr, Registrar};
use crate::transport::profiler::RECEIVES;
use crate::transport::progress::{Progress, progress};
use crate::transport::request::Cells;
use crate::transport::{Settings, Unusual};

use arrivals::IncompleteTimer;
use cts_writer::CtsWriter;
use flush::{FLUSHES, Flushes, LocalCopy, SINK_BYTES};
#[cfg(any(test, feature = "simulation"))]
pub use model_tests::simulated;
use window::Window;

/// Offset of the bytes of control memory that flushes read into. They are scratch memory.
pub(crate) const SINK: usize = SCRATCH;

// The completion records that the sender writes, and the CTS entries to send from.
const _: () = assert!(RECORDS_BYTES + FIFO_BYTES == SCRATCH && SINK_BYTES <= SCRATCH_BYTES);

#[derive(Debug)]
pub(crate) struct RecvState {
    comm: Comm,
    window: Window,
    cts: CtsWriter,
    recovery: failover::Receiver,
    memory: Arc<LivingMrs>,
    /// Present if GPU memory can be registered, or with `MPIB_FLUSH=1`, also if adapters cannot
    /// flush.
    flushes: Option<Flushes>,
    /// When a sender's completed data that has not arrived counts as lost, in an episode.
    patience: Option<Instant>,
    incomplete: IncompleteTimer,
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
            window: Window::new(cells),
            cts: CtsWriter::new(&comm),
            recovery: failover::Receiver::new(comm.all_rails()).without(comm.failures.noticed()),
            memory,
            flushes,
            patience: None,
            incomplete: IncompleteTimer::new(config),
            comm,
        }
    }

    #[cold]
    fn fail(&mut self, e: Box<Error>) -> Box<Error> {
        let e = self.comm.fail(e);
        self.revoke();
        e
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
            flushes.check(&self.comm.rails, self.window.carriers_into(buffer.addr))?;
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
    /// As the last pass of housekeeping has left this receiver.
    pace: PaceCell,
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
            pace: PaceCell::new(),
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

    /// Starts a group that cannot take the short way.
    #[inline(never)]
    fn receive_unusual<P: NetPlugin<Mr = Mr>, const OPTIONAL: bool>(
        mut state: Entered<'_, RecvState>,
        why: Unusual,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<Option<u8>> {
        let slot = match why {
            Unusual::General => state.start::<P, OPTIONAL>(buffers),
            Unusual::Marked => state.start_marked::<P, OPTIONAL>(buffers),
            Unusual::Failed(e) => Err(e),
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

    /// Starts a copy inside of this host, and returns the index of its request among the flushes.
    /// Returns `None` if there is no room, or no rail.
    pub(crate) fn copy(&self, copy: LocalCopy<'_>) -> Fast<Option<u8>> {
        for (buffer, mr) in [copy.host, copy.gpu] {
            self.memory.check(Some(mr), buffer)?;
        }
        self.with(|state| {
            if state.comm.is_marked() {
                state.poll_marked()?;
                state.look_closer()?;
            }
            let RecvState { comm, flushes: Some(flushes), .. } = state else {
                return Err(Error::Usage(CANNOT_COPY.into()).into());
            };
            let started = flushes.copy(comm, copy);
            let Some(index) = comm.fail_on_error(started)? else { return Ok(comm.stats.no_room()) };
            comm.stats.request(None);
            flushes.posted(index);
            Ok(Some(index))
        })
    }

    /// Sends ARRIVED and BYE to the peer, and destroys the queue pairs.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.housekeeping.remove(self.job);
        let close = |state: &mut RecvState| {
            state.await_outstanding_data(&self.closing);
            state.send_arrived();
            state.comm.peer.close();
            state.comm.destroy();
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

/// Why no copy can start.
const CANNOT_COPY: &str = "no adapter of the connection can write to GPU memory";

/// The name of the receivers' job.
const JOB: &str = "receiving";

/// Polls a receiver that NCCL is not calling but that has optional receives outstanding. An error
/// fails the connection.
impl Job for Receiver {
    fn run(&self) -> Result<()> {
        self.pace.set(Pace::Tick);
        let polled = self.state.try_with(|state| {
            state.comm.begin_pass();
            let polled = state.poll_idle().inspect_err(|_| state.revoke());
            self.pace.set(state.comm.end_pass(state.window.next(), state.window.outstanding()));
            log_failure(JOB, &polled);
            Ok(())
        });
        polled.unwrap_or(Ok(())).map_err(|e| *e)
    }

    fn interval(&self) -> Option<Duration> {
        self.pace.interval()
    }
}

#[cold]
fn wrong_group(receives: usize) -> Box<Error> {
    Error::Argument(format!("a group of {receives} receives: expected 1 to {MAX_RECVS}")).into()
}
