//! The sending end of a connection.

mod cts_fifo;
mod post;
mod recovery;
pub(crate) mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use mpib_proto::{FIFO_BYTES, RECORD_BYTES, RailSet, SCRATCH, SLOTS, Sequence};
use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::async_events::CommWatch;
use crate::clock;
use crate::error::{Error, Fast, Result};
use crate::failover;
use crate::housekeeping::{Housekeeping, Job, Pace, PaceCell, job, log_failure};
use crate::split::Splitter;
use crate::state_lock::{Entered, StateLock};
use crate::stats::Waits;
use crate::transport::comm::Comm;
use crate::transport::memory::{LivingMrs, Mr, Registrar};
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::{Progress, progress};
use crate::transport::request::Cells;
use crate::transport::send_queue::Work;
use crate::transport::{Settings, Unusual};
use crate::verbs::{Completion, Kind, Words};

use post::UsualSends;
use window::{SENDS, Window};

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
    /// As the last pass of housekeeping has left this sender.
    pace: PaceCell,
    // Locked by NCCL's progress thread alone; registration does not need it.
    state: StateLock<SendState>,
}

#[derive(Debug)]
pub(crate) struct SendState {
    comm: Comm,
    window: Window,
    splitter: Splitter,
    usual: UsualSends,
    recovery: failover::Sender,
    memory: Arc<LivingMrs>,
    /// The rails on drained ports.
    drained: RailSet,
}

impl Sender {
    pub(crate) fn new(mut comm: Comm, mut splitter: Splitter, settings: &Settings) -> Arc<Self> {
        let config = &settings.config;
        comm.start_profiling(settings, SENDS);
        let separate_above = comm.separate_imm_above(config).min(comm.largest_write());
        let drained = comm.drained();
        splitter.keep(comm.undrained(drained));
        let (cells, memory) = (Cells::new(), Registrar::new(comm.nics(), config));
        let sender = Arc::new(Self {
            housekeeping: Arc::clone(&settings.process.housekeeping),
            pace: PaceCell::new(),
            cells: cells.clone(),
            longest: comm.longest_send(),
            fifo: comm.region.share(),
            next: AtomicU64::new(Sequence::FIRST.number()),
            early: AtomicU32::new(0),
            waits: comm.stats.waits(),
            watch: comm.watch(),
            state: StateLock::new(SendState {
                window: Window::new(cells, comm.rails.len() > 1),
                usual: UsualSends::new(&splitter, &comm, config.inline as usize, separate_above),
                recovery: failover::Sender::new(comm.all_rails()).without(comm.failures.noticed()),
                splitter,
                memory: memory.living(),
                drained,
                comm,
            }),
            memory,
        });
        settings.process.housekeeping.add(sender.watch.job(), JOB, job(&sender));
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
            false => state.start_usual(&self.fifo, buffer, tag, mr, profiler),
            true => Err(Unusual::Marked),
        };
        match started {
            Ok(index) => {
                self.next.store(state.window.seq().number(), Ordering::Relaxed);
                state.leave(Ok(Some(index)))
            }
            Err(why) => self.send_unusual(state, why, buffer, tag, mr, profiler),
        }
    }

    /// Starts a send that cannot take the short way.
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
            Unusual::Failed(e) => Err(e),
        };
        self.next.store(state.window.seq().number(), Ordering::Relaxed);
        let index = index.map_err(|e| state.comm.fail(e));
        state.leave(index)
    }

    #[inline(always)]
    pub(crate) fn progress(&self, index: u8) -> Fast<()> {
        let mut state = self.state.enter()?;
        let progress = progress(&mut *state, index);
        state.leave(progress)
    }

    /// Sends BYE to the peer, and destroys the queue pairs.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.housekeeping.remove(self.watch.job());
        let close = |state: &mut SendState| {
            state.comm.peer.close();
            state.comm.destroy();
            Ok(())
        };
        self.state.with(close).map_err(|e| *e)
    }

    /// Returns the size in bytes of the largest message.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    #[cold]
    fn too_long(&self, len: usize) -> Box<Error> {
        let longest = self.longest;
        Error::Usage(format!("a send of {len} bytes: the largest message of these ports is {longest}")).into()
    }
}

/// The name of the senders' job.
const JOB: &str = "sending";

