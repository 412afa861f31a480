//! What the completions of a receiver's queues mean.

use crate::error::{Error, Fast};
use crate::proto::{Imm, Record, SLOTS, SizeQ};
use crate::transport::comm::Comm;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::recv::slot::{ArrivalError, read_record};
use crate::transport::recv::{Operation, RecvState, cts_writer, profiling};
use crate::transport::work::Work;
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
            profiling::arrived(profiler, imm.slot, rail, size.is_some());
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
