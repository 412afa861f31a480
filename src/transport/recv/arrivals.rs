//! What the completions of a receiver's queues mean, and parts that are announced and do not come.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Fast};
use crate::housekeeping::TICK;
use crate::proto::{Imm, Record, SLOTS, Sequence, SizeQ, rails};
use crate::transport::comm::Comm;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::recv::window::{ArrivalError, read_record};
use crate::transport::recv::{Operation, RecvState, cts_writer};
use crate::transport::send_queue::Work;
use crate::verbs::{Completion, Kind};

impl Progress for RecvState {
    type Request = Operation;

    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
    }

    /// A flush does not involve the peer, so a dead peer does not fail it.
    #[inline]
    fn outstanding(operation: Operation) -> Option<&'static str> {
        match operation {
            Operation::Receive(_) => Some("receives"),
            Operation::Flush(_) => None,
        }
    }

    #[inline]
    fn pending(&self, operation: Operation) -> bool {
        match operation {
            Operation::Receive(slot) => self.cells.get(slot).is_in_flight(),
            Operation::Flush(index) => self.awaits_flush(index) != 0,
        }
    }

    fn handle_news(&mut self) -> Fast<()> {
        Self::handle_news(self)
    }

    fn may_have_lost(&self) -> bool {
        self.patience.is_some()
    }

    fn is_busy(&mut self) -> bool {
        self.settles_flushes()
            || self.blocks_offers()
            || self.recovery.is_going_on()
            || self.recovery.owes_up()
    }

    /// Also for optional receives: NCCL does not call test until their data has arrived.
    #[inline]
    fn polls_on(&self, operation: Operation) -> bool {
        self.pending(operation) || self.ahead > 0
    }

    #[inline]
    fn awaited(&self, operation: Operation) -> u8 {
        match operation {
            // Data may come on any rail, and so may what breaks the protocol.
            Operation::Receive(_) => u8::MAX,
            Operation::Flush(index) => self.awaits_flush(index),
        }
    }

    #[inline(always)]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match completion.kind() {
            Kind::Arrived(word) => {
                if !self.comm.rails[rail].arrived(completion, word as u8) {
                    return Err(self.protocol_error(rail, word, ArrivalError::Queue(word as u8)));
                }
                if self.arrived_single(rail, word) {
                    return Ok(());
                }
                self.comm.stats.arrived(rail);
                self.arrived(rail, word)
            }
            Kind::Sent => self.sent(rail, completion.wr_id()),
            Kind::Other(_) => Err(unknown(completion)),
        }
    }
}

impl RecvState {
    /// Returns the mask of the rails whose read a flush waits for.
    fn awaits_flush(&self, index: u8) -> u8 {
        self.flushes.as_ref().map_or(0, |flushes| flushes.awaited(index))
    }

    /// Handles the completion of one of this end's work requests.
    #[inline(never)]
    fn sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        let on = &mut self.comm.rails[rail];
        let known = match Work::of(wr_id) {
            Work::Cts => on.send_queues[cts_writer::CTS_QUEUE].sent(wr_id)?,
            Work::Flush { index } => {
                let known = on.flush.as_mut().map_or(Ok(0), |queue| queue.sent(wr_id))?;
                if let Some(flushes) = &mut self.flushes
                    && flushes.read(rail, index)
                {
                    self.comm.stats.done(0, 0);
                }
                known
            }
            Work::Mail => return self.comm.mail_sent(rail, wr_id),
            Work::Ping => return self.comm.pinged(rail, wr_id),
            other => return Err(internal(&format!("a receiver's queue completed {other:?}"))),
        };
        self.comm.stats.completed(rail, known);
        Ok(())
    }

    /// Handles an immediate from the peer.
    #[inline(never)]
    fn arrived(&mut self, rail: usize, word: u32) -> Fast<()> {
        self.check_arrival(rail, word).map_err(|e| self.protocol_error(rail, word, e))
    }

    fn check_arrival(&mut self, rail: usize, word: u32) -> Result<(), ArrivalError> {
        let Some(imm) = self.comm.layout.decode(word) else { return self.part_arrived(rail, word) };
        match self.cells.get(imm.slot).is_in_flight() {
            true => self.apply_arrival::<false>(imm, rail),
            false => self.apply_arrival::<true>(imm, rail),
        }
    }

    /// `AHEAD`: the request is not in flight, so it must have completed ahead of its data.
    fn apply_arrival<const AHEAD: bool>(&mut self, imm: Imm, rail: usize) -> Result<(), ArrivalError> {
        let request = self.cells.get(imm.slot);
        if AHEAD && !request.awaits_data() {
            return Err(ArrivalError::Idle(imm.slot));
        }
        let slot = &mut self.slots[usize::from(imm.slot) % SLOTS];
        let size = slot.arrived(imm, rail)?;
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
        if let Some(profiler) = CommProfiler::active(&mut self.comm.profiler) {
            profiler.stop_receives(imm.slot, rail, size.is_some());
        }
        match size {
            Some(size) => self.finish::<AHEAD>(imm.slot, size),
            None => Ok(()),
        }
    }

    /// Completes the request of a slot whose parts have all arrived.
    fn finish<const AHEAD: bool>(&mut self, slot: u8, size: SizeQ) -> Result<(), ArrivalError> {
        let request = self.cells.get(slot);
        match size.bytes() {
            Some(size) => {
                self.comm.stats.done(1, size);
                if AHEAD { request.data_arrived(size) } else { request.complete_one(size) }
            }
            None => {
                let place = &self.slots[usize::from(slot) % SLOTS];
                let record = Record::decode(&read_record(&self.comm, slot), &place.rooms()[..place.count()]);
                let record = record.map_err(|e| ArrivalError::Record(slot, e))?;
                let bytes = record.sizes().iter().sum();
                self.comm.stats.done(record.sizes().len(), bytes);
                if AHEAD { request.data_arrived(bytes) } else { request.complete(record.sizes()) }
            }
        }
        self.outstanding -= 1;
        self.ahead -= usize::from(AHEAD);
        Ok(())
    }

    /// Handles the arrival of parts of a slot that `rail` carried for other rails.
    pub(crate) fn add_parts(&mut self, slot: u8, parts: u8) -> Result<(), ArrivalError> {
        let Some(size) = self.slots[usize::from(slot) % SLOTS].add(parts) else { return Ok(()) };
        match self.cells.get(slot).is_in_flight() {
            true => self.finish::<false>(slot, size),
            false => self.finish::<true>(slot, size),
        }
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

/// The oldest group with a part that has arrived and another one that has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incomplete {
    pub(super) seq: Sequence,
    /// Mask of the parts that have arrived.
    pub(super) got: u8,
    /// Mask of the others.
    pub(super) missing: u8,
}

