//! Writes CTS entries: into this end's control memory, and from there into the sender's FIFO.

use std::sync::atomic::Ordering;

use nccl_net_versions::{Buffer, NetPlugin, RecvBuffer};

use crate::config::Config;
use crate::error::{Error, Fast};
use crate::proto::{CTS_BYTES, CTS_WORDS, Cts, MAX_RAILS, MAX_RECVS, RECORDS_BYTES, SLOTS, Sequence};
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::recv::profiling;
use crate::transport::recv::slot::Slot;
use crate::transport::work::Work;
use crate::verbs::{Local, Remote};

/// Index of the queue pair that carries all CTS writes. One queue pair keeps them in order, and one
/// completion covers all earlier ones.
pub(crate) const CTS_QUEUE: usize = 0;

/// Writes the CTS entries of one comm. They lie behind the completion records of the control
/// memory, in the layout of the sender's FIFO.
#[derive(Debug)]
pub(crate) struct CtsWriter {
    /// Sequence number of the next group.
    seq: Sequence,
    /// The rail that carries the writes.
    rail: usize,
    /// Every n-th write is signalled.
    signal_interval: u32,
}

impl CtsWriter {
    pub(crate) fn new(comm: &Comm, config: &Config) -> Self {
        // At least twice per queue: a queue full of unsignalled writes would never drain.
        let rail = comm.rails.iter().position(|r| r.role == comm.plan.cts()).unwrap_or(0);
        let depth = comm.rails.get(rail).map_or(2, |r| r.send_queues[CTS_QUEUE].send_depth());
        let signal_interval = config.cts_signal_interval.min(depth / 2).max(1);
        Self { seq: Sequence::FIRST, rail, signal_interval }
    }

    /// Returns the sequence number of the next group.
    #[inline]
    pub(crate) fn next(&self) -> Sequence {
        self.seq
    }

    /// Returns the latest receive into the buffer at `addr`, unless 256 others have followed.
    pub(crate) fn latest_into(&self, comm: &Comm, addr: usize) -> Option<Sequence> {
        let words = comm.region.words();
        let word = |at: usize| u64::from_le(words[at].load(Ordering::Relaxed));
        let is_into = |seq: Sequence, index: usize| {
            let entry = (RECORDS_BYTES + seq.cts_offset(index)) / 8;
            word(entry) == addr as u64 && word(entry + CTS_WORDS - 1) == seq.number()
        };
        let all = (1..=SLOTS as u64).map(|n| self.seq.before(n));
        all.into_iter().find(|seq| (0..MAX_RECVS).any(|index| is_into(*seq, index)))
    }

    /// Returns whether the send queue has room for one more write.
    #[inline]
    pub(crate) fn has_room(&self, comm: &Comm) -> bool {
        comm.rails[self.rail].send_queues[CTS_QUEUE].room() > 0
    }

    /// Writes the CTS entries of the next group and advances the sequence number. `events`: whether
    /// to start the profiler events of its receives.
    #[inline(always)]
    pub(crate) fn post<P: NetPlugin<Mr = Mr>>(
        &mut self,
        comm: &mut Comm,
        slot: &mut Slot,
        buffers: &[RecvBuffer<'_, P>],
        events: bool,
    ) -> Fast<()> {
        match buffers {
            [one] => {
                if events && CommProfiler::should_report(&mut comm.profiler, one.profiler) {
                    profiling::start(comm, self.seq.slot(), 0, one.profiler);
                }
                let words = self.stage(comm, slot, 0, one, 1);
                self.write(comm, 1, Some(&words))?;
            }
            several => self.post_several(comm, slot, several)?,
        }
        self.seq = self.seq.next();
        Ok(())
    }

    #[inline(never)]
    fn post_several<P: NetPlugin<Mr = Mr>>(
        &self,
        comm: &mut Comm,
        slot: &mut Slot,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Fast<()> {
        for (i, b) in buffers.iter().enumerate() {
            if CommProfiler::should_report(&mut comm.profiler, b.profiler) {
                profiling::start(comm, self.seq.slot(), i, b.profiler);
            }
            self.stage(comm, slot, i, b, buffers.len());
        }
        self.write(comm, buffers.len(), None)
    }

    /// Stores one entry in the control memory, where it stays as long as its receive, and returns
    /// its words.
    #[inline]
    fn stage<P: NetPlugin<Mr = Mr>>(
        &self,
        comm: &Comm,
        slot: &mut Slot,
        index: usize,
        recv: &RecvBuffer<'_, P>,
        count: usize,
    ) -> [u64; CTS_WORDS] {
        let Buffer { addr, len } = recv.buffer;
        slot.set_room(index, len);
        let cts = Cts {
            addr: addr as u64,
            size: len as u64,
            rkeys: *recv.mr.map_or(&[0; MAX_RAILS], Mr::rkeys),
            tag: recv.tag,
            count: count as u8,
            index: index as u8,
            seq: self.seq.number(),
        };
        let words = cts.words().map(u64::to_le);
        let start = (RECORDS_BYTES + self.seq.cts_offset(index)) / 8;
        for (place, word) in comm.region.words()[start..start + CTS_WORDS].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        words
    }

    /// Posts one write with the entries of the whole group. If `one` is given, its words go inline
    /// where the queue pair has room for them; all else is read from the control memory.
    #[inline(always)]
    fn write(&self, comm: &mut Comm, count: usize, one: Option<&[u64; CTS_WORDS]>) -> Fast<()> {
        let offset = self.seq.cts_offset(0);
        let Comm { rails, region, remote, chain, stats, .. } = comm;
        let queue = &mut rails[self.rail].send_queues[CTS_QUEUE];
        let to = Remote { addr: remote.addr + offset as u64, rkey: remote.rkeys[self.rail] };
        let signalled = queue.uncovered() + 1 >= self.signal_interval;
        let signal = signalled.then(|| queue.signal(Work::Cts, 1));
        chain.clear();
        let fitted = match one {
            Some(words) if queue.inline() >= CTS_BYTES => chain.write_inline(words, to, signal),
            _ => {
                let addr = region.addr((RECORDS_BYTES + offset) / 8) as u64;
                let lkey = region.mrs()[self.rail].lkey();
                chain.write(Some(Local { addr, len: (count * CTS_BYTES) as u32, lkey }), to, None, signal)
            }
        };
        if !fitted {
            return Err(no_fit());
        }
        queue.post(chain, signalled)?;
        stats.posted_bare(self.rail);
        Ok(())
    }
}

#[cold]
fn no_fit() -> Box<Error> {
    Error::Internal("a CTS write did not fit into its chain".into()).into()
}
