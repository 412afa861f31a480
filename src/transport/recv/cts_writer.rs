//! Writes CTS entries into the sender's FIFO: a single one inline, those of a larger group from this
//! end's control memory.

use std::sync::atomic::{AtomicU64, Ordering};

use mpib_proto::{
    CTS_BYTES, CTS_WORDS, Cts, MAX_RAILS, RECORDS_BYTES, RailSet, SLOTS, Sequence, checksum_of_keys,
};
use nccl_net_versions::{Buffer, NetPlugin, RecvBuffer};

use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::rail::Rail;
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Local, Remote, WordsWrite};

/// Index of the queue pair that carries all CTS writes. One queue pair keeps them in order, and one
/// completion covers all earlier ones.
pub(crate) const CTS_QUEUE: usize = 0;

/// Writes the CTS entries of one comm. Those that do not go inline lie behind the completion
/// records of the control memory, in the layout of the sender's FIFO.
#[derive(Debug)]
pub(crate) struct CtsWriter {
    /// The next group whose entries must be written again, if any must.
    again: Option<Sequence>,
    /// The rail that carries the writes.
    rail: usize,
    /// The rail that carries them unless it is dead.
    home: usize,
    /// Whether the writes must go back there.
    wants_home: bool,
    /// Every n-th write is signalled.
    signal_interval: u32,
    /// Whether the queue pair takes an entry inline.
    inline: bool,
    /// The sender's FIFO.
    fifo: Remote,
    /// Keeps the entries of groups of one, by slot.
    words: WordsWrite<SLOTS>,
}

impl CtsWriter {
    pub(crate) fn new(comm: &Comm) -> Self {
        let mut writer = Self {
            again: None,
            rail: 0,
            home: comm.rails.iter().position(|r| r.role == comm.plan.cts()).unwrap_or(0),
            wants_home: false,
            signal_interval: 1,
            inline: false,
            fifo: Remote { addr: comm.remote.addr, rkey: 0 },
            words: WordsWrite::new(),
        };
        let living = comm.living();
        let other = living.lowest().filter(|_| !living.contains(writer.home));
        writer.use_rail(comm, other.unwrap_or(writer.home));
        writer
    }

    /// Writes over this rail from now on, which must be alive.
    fn use_rail(&mut self, comm: &Comm, rail: usize) {
        let queue = comm.rails.get(rail).and_then(|r| r.send_queues.get(CTS_QUEUE));
        // At least twice per queue: a queue full of unsignalled writes would never drain.
        let depth = queue.map_or(2, SendQueue::send_depth);
        self.signal_interval = (depth / 2).max(1);
        self.wants_home = false;
        self.inline = queue.is_some_and(|queue| queue.inline() >= CTS_BYTES);
        (self.rail, self.fifo.rkey) = (rail, comm.remote.rkeys[rail]);
    }

    /// If the rail is dead, the entries of all groups from `first` on, whose data is outstanding, must
    /// be [written again](Self::write_again), over another one.
    pub(crate) fn leave_dead_rail(&mut self, comm: &Comm, first: Sequence) {
        if !comm.living().contains(self.rail) {
            self.rewrite(first);
            self.use_living_rail(comm, RailSet::EMPTY);
        }
    }

    /// If the rail is dead, or among those that were made again, writes over the first living one from
    /// now on, if there is one.
    pub(crate) fn use_living_rail(&mut self, comm: &Comm, renewed: RailSet) {
        let usable = comm.living().without(renewed);
        if let Some(rail) = comm.living().lowest().filter(|_| !usable.contains(self.rail)) {
            self.use_rail(comm, rail);
        }
    }

    /// The entries of all groups from `first` on must be [written again](Self::write_again).
    pub(crate) fn rewrite(&mut self, first: Sequence) {
        self.again = Some(self.again.map_or(first, |again| again.min(first)));
    }

    /// Returns the checksum of the keys in the entries of a group of `count` receives.
    pub(crate) fn checksum_of_keys(&self, comm: &Comm, seq: Sequence, count: usize) -> u32 {
        self.stage(comm, seq);
        (0..count).fold(0, |sum, index| checksum_of_keys(sum, staged(comm, seq, index)))
    }

