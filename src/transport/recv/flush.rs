//! Flush: makes arrived data visible to the GPU.
//!
//! Completions go to host memory and data to GPU memory, over paths that need not be equally fast.
//! On PCIe an adapter's read cannot pass its own earlier writes: once it has read from a GPU's
//! memory, all that it wrote there before is in place. So each rail that has carried data reads one
//! byte, over a queue pair that is connected to itself.
//!
//! The same queue pairs copy a few bytes between host memory and GPU memory ([`LocalCopy`]), which the
//! processor does not reach: a write, and a read behind it, or a read alone.

use std::time::{Duration, Instant};

use mpib_proto::{MAX_RAILS, RailSet, SLOTS};
use nccl_net_versions::{Buffer, MemKind};

use crate::error::{Error, Fast, Result};
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::rail::Rail;
use crate::transport::request::Cells;
use crate::transport::send_queue::Work;
use crate::verbs::{Local, Remote};

/// Most flushes in flight on one comm: as many as groups of receives, and one flush serves a group.
/// NCCL has at most 32 operations in flight.
pub(crate) const FLUSHES: usize = SLOTS;

/// How long the last writes of an adapter that is given up may take to reach a GPU: a thousand times
/// what a PCIe write takes. Nothing can read behind them any more.
const SETTLED: Duration = Duration::from_millis(10);

/// Bytes of a receiver's control memory into which flushes read: eight for each rail. Nothing uses
/// the data.
pub(crate) const SINK_BYTES: usize = 8 * MAX_RAILS;

/// Work requests of a copy at most. A flush has one on each rail.
pub(crate) const COPY_REQUESTS: usize = 2;

/// A copy inside of this host by one adapter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalCopy<'a> {
    /// Host memory and GPU memory, of one size.
    pub(crate) host: (Buffer, &'a Mr),
    pub(crate) gpu: (Buffer, &'a Mr),
    pub(crate) to: Towards,
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Gpu,
    Host,
}

/// The flushes of one comm.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// By flush: the rails whose read is outstanding.
    pending: Box<[RailSet]>,
    /// By flush: it also waits until what adapters wrote before their rails were given up is in place.
    settles: Box<[bool]>,
    /// By flush: it is a copy. Its request has a size: 1 if it is done, 0 if it is lost.
    is_copy: Box<[bool]>,
    cells: Cells<FLUSHES>,
    /// Where the search for a free request begins.
    next: u8,
    /// Stripes that must read in a flush: those whose rail has carried data since it was made.
    carried: RailSet,
    /// By stripe: the stripe with its rail's queue pair for flushes.
    flusher: [usize; MAX_RAILS],
    /// Stripes that would read in a flush and cannot: their adapter does not reach itself.
    lacking: RailSet,
    /// Rails are given up, and their last writes may still be on their way to the GPU, also those of
    /// parts that never arrived whole. Flushes wait until a time, once all queue pairs of these rails
    /// are destroyed.
    settling: Option<Settling>,
    /// Index of the first word that flushes read into.
    sink: usize,
}

/// The last writes of rails that are given up.
#[derive(Debug, Clone, Copy)]
enum Settling {
    /// Queue pairs are still being destroyed.
    Unfenced,
    /// All writes are in place from then on.
    Until(Instant),
}

/// Returns whether a comm of these rails flushes. GPU memory can be registered only if every
/// adapter reaches it; then every rail has its queue pair for flushes, or the reason why not.
pub(crate) fn possible(rails: &[Rail]) -> bool {
    rails.iter().any(leads)
}

/// Returns whether the stripe is the one of its rail that flushes, or would if it could.
fn leads(stripe: &Rail) -> bool {
    stripe.flush.is_some() || stripe.no_flush.is_some()
}

/// Returns the buffer to read from: the last one with data that lies in a GPU, else the last one
/// with data. All buffers of a comm lie in one GPU, so one is enough.
pub(crate) fn target<'a>(buffers: &[(Buffer, Option<&'a Mr>)]) -> Option<(Buffer, &'a Mr)> {
    let filled = buffers.iter().filter(|(buffer, _)| buffer.len > 0);
    filled.filter_map(|(buffer, mr)| Some((*buffer, (*mr)?))).max_by_key(|(_, mr)| mr.kind() != MemKind::Host)
}

