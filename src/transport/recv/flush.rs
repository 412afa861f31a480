//! Flush: makes what has arrived visible in GPU memory.
//!
//! A completion reaches the host's memory and data the GPU's, on two ways that need not be equally fast. An adapter's
//! read cannot pass its earlier writes on PCIe: once it has read any of a GPU's memory, whatever it wrote there before
//! the read is in place. So each rail that has carried data reads one byte, by a queue pair that is its own peer.

use nccl_net_versions::{Buffer, MemKind};

use crate::error::{Error, Fast};
use crate::proto::{MAX_RAILS, SLOTS, rails};
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::rail::Rail;
use crate::transport::request::{Pool, REQUESTS};
use crate::transport::work::Work;
use crate::verbs::{Local, Remote};

/// Flushes under way on one comm, at most, each with one read on a rail. NCCL has at most 32 operations under way.
pub(crate) const FLUSHES: usize = REQUESTS;

/// Bytes of a receiver's control memory where reads end: eight for each rail. Nobody looks at them.
pub(crate) const SINK_BYTES: usize = 8 * MAX_RAILS;

/// The flushes of one comm.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// Of each flush the rails whose read has not come back.
    pending: Box<[u8]>,
    /// Where to look for a free request.
    next: u8,
    /// Rails on which data has come, by the stripe that flushes them.
    carried: u8,
    /// Of each stripe the one that flushes its rail.
    flusher: [u8; MAX_RAILS],
    /// Word of the control memory where the sink begins.
    sink: usize,
}

/// Whether a comm of these rails can flush. GPU memory is registered where all adapters reach it, and then all have what a flush takes.
pub(crate) fn possible(rails: &[Rail]) -> bool {
    rails.iter().any(|rail| rail.flush.is_some())
}

/// The buffer whose memory is read: of those with data the last one in a GPU, else the last one. A comm's buffers lie
/// in one GPU, so one is enough.
pub(crate) fn target<'a>(buffers: &[(Buffer, Option<&'a Mr>)]) -> Option<(Buffer, &'a Mr)> {
    let filled = buffers.iter().filter(|(buffer, _)| buffer.len > 0);
    filled.filter_map(|(buffer, mr)| Some((*buffer, (*mr)?))).max_by_key(|(_, mr)| mr.kind() != MemKind::Host)
}

impl Flushes {
    /// `rails`: those of the comm, the stripes of each one after the other.
    pub(crate) fn new(sink: usize, rails: &[Rail]) -> Self {
        let (mut flusher, mut last) = ([0; MAX_RAILS], 0);
        for (i, (place, rail)) in flusher.iter_mut().zip(rails).enumerate() {
            if rail.flush.is_some() {
                last = i as u8;
            }
            *place = last;
        }
        Self { pending: vec![0; FLUSHES].into(), next: 0, carried: 0, flusher, sink }
    }

    /// Data has come on a stripe.
    #[inline]
    pub(crate) fn carried(&mut self, stripe: usize) {
        self.carried |= 1 << self.flusher[stripe];
    }

    /// A place for a flush; `None` where no data has ever come. An error where no more fit: a flush cannot be put off,
    /// since no request means that it is done.
    pub(crate) fn begin(&mut self, pool: &Pool) -> Fast<Option<u8>> {
        if self.carried == 0 {
            return Ok(None);
        }
        let full = || Error::Usage(format!("{FLUSHES} flushes are under way, and no more fit"));
        let index = pool.free(SLOTS, &mut self.next).ok_or_else(full)?;
        self.pending[usize::from(index)] = self.carried;
        Ok(Some(index))
    }

    /// Posts its reads.
    pub(crate) fn post(&self, comm: &mut Comm, index: u8, (buffer, mr): (Buffer, &Mr)) -> Fast<()> {
        let (last, rkeys) = ((buffer.addr + buffer.len - 1) as u64, mr.rkeys());
        for rail in rails(self.carried) {
            let Comm { rails: all, chain, region, stats, .. } = comm;
            let queue = all[rail].flush.as_mut();
            let queue =
                queue.ok_or_else(|| Error::Internal("a rail without a queue pair for flushes".into()))?;
            let sink =
                Local { addr: region.addr(self.sink + rail) as u64, len: 1, lkey: region.mrs()[rail].lkey() };
            chain.clear();
            if !chain.read(
                sink,
                Remote { addr: last, rkey: rkeys[rail] },
                queue.signal(Work::Flush { index }, 1),
            ) {
                return Err(Error::Internal("a read did not fit into its chain".into()).into());
            }
            queue.post(chain, true)?;
            stats.posted_bare(rail);
        }
        Ok(())
    }

    /// A rail's read has come back; `true` if the flush is done with that.
    pub(crate) fn read(&mut self, rail: usize, index: u8, pool: &Pool) -> bool {
        let pending = &mut self.pending[usize::from(index)];
        let before = std::mem::replace(pending, *pending & !(1 << rail));
        let done = before != 0 && *pending == 0;
        if done {
            pool.cell(SLOTS + usize::from(index)).complete(&[]);
        }
        done
    }
}