/// How long the oldest incomplete group has not changed.
#[derive(Debug)]
pub(super) struct Promises {
    pub(super) limit: Duration,
    oldest: Option<Incomplete>,
    waited: Duration,
    last: Instant,
}

impl Promises {
    /// The limit is `MPIB_PEER_TIMEOUT_MS`, and not less than the time in which adapters give up.
    pub(super) fn new(config: &Config) -> Self {
        let limit = config.peer_timeout.max(config.retry_time().longest);
        Self { limit, oldest: None, waited: Duration::ZERO, last: Instant::now() }
    }

    /// Takes in what is incomplete now. Returns whether it has not changed for the limit.
    pub(super) fn add(&mut self, now: Instant, oldest: Option<Incomplete>) -> bool {
        // A pause of this process does not count.
        let passed = now.saturating_duration_since(self.last).min(2 * TICK);
        self.waited = if oldest == self.oldest { self.waited + passed } else { Duration::ZERO };
        (self.oldest, self.last) = (oldest, now);
        oldest.is_some() && self.waited >= self.limit
    }
}

impl RecvState {
    /// Returns an error if the peer has announced a part of a group and has not sent it for too
    /// long. Called at each pass of housekeeping.
    pub(super) fn check_promises(&mut self) -> Fast<()> {
        let found = self.oldest_incomplete();
        if !self.promises.add(Instant::now(), found) {
            return Ok(());
        }
        // NCCL may have paused: the part may be in a queue that nobody has polled.
        self.poll()?;
        match self.oldest_incomplete() {
            Some(still) if Some(still) == found => Err(self.broken_promise(still)),
            _ => Ok(()),
        }
    }

    fn oldest_incomplete(&self) -> Option<Incomplete> {
        if self.outstanding == 0 {
            return None;
        }
        let incomplete = |seq: Sequence| {
            let (got, missing) = self.slots[usize::from(seq.slot()) % SLOTS].parts();
            if got == 0 || !self.is_outstanding(seq) {
                return None;
            }
            // What failed rails were to bring is agreed upon first. A stopped peer takes long for that.
            let missing = rails(missing).filter(|rail| self.comm.watch.cause(*rail).is_none());
            let missing = missing.fold(0, |mask, rail| mask | 1 << rail);
            (missing != 0).then_some(Incomplete { seq, got, missing })
        };
        self.cts.next().predecessors().filter_map(incomplete).last()
    }

    #[cold]
    fn broken_promise(&self, Incomplete { seq, got, missing }: Incomplete) -> Box<Error> {
        let named = |mask: u8| {
            let name = |rail: usize| format!("rail {rail} ({})", self.comm.rails[rail].nic.name());
            rails(mask).map(name).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "{} sent a part of group {} on {}, which announces a part on {} that has not come for {:.1} s \
             (MPIB_PEER_TIMEOUT_MS, or the time in which adapters give up, if that is longer)",
            self.comm.peer.name(),
            seq.number(),
            named(got),
            named(missing),
            self.promises.limit.as_secs_f64(),
        );
        Error::Protocol(what).into()
    }
}