impl Flushes {
    /// `rails` are those of the comm, with the stripes of a rail next to each other.
    pub(crate) fn new(cells: Cells<FLUSHES>, sink: usize, rails: &[Rail]) -> Self {
        let (mut flusher, mut last, mut lacking) = ([0; MAX_RAILS], 0, RailSet::EMPTY);
        for (i, (place, rail)) in flusher.iter_mut().zip(rails).enumerate() {
            // A rail that is dead from the beginning flushes once it works.
            let begins = i == 0 || !rail.joins_the_ports_of(&rails[i - 1]);
            if leads(rail) || (begins && !rail.is_alive()) {
                last = i;
            }
            *place = last;
            if rail.no_flush.is_some() {
                lacking.insert(i);
            }
        }
        Self {
            pending: vec![RailSet::EMPTY; FLUSHES].into(),
            settles: vec![false; FLUSHES].into(),
            is_copy: vec![false; FLUSHES].into(),
            cells,
            next: 0,
            carried: RailSet::EMPTY,
            flusher,
            lacking,
            settling: None,
            sink,
        }
    }

    /// Returns whether a rail that cannot flush has carried data.
    #[inline]
    pub(crate) fn may_lack(&self) -> bool {
        !(self.carried & self.lacking).is_empty()
    }

    /// Returns an error if a rail that cannot flush is among the stripes that carried some data:
    /// `carriers`, or all that carried any if that is not known.
    pub(crate) fn check(&self, all: &[Rail], carriers: Option<RailSet>) -> Result<()> {
        let lacking = carriers.map_or(self.carried, |carriers| self.flushers(carriers)) & self.lacking;
        let Some(rail) = lacking.lowest() else { return Ok(()) };
        let (name, why) = (all[rail].nic.name(), all[rail].no_flush.as_deref().unwrap_or_default());
        Err(Error::Usage(format!(
            "this data has come over rail {rail} ({name}), which cannot flush, since the adapter does not reach itself: \
             {why}. If the GPU needs no flush (NVIDIA from Hopper on), set MPIB_FLUSH=0; otherwise allow loopback \
             (hairpin) on the adapter and its switch port, or use another adapter"
        )))
    }

    /// Returns the stripes that flush for these.
    fn flushers(&self, stripes: RailSet) -> RailSet {
        stripes.iter().map(|stripe| self.flusher[stripe]).collect()
    }

    /// Notes that data has arrived on a stripe.
    #[inline]
    pub(crate) fn carried(&mut self, stripe: usize) {
        self.carried.insert(self.flusher[stripe]);
    }

    /// Returns a place for a flush; `None` if there is nothing to wait for. Returns an error if all
    /// places are in use, because NCCL takes a flush without a request for a completed one.
    pub(crate) fn begin(&mut self) -> Fast<Option<u8>> {
        let (readers, settles) = (self.carried.without(self.lacking), self.settling.is_some());
        if readers.is_empty() && !settles {
            return Ok(None);
        }
        let full = || Error::Usage(format!("{FLUSHES} flushes are under way, and no more fit"));
        let index = self.cells.find_free(&mut self.next).ok_or_else(full)?;
        let at = usize::from(index);
        (self.pending[at], self.settles[at], self.is_copy[at]) = (readers, settles, false);
        Ok(Some(index))
    }

    /// Starts a copy over a rail that lives. Returns `None` if there is none, or no room. A copy that
    /// is not posted is lost with its rail.
    ///
    /// # Errors
    /// No adapter of the rails that live reaches itself.
    pub(crate) fn copy(&mut self, comm: &mut Comm, copy: LocalCopy<'_>) -> Fast<Option<u8>> {
        let fits = |rail: &usize| comm.rails[*rail].flush.is_some() && !self.lacking.contains(*rail);
        let Some(rail) = (0..comm.rails.len()).find(fits) else {
            return cannot_copy(&comm.rails).map_or(Ok(None), |e| Err(e.into()));
        };
        let Some(index) = self.cells.find_free(&mut self.next) else { return Ok(None) };
        let at = usize::from(index);
        (self.pending[at], self.settles[at], self.is_copy[at]) = (RailSet::of(rail), false, true);
        let LocalCopy { host: (host, host_mr), gpu: (gpu, gpu_mr), to } = copy;
        let local = Local { addr: host.addr as u64, len: host.len as u32, lkey: host_mr.lkeys()[rail] };
        let remote = Remote { addr: gpu.addr as u64, rkey: gpu_mr.rkeys()[rail] };
        comm.chain.clear();
        match to {
            Towards::Host => self.read_and_post(comm, rail, index, local, remote)?,
            Towards::Gpu if comm.chain.write(Some(local), remote, None, None) => {
                self.read_and_post(comm, rail, index, self.sink(comm, rail), remote)?;
            }
            Towards::Gpu => return Err(does_not_fit()),
        }
        Ok(Some(index))
    }