/// Handles news of the peer and of rails while NCCL makes no call. An error fails the connection.
impl Job for Sender {
    fn run(&self) -> Result<()> {
        self.pace.set(Pace::Tick);
        let polled = self.state.try_with(|state| {
            state.comm.begin_pass();
            log_failure(JOB, &state.poll_idle());
            self.pace.set(state.comm.end_pass(state.window.seq(), state.window.in_flight()));
            Ok(())
        });
        polled.unwrap_or(Ok(())).map_err(|e| *e)
    }

    fn interval(&self) -> Option<Duration> {
        self.pace.interval()
    }
}

impl Progress for SendState {
    /// The index of the send.
    type Request = u8;

    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
    }

    fn outstanding(_: u8) -> Option<&'static str> {
        Some("sends")
    }

    #[inline]
    fn pending(&self, index: u8) -> bool {
        self.window.is_pending(index)
    }

    #[inline]
    fn polls_on(&self, index: u8) -> bool {
        self.pending(index)
    }

    #[inline]
    fn awaited(&self, index: u8) -> RailSet {
        // What is measured is seen when it completes.
        self.window.awaited(index) | self.splitter.busy()
    }

    fn handle_news(&mut self) -> Fast<()> {
        Self::handle_news(self)
    }

    /// A closing receiver has everything, acknowledged or not.
    fn settles_alone(&self) -> bool {
        let is_matching = self.window.met().is_some();
        !is_matching && self.window.in_flight() > 0 && self.recovery.has_arrived(self.window.seq())
    }

    fn is_busy(&mut self) -> bool {
        !self.comm.has_rail()
            || self.recovery.is_fencing()
            || self.recovery.has_unposted()
            || self.recovery.awaits_entries()
            || self.settles_alone()
    }

    #[inline(always)]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match (completion.kind(), Work::of(completion.wr_id())) {
            (Kind::Sent, Work::Data { slot }) => self.part_sent(rail, (slot, rail), completion.wr_id()),
            (Kind::Sent, Work::Measured { slot }) => self.measured_sent(rail, slot, completion.wr_id()),
            _ => self.completed_unusual(rail, completion),
        }
    }
}

impl SendState {
    /// Handles news while NCCL makes no call.
    fn poll_idle(&mut self) -> Fast<()> {
        let looked = self.comm.look_for_life();
        self.comm.fail_on_error(looked)?;
        let (next, outstanding) = (self.window.seq(), self.window.in_flight());
        let idle = self.comm.is_left_alone(next, outstanding);
        let waits = outstanding > 0 && self.comm.failures.is_enabled();
        if idle && waits && !self.comm.has_failed() {
            let polled = self.poll();
            self.comm.fail_on_error(polled)?;
        }
        if self.comm.has_old_news() || self.is_failback_due() {
            self.look_while_idle()?;
        }
        Ok(())
    }

    /// Handles the completion of a part of a group: the signalled write of the rail that carried it.
    #[inline(always)]
    fn part_sent(&mut self, carrier: usize, (slot, part): (u8, usize), wr_id: u64) -> Fast<()> {
        let Comm { rails, stats, profiler, .. } = &mut self.comm;
        let known = rails[carrier].send_queue_mut(slot).sent(wr_id)?;
        stats.completed(carrier, known);
        if let Some(profiler) = CommProfiler::active(profiler) {
            profiler.stop_group(self.window.group(slot), part);
        }
        match self.window.sent(slot, part, |size| stats.done(1, size)) {
            true => Ok(()),
            false => Err(twice(part, slot)),
        }
    }

    #[inline(never)]
    fn measured_sent(&mut self, rail: usize, slot: u8, wr_id: u64) -> Fast<()> {
        self.part_sent(rail, (slot, rail), wr_id)?;
        self.splitter.completed(slot, rail, self.window.bytes(slot, rail), clock::now);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn completed_unusual(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        let wr_id = completion.wr_id();
        match (completion.kind(), Work::of(wr_id)) {
            (Kind::Sent, Work::Replay { slot, part }) => self.part_sent(rail, (slot, part.into()), wr_id),
            (Kind::Sent, Work::Mail) => self.comm.mail_sent(rail, wr_id),
            (Kind::Sent, Work::Ping) => self.comm.pinged(rail, wr_id),
            _ => Err(unknown(completion)),
        }
    }
}

#[cold]
fn unknown(completion: &Completion) -> Box<Error> {
    let (kind, work) = (completion.kind(), Work::of(completion.wr_id()));
    Error::Internal(format!("a sender's queue completed {kind:?} as {work:?}")).into()
}

#[cold]
fn twice(part: usize, slot: u8) -> Box<Error> {
    Error::Internal(format!("part {part} of slot {slot} completed twice")).into()
}