    /// Returns whether entries must be written again.
    pub(crate) fn is_behind(&self) -> bool {
        self.again.is_some()
    }

    /// Writes the entries of groups before `next` again as far as the send queue has room; none while
    /// no rail lives. `counts` returns the number of receives of a group.
    pub(crate) fn write_again(
        &mut self,
        comm: &mut Comm,
        next: Sequence,
        counts: impl Fn(Sequence) -> usize,
    ) -> Result<(), NotPosted> {
        if !comm.living().contains(self.rail) {
            return Ok(());
        }
        while let Some(seq) = self.again.filter(|seq| *seq < next) {
            if !self.has_room(comm) {
                return Ok(());
            }
            self.stage(comm, seq);
            let queue = self.queue(&mut comm.rails);
            let signalled = seq.next() == next || queue.uncovered() + 1 >= self.signal_interval;
            let signal = signalled.then(|| queue.signal(Work::Cts, 1));
            self.post_staged(comm, seq, counts(seq), signal)?;
            comm.stats.posted_bare(self.rail);
            self.again = Some(seq.next());
        }
        self.again = None;
        Ok(())
    }

    /// Stores the entry of a group in the control memory if it went inline so far.
    pub(crate) fn stage(&self, comm: &Comm, seq: Sequence) {
        let places = staged(comm, seq, 0);
        let staged = u64::from_le(places[CTS_WORDS - 1].load(Ordering::Relaxed));
        if staged != seq.number() {
            let words = self.words.kept(seq.slot().into());
            places.iter().zip(words).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        }
    }

    /// Sets the key of a rail in a staged entry. Returns whether it was another one.
    pub(crate) fn set_key(
        &self,
        comm: &Comm,
        (seq, index): (Sequence, usize),
        rail: usize,
        key: u32,
    ) -> bool {
        let word = &staged(comm, seq, index)[Cts::KEYS + rail / 2];
        let (keys, shift) = (u64::from_le(word.load(Ordering::Relaxed)), rail % 2 * 32);
        let other = keys & !(u64::from(u32::MAX) << shift);
        word.store((other | u64::from(key) << shift).to_le(), Ordering::Relaxed);
        (keys >> shift) as u32 != key
    }

    /// Makes the writes go back to their own rail when it is alive, and when all that are in flight
    /// have completed. Until then each is signalled.
    pub(crate) fn want_home(&mut self, comm: &Comm) {
        self.wants_home = self.rail != self.home && comm.living().contains(self.home);
        if self.wants_home {
            self.signal_interval = 1;
        }
    }

    /// Returns the rail to go back to, if the writes must.
    #[inline]
    pub(crate) fn wanted_home(&self) -> Option<usize> {
        self.wants_home.then_some(self.home)
    }

    /// Goes back. All writes over the present rail have completed.
    pub(crate) fn go_home(&mut self, comm: &Comm) {
        self.use_rail(comm, self.home);
    }

    /// Returns whether the send queue has room for one more write.
    #[inline]
    pub(crate) fn has_room(&self, comm: &Comm) -> bool {
        comm.rails[self.rail].send_queues[CTS_QUEUE].room() > 0
    }

    /// Returns the rail that carries the writes.
    #[inline(always)]
    pub(crate) fn rail(&self) -> usize {
        self.rail
    }

