//! What is kept of a send, and of a group of sends, until it is complete.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Fast};
use crate::proto::{MAX_RAILS, MAX_RECVS, Part, Sequence, Split};
use crate::transport::send::cts_fifo::Target;
use crate::transport::send_queue::SendQueue;
use crate::transport::work::Work;
use crate::verbs::{Chain, Local, Remote};

/// One send. All that is needed to post it again is kept until it is complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendOp {
    pub(crate) buffer: Buffer,
    pub(crate) lkeys: [u32; MAX_RAILS],
    pub(crate) target: Target,
    pub(crate) split: Split,
    pub(crate) profiler: ProfilerHandle,
}

/// The sends of a group of receives.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Group {
    /// Rails whose completion has not come; none before it is posted.
    pub(crate) pending: u8,
    /// Receives that have met their send, a bit each.
    pub(crate) met: u8,
    /// Receives in it.
    pub(crate) count: u8,
    /// The send that meets each receive.
    pub(crate) sends: [u8; MAX_RECVS],
}

pub(crate) const NO_SEND: SendOp = SendOp {
    buffer: Buffer { addr: 0, len: 0 },
    lkeys: [0; MAX_RAILS],
    target: Target::NONE,
    split: Split::NONE,
    profiler: ProfilerHandle::NONE,
};

impl Group {
    /// Its sends.
    #[inline]
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> + Clone {
        self.sends.iter().take(usize::from(self.count)).map(|index| usize::from(*index))
    }

    /// It is going to be posted on the rails of `mask`, and the next one's turn comes. To be called before anything of it can
    /// complete.
    #[inline]
    pub(crate) fn take_turn(&mut self, mask: u8, seq: &mut Sequence) {
        (self.pending, self.met) = (mask, 0);
        *seq = seq.next();
    }

    /// Whether each receive has met its send.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        u32::from(self.met) == (1 << self.count) - 1
    }
}

impl SendOp {
    /// Posts one part of a group of one, with its immediate.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        part: Part,
        queue: &mut SendQueue,
        chain: &mut Chain,
        slot: u8,
        imm: u32,
    ) -> Fast<()> {
        chain.clear();
        let (local, to) = self.ends(part.rail, part.offset, part.len);
        let signal = queue.signal(Work::Data { slot }, 1);
        if !chain.write((part.len > 0).then_some(local), to, Some(imm), Some(signal)) {
            return Err(chain_full());
        }
        queue.post(chain, true)
    }

    /// Where a part comes from, and where it goes.
    #[inline]
    pub(crate) fn ends(&self, rail: usize, offset: usize, len: usize) -> (Local, Remote) {
        let addr = (self.buffer.addr + offset) as u64;
        // No message is longer than a port's largest, which is a number of 32 bits.
        let local = Local { addr, len: len as u32, lkey: self.lkeys[rail] };
        let addr = self.target.addr.wrapping_add(offset as u64);
        (local, Remote { addr, rkey: self.target.rkey(rail) })
    }
}

/// A chain has room for the longest group.
#[cold]
pub(crate) fn chain_full() -> Box<Error> {
    Error::Internal("a group needs more work requests than a chain has".into()).into()
}
