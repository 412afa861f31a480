//! What the completions of a receiver's queues mean, and parts that are announced and do not come.

use std::time::{Duration, Instant};

use mpib_proto::{RailSet, SizeQ};

use crate::config::Config;
use crate::error::{Error, Fast};
use crate::housekeeping::TICK;
use crate::transport::comm::Comm;
use crate::transport::looks::Looks;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::recv::cts_writer::CTS_QUEUE;
use crate::transport::recv::window::{ArrivalError, Incomplete};
use crate::transport::recv::{Operation, RecvState};
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
            Operation::Receive(slot) => self.window.is_pending(slot),
            Operation::Flush(index) => self.flushes.as_ref().is_some_and(|flushes| flushes.is_pending(index)),
        }
    }

    fn handle_news(&mut self) -> Fast<()> {
        Self::handle_news(self)
    }

    fn settles_alone(&self) -> bool {
        self.patience.is_some()
    }

    fn is_busy(&mut self) -> bool {
        self.settles_flushes() || self.blocks_offers() || self.recovery.is_going_on()
    }

    /// Also for optional receives: NCCL does not call test until their data has arrived.
    #[inline]
    fn polls_on(&self, operation: Operation) -> bool {
        self.pending(operation) || self.window.awaits_data()
    }

    #[inline]
    fn awaited(&self, operation: Operation) -> RailSet {
        match operation {
            // Data may come on any rail, and so may what breaks the protocol.
            Operation::Receive(_) => RailSet::ALL,
            Operation::Flush(index) => {
                self.flushes.as_ref().map_or(RailSet::EMPTY, |flushes| flushes.awaited(index))
            }
        }
    }

    #[inline(always)]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match completion.kind() {
            Kind::Arrived(word) => {
                if !self.comm.rails[rail].arrived(completion, word as u8) {
                    return Err(self.protocol_error(rail, word, ArrivalError::Queue(word as u8)));
                }
                let usual = match self.comm.layout.decode_whole(word, rail) {
                    Some((slot, size)) => self.arrived_whole(rail, slot, size),
                    None => self.arrived_part(rail, word),
                };
                if usual {
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
    /// Handles the completion of one of this end's work requests.
    #[inline(never)]
    fn sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        match Work::of(wr_id) {
            Work::Cts => self.comm.sent(rail, CTS_QUEUE, wr_id),
            Work::Flush { index } => {
                let Comm { rails, stats, .. } = &mut self.comm;
                let known = rails[rail].flush.as_mut().map_or(Ok(0), |queue| queue.sent(wr_id))?;
                stats.completed(rail, known);
                if self.flushes.as_mut().is_some_and(|flushes| flushes.read(rail, index)) {
                    stats.done(0, 0);
                }
                Ok(())
            }
            Work::Mail => self.comm.mail_sent(rail, wr_id),
            Work::Ping => self.comm.pinged(rail, wr_id),
            other => Err(Error::Internal(format!("a receiver's queue completed {other:?}")).into()),
        }
    }

    /// Handles the only immediate of a usual receive. Otherwise returns `false` and has done nothing.
    #[inline(always)]
    fn arrived_whole(&mut self, rail: usize, slot: u8, size: usize) -> bool {
        let usual = CommProfiler::active(&mut self.comm.profiler).is_none()
            && self.window.arrived_whole(slot, rail, size);
        if usual {
            self.carried(rail);
            self.comm.stats.arrived_last(rail, size);
            self.window.complete_one(slot, size);
        }
        usual
    }

    /// Like [`arrived_whole`](Self::arrived_whole), for an immediate that may be one of several.
    // Inside of the loop over completions it would take registers from the usual immediate.
    #[inline(never)]
    fn arrived_part(&mut self, rail: usize, word: u32) -> bool {
        if CommProfiler::active(&mut self.comm.profiler).is_some() {
            return false;
        }
        let Some(size) = self.window.arrived_part(self.comm.layout, word, rail) else { return false };
        self.carried(rail);
        match size {
            None => self.comm.stats.arrived(rail),
            Some(size) => {
                self.comm.stats.arrived_last(rail, size);
                self.window.complete_one(word as u8, size);
            }
        }
        true
    }

    /// Notes for flushes that data has arrived on a rail.
    #[inline(always)]
    fn carried(&mut self, rail: usize) {
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
    }

    /// Handles an immediate from the peer.
    #[inline(never)]
    fn arrived(&mut self, rail: usize, word: u32) -> Fast<()> {
        match self.any_arrived(rail, word) {
            Err(ArrivalError::Word) => self.arrived_again(rail, word),
            arrived => arrived.map_err(|e| self.protocol_error(rail, word, e)),
        }
    }

    fn any_arrived(&mut self, rail: usize, word: u32) -> Result<(), ArrivalError> {
        let (slot, size) = (word as u8, self.window.arrived(self.comm.layout, word, rail)?);
        self.carried(rail);
        if let Some(profiler) = CommProfiler::active(&mut self.comm.profiler) {
            profiler.stop_receives(slot, rail, size.is_some());
        }
        size.map_or(Ok(()), |size| self.complete(slot, size))
    }

    /// Completes the request of a slot whose parts have all arrived.
    #[inline(always)]
    pub(super) fn complete(&mut self, slot: u8, size: SizeQ) -> Result<(), ArrivalError> {
        let Comm { region, stats, .. } = &self.comm;
        self.window.complete(slot, size, region, |messages, bytes| stats.done(messages, bytes))
    }

    /// Handles an immediate without a mask: a part that is sent again. It has taken a receive that no
    /// slot counts, and NCCL may offer nothing more before the others have come.
    #[cold]
    #[inline(never)]
    fn arrived_again(&mut self, rail: usize, word: u32) -> Fast<()> {
        let arrived = self.part_arrived_again(rail, word);
        arrived.map_err(|e| self.protocol_error(rail, word, e))?;
        self.window.set_credit(0);
        let refilled = self.comm.rails[rail].refill(self.window.outstanding());
        refilled.map_or_else(|e| self.comm.not_posted(rail, e), |_| Ok(()))
    }

    fn part_arrived_again(&mut self, rail: usize, word: u32) -> Result<(), ArrivalError> {
        let replay = self.comm.layout.decode_replay(word).ok_or(ArrivalError::Word)?;
        // A part that an immediate with a mask has brought does not come again, and its slot may have
        // another group.
        if !self.recovery.arrived(replay) {
            return Err(ArrivalError::Unrequested(replay.slot, replay.part));
        }
        let size = self.window.arrived_again(replay.slot, replay.part)?;
        self.carried(rail);
        self.end_episode();
        size.map_or(Ok(()), |size| self.complete(replay.slot, size))
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

/// How long the oldest incomplete group has not changed.
///
/// A rail that loses data is noticed by its sender. This is for a peer that breaks the protocol: it
/// announces a part and never sends it.
#[derive(Debug)]
pub(super) struct IncompleteTimer {
    limit: Duration,
    oldest: Option<Incomplete>,
    waited: Duration,
    looks: Looks,
}

impl IncompleteTimer {
    /// The limit is `MPIB_PEER_TIMEOUT_MS`, and not less than the time in which adapters give up.
    pub(super) fn new(config: &Config) -> Self {
        let limit = config.peer_timeout.max(config.retry_time().longest);
        let looks = Looks::begin(Instant::now(), 2 * TICK);
        Self { limit, oldest: None, waited: Duration::ZERO, looks }
    }

    /// Takes in what is incomplete now. Returns whether it has not changed for the limit.
    fn add(&mut self, now: Instant, oldest: Option<Incomplete>) -> bool {
        let passed = self.looks.passed(now);
        self.waited = if oldest == self.oldest { self.waited + passed } else { Duration::ZERO };
        self.oldest = oldest;
        oldest.is_some() && self.waited >= self.limit
    }
}

impl RecvState {
    /// Returns an error if the peer has announced a part of a group and has not sent it for too
    /// long. Called at each pass of housekeeping.
    pub(super) fn check_incomplete(&mut self) -> Fast<()> {
        let found = self.oldest_incomplete();
        if !self.incomplete.add(Instant::now(), found) {
            return Ok(());
        }
        // NCCL may have paused: the part may be in a queue that nobody has polled.
        self.poll()?;
        match self.oldest_incomplete() {
            Some(still) if Some(still) == found => Err(self.never_completed(still)),
            _ => Ok(()),
        }
    }

    fn oldest_incomplete(&self) -> Option<Incomplete> {
        // What failed rails were to bring is agreed upon first. A stopped peer takes long for that.
        self.window.oldest_incomplete(|rail| self.comm.watch.cause(rail).is_none())
    }

    #[cold]
    fn never_completed(&self, Incomplete { seq, got, missing }: Incomplete) -> Box<Error> {
        let named = |which: RailSet| {
            let name = |rail: usize| format!("rail {rail} ({})", self.comm.rails[rail].nic.name());
            which.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "{} sent a part of group {} on {}, which announces a part on {} that has not come for {:.1} s \
             (MPIB_PEER_TIMEOUT_MS, or the time in which adapters give up, if that is longer)",
            self.comm.peer.name(),
            seq.number(),
            named(got),
            named(missing),
            self.incomplete.limit.as_secs_f64(),
        );
        Error::Protocol(what).into()
    }
}