    /// Returns the byte that a rail's flushes read into.
    fn sink(&self, comm: &Comm, rail: usize) -> Local {
        let Comm { region, .. } = comm;
        Local { addr: region.addr(self.sink + rail) as u64, len: 1, lkey: region.mrs()[rail].lkey() }
    }

    /// Adds the signalled read to the chain, and posts it on a rail.
    fn read_and_post(
        &self,
        comm: &mut Comm,
        rail: usize,
        index: u8,
        local: Local,
        remote: Remote,
    ) -> Fast<()> {
        let Comm { rails: all, chain, stats, .. } = comm;
        let queue = all[rail].flush.as_mut();
        let queue = queue.ok_or_else(|| Error::Internal("a rail without a queue pair for flushes".into()))?;
        let signal = queue.signal(Work::Flush { index }, chain.len() + 1);
        if !chain.read(local, remote, signal) {
            return Err(does_not_fit());
        }
        let requests = chain.len();
        match queue.post(chain, true) {
            Ok(()) => {
                (0..requests).for_each(|_| stats.posted_bare(rail));
                Ok(())
            }
            Err(e) => comm.not_posted(rail, e),
        }
    }

    /// Marks a flush as posted.
    pub(crate) fn posted(&self, index: u8) {
        self.cells.get(index).begin();
    }

    /// Gives up stripes: their queue pairs are being destroyed. Their reads are lost.
    pub(crate) fn give_up(&mut self, stripes: RailSet) {
        if stripes.is_empty() {
            return;
        }
        let flushers = self.flushers(stripes);
        self.settling = Some(Settling::Unfenced);
        self.carried = self.carried.without(flushers);
        for (pending, settles) in self.pending.iter_mut().zip(&mut self.settles) {
            *settles |= !(*pending & flushers).is_empty();
            *pending = pending.without(flushers);
        }
    }

    /// Notes that the queue pairs of all given-up stripes are destroyed. What their adapters wrote
    /// before is in place after [`SETTLED`].
    pub(crate) fn fenced(&mut self, now: Instant) {
        if let Some(settling @ Settling::Unfenced) = &mut self.settling {
            *settling = Settling::Until(now + SETTLED);
        }
    }

    /// Uses stripes that were made again.
    pub(crate) fn revive(&mut self, stripes: RailSet, all: &[Rail]) {
        let lacking: RailSet = stripes.iter().filter(|stripe| all[*stripe].no_flush.is_some()).collect();
        self.lacking = self.lacking.without(stripes) | lacking;
    }

    /// Ends the waiting for stripes that are given up once their time has come. Calls `done` for each
    /// flush that this completes. Returns whether the waiting goes on.
    pub(crate) fn settle(&mut self, now: Instant, mut done: impl FnMut()) -> bool {
        match self.settling {
            None => return false,
            Some(Settling::Until(until)) if now >= until => self.settling = None,
            Some(_) => return true,
        }
        for index in 0..FLUSHES as u8 {
            let settled = std::mem::take(&mut self.settles[usize::from(index)]);
            if settled && self.pending[usize::from(index)].is_empty() {
                done();
                self.complete(index, 0);
            }
        }
        false
    }

    /// Posts the reads of a flush. One that is not posted is lost with its rail: the flush then
    /// waits until the rail is given up, and what its adapter wrote is in place.
    pub(crate) fn post(&self, comm: &mut Comm, index: u8, (buffer, mr): (Buffer, &Mr)) -> Fast<()> {
        // Any byte does. The size may belong to another buffer.
        let (first, rkeys) = (buffer.addr as u64, mr.rkeys());
        for rail in self.carried.without(self.lacking).iter() {
            comm.chain.clear();
            let (sink, from) = (self.sink(comm, rail), Remote { addr: first, rkey: rkeys[rail] });
            self.read_and_post(comm, rail, index, sink, from)?;
        }
        Ok(())
    }

