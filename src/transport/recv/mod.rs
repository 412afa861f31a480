//! The receiving end of a connection.

mod completions;
pub(crate) mod cts_writer;
mod episode;
mod failback;
pub(crate) mod flush;
mod incomplete;
mod key_renewal;
#[cfg(any(test, feature = "simulation"))]
mod model_tests;
pub(crate) mod optional;
mod profiling;
mod promises;
mod receiver;
pub(crate) mod receives;
mod renewed_keys;
mod single;
mod slot;

use std::sync::Arc;
use std::time::Instant;

use nccl_net_versions::{Buffer, NetPlugin, RecvBuffer};

use crate::config::Config;
use crate::error::{Error, Fast, Result};
use crate::failover;
use crate::housekeeping::Idleness;
use crate::proto::{FIFO_BYTES, RECORDS_BYTES, RailSet, SCRATCH, SCRATCH_BYTES, SLOTS, Sequence};
use crate::transport::comm::Comm;
use crate::transport::memory::{LivingMrs, Mr};
use crate::transport::progress::Progress;
use crate::transport::request::cells::Cells;
use crate::transport::running::Running;
use cts_writer::CtsWriter;
use flush::{Flushes, SINK_BYTES};
use incomplete::Promises;
use key_renewal::KeyRenewal;
pub(crate) use receiver::Receiver;
use slot::Slot;

#[cfg(any(test, feature = "simulation"))]
pub use model_tests::simulated;

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