    /// Returns the send queue of all writes.
    #[inline(always)]
    pub(crate) fn queue<'a>(&self, rails: &'a mut [Rail]) -> &'a mut SendQueue {
        &mut rails[self.rail].send_queues[CTS_QUEUE]
    }

    /// Returns whether the next write can go inline and unsignalled, and there is room for it.
    #[inline(always)]
    pub(crate) fn is_simple(&self, queue: &SendQueue) -> bool {
        self.inline && queue.room() > 0 && queue.uncovered() + 1 < self.signal_interval
    }

    /// Writes the one CTS entry of a group, inline. If `signal` is given, the write is signalled with
    /// that `wr_id`. If it fails, the entry is lost with its rail, and written again on another.
    #[inline(always)]
    pub(crate) fn write_inline(
        &mut self,
        queue: &mut SendQueue,
        seq: Sequence,
        buffer: Buffer,
        tag: i32,
        rkeys: &[u32; MAX_RAILS],
        signal: Option<u64>,
    ) -> Result<(), NotPosted> {
        let words = entry(seq, buffer, tag, rkeys, (1, 0)).words().map(u64::to_le);
        let Remote { addr, rkey } = self.fifo;
        let to = Remote { addr: addr + seq.cts_offset(0) as u64, rkey };
        self.words.set(seq.slot().into(), words, to, signal);
        queue.post_words(&mut self.words, signal.is_some())
    }

    /// Writes the CTS entries of a group. `events`: whether to start the profiler events of its
    /// receives.
    pub(crate) fn post<P: NetPlugin<Mr = Mr>>(
        &mut self,
        comm: &mut Comm,
        seq: Sequence,
        buffers: &[RecvBuffer<'_, P>],
        events: bool,
    ) -> Result<(), NotPosted> {
        for (i, b) in buffers.iter().enumerate() {
            if events && CommProfiler::should_report(&mut comm.profiler, b.profiler) {
                CommProfiler::start_receive(comm, seq.slot(), i, b.profiler);
            }
        }
        let queue = self.queue(&mut comm.rails);
        let signalled = queue.uncovered() + 1 >= self.signal_interval;
        let signal = signalled.then(|| queue.signal(Work::Cts, 1));
        match buffers {
            [one] if self.inline => self.write_inline(queue, seq, one.buffer, one.tag, rkeys(one), signal)?,
            several => self.write_staged(comm, seq, several, signal)?,
        }
        comm.stats.posted_bare(self.rail);
        Ok(())
    }

    /// Writes the CTS entries of a group from the control memory, where they lie in the layout of the
    /// sender's FIFO.
    fn write_staged<P: NetPlugin<Mr = Mr>>(
        &self,
        comm: &mut Comm,
        seq: Sequence,
        buffers: &[RecvBuffer<'_, P>],
        signal: Option<u64>,
    ) -> Result<(), NotPosted> {
        let count = buffers.len();
        for (index, b) in buffers.iter().enumerate() {
            let words = entry(seq, b.buffer, b.tag, rkeys(b), (count as u8, index as u8)).words();
            let places = staged(comm, seq, index).iter();
            places.zip(words).for_each(|(place, word)| place.store(word.to_le(), Ordering::Relaxed));
        }
        self.post_staged(comm, seq, count, signal)
    }

    /// Writes the staged entries of a group.
    fn post_staged(
        &self,
        comm: &mut Comm,
        seq: Sequence,
        count: usize,
        signal: Option<u64>,
    ) -> Result<(), NotPosted> {
        let offset = seq.cts_offset(0);
        let start = (RECORDS_BYTES + offset) / 8;
        let Comm { rails, region, chain, .. } = comm;
        let to = Remote { addr: self.fifo.addr + offset as u64, rkey: self.fifo.rkey };
        let lkey = region.mrs()[self.rail].lkey();
        let from = Local { addr: region.addr(start) as u64, len: (count * CTS_BYTES) as u32, lkey };
        chain.clear();
        if !chain.write(Some(from), to, None, signal) {
            return Err(NotPosted::internal("a CTS write did not fit into its chain"));
        }
        self.queue(rails).post(chain, signal.is_some())
    }
}

/// Returns entry `index` of a group, which has `count` receives.
#[inline(always)]
fn entry(
    seq: Sequence,
    Buffer { addr, len }: Buffer,
    tag: i32,
    rkeys: &[u32; MAX_RAILS],
    (count, index): (u8, u8),
) -> Cts {
    Cts { addr: addr as u64, size: len as u64, rkeys: *rkeys, tag, count, index, seq: seq.number() }
}

/// Returns the words of an entry of a group in the control memory.
fn staged(comm: &Comm, seq: Sequence, index: usize) -> &[AtomicU64; CTS_WORDS] {
    let start = (RECORDS_BYTES + seq.cts_offset(index)) / 8;
    &comm.region.words()[start..].as_chunks().0[0]
}

/// Returns the remote keys of a receive. An empty one needs none.
fn rkeys<'a, P: NetPlugin<Mr = Mr>>(recv: &RecvBuffer<'a, P>) -> &'a [u32; MAX_RAILS] {
    recv.mr.map_or(&[0; MAX_RAILS], Mr::rkeys)
}