    /// Returns the rails whose read is outstanding.
    pub(crate) fn awaited(&self, index: u8) -> RailSet {
        self.pending[usize::from(index)]
    }

    /// Returns whether a flush is under way.
    pub(crate) fn is_pending(&self, index: u8) -> bool {
        !self.awaited(index).is_empty() || self.settles[usize::from(index)]
    }

    /// Handles the completion of one rail's read. Returns `true` if it completes the flush.
    pub(crate) fn read(&mut self, rail: usize, index: u8) -> bool {
        let was_pending = self.is_pending(index);
        self.pending[usize::from(index)].remove(rail);
        let done = was_pending && !self.is_pending(index);
        if done {
            self.complete(index, 1);
        }
        done
    }

    fn complete(&self, index: u8, copies: usize) {
        let cell = self.cells.get(index);
        match self.is_copy[usize::from(index)] {
            true => cell.complete_one(copies),
            false => cell.complete(&[]),
        }
    }
}

/// Returns why none of the rails that live can copy, if they cannot.
#[cold]
fn cannot_copy(all: &[Rail]) -> Option<Error> {
    let leading = || all.iter().filter(|rail| rail.is_alive() && leads(rail));
    if leading().any(|rail| rail.flush.is_some()) {
        return None;
    }
    let rail = leading().next()?;
    let (name, why) = (rail.nic.name(), rail.no_flush.as_deref()?);
    Some(Error::Usage(format!(
        "{name} cannot write to a GPU of this host, since the adapter does not reach itself: {why}. Allow \
         loopback (hairpin) on the adapter and its switch port, or use another adapter"
    )))
}

#[cold]
fn does_not_fit() -> Box<Error> {
    Error::Internal("a read did not fit into its chain".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAIL: RailSet = RailSet::of(0);

    fn flushes() -> Flushes {
        Flushes::new(Cells::new(), 0, &[])
    }

    fn begun(flushes: &mut Flushes) -> u8 {
        let index = flushes.begin().unwrap().expect("something to wait for");
        flushes.posted(index);
        index
    }

    /// Returns how many flushes are done.
    fn settle(flushes: &mut Flushes, now: Instant) -> usize {
        let mut done = 0;
        flushes.settle(now, || done += 1);
        done
    }

    /// It may have written a part of a message whose immediate never came.
    //= receives.md: a flush waits for the last writes of a rail that is given up
    #[test]
    fn a_rail_that_was_given_up_settles_although_nothing_arrived_on_it() {
        let (mut flushes, now) = (flushes(), Instant::now());
        assert_eq!(flushes.begin().unwrap(), None);
        flushes.give_up(RAIL);
        let index = begun(&mut flushes);
        assert_eq!(settle(&mut flushes, now + 2 * SETTLED), 0, "its queue pairs are not destroyed");
        flushes.fenced(now);
        assert_eq!(settle(&mut flushes, now), 0);
        assert!(flushes.is_pending(index));
        assert_eq!(settle(&mut flushes, now + SETTLED), 1);
        assert!(!flushes.is_pending(index));
        assert_eq!(flushes.begin().unwrap(), None);
    }

    #[test]
    fn data_of_a_rail_that_returns_at_once_is_read() {
        let (mut flushes, now) = (flushes(), Instant::now());
        flushes.carried(0);
        let old = begun(&mut flushes);
        flushes.give_up(RAIL);
        flushes.fenced(now);
        flushes.carried(0);
        let new = begun(&mut flushes);
        assert_eq!((flushes.awaited(old), flushes.awaited(new)), (RailSet::EMPTY, RAIL));
        assert_eq!(settle(&mut flushes, now + SETTLED), 1);
        assert!(!flushes.is_pending(old) && flushes.is_pending(new), "its read is outstanding");
        assert!(flushes.read(0, new));
        assert_ne!(flushes.begin().unwrap(), None, "the rail has carried data");
    }

    #[test]
    fn a_read_before_the_time_completes_no_flush_that_settles() {
        let (mut flushes, now) = (flushes(), Instant::now());
        flushes.give_up(RAIL);
        flushes.carried(0);
        let index = begun(&mut flushes);
        assert!(!flushes.read(0, index));
        flushes.fenced(now);
        assert_eq!(settle(&mut flushes, now + SETTLED), 1);
    }
}
