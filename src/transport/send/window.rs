//! The sends in flight, and their groups.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::proto::{ImmLayout, MAX_RAILS, MAX_RECVS, SizeQ, Split};
use crate::transport::send::cts_fifo::Target;
use crate::verbs::{Local, Remote};

/// Sends in flight at most, and so requests of a sending comm: NCCL has at most 32 operations in
/// flight, each of up to 8 sends.
pub(crate) const SENDS: usize = 32 * MAX_RECVS;

/// What remains of a send once it is matched: all that its completion needs, and what is needed to
/// send it again.
// Aligned: its size is then a power of two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
pub(crate) struct Matched {
    pub(crate) addr: usize,
    /// The length in bytes.
    pub(crate) len: usize,
    /// The slot of its group.
    pub(crate) slot: u8,
    /// Whether `splits` has an entry for this send. Otherwise it went whole on one rail.
    pub(crate) is_split: bool,
}

impl Matched {
    pub(crate) fn buffer(&self) -> Buffer {
        Buffer { addr: self.addr, len: self.len }
    }
}

/// Keeps the split of a send. Returns `false` on a single rail, where nothing is kept.
pub(crate) fn keep(splits: &mut [Split], index: u8, split: Split) -> bool {
    let place = splits.get_mut(usize::from(index));
    place.map(|place| *place = split).is_some()
}

/// A send until its group is posted. Only one group is matched at a time, so a comm needs one for
/// each receive of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendOp {
    pub(crate) buffer: Buffer,
    pub(crate) lkeys: [u32; MAX_RAILS],
    pub(crate) target: Target,
    pub(crate) split: Split,
    pub(crate) profiler: ProfilerHandle,
}

/// The sends that match one group of receives.
// Aligned: its size is then a power of two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(16))]
pub(crate) struct Group {
    /// Parts whose completion is outstanding; 0 before the group is posted.
    pub(crate) pending: u8,
    /// Receives that have been matched by a send, one bit each.
    pub(crate) matched: u8,
    /// Receives in the group.
    pub(crate) count: u8,
    /// The parts that were posted.
    pub(crate) mask: u8,
    /// The parts that were posted again on other rails.
    pub(crate) moved: u8,
    /// The send that matches each receive.
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
    /// Yields the indices of the group's sends.
    #[inline]
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> + Clone {
        self.sends.iter().take(usize::from(self.count)).map(|index| usize::from(*index))
    }

    /// Returns the group's sends, which are matched and not posted yet.
    #[inline]
    pub(crate) fn ops<'a>(&self, ops: &'a [SendOp; MAX_RECVS]) -> &'a [SendOp] {
        &ops[..usize::from(self.count).min(MAX_RECVS)]
    }

    /// Returns whether the slot is free and none of its receives has been matched: one comparison of
    /// two bytes.
    #[inline(always)]
    pub(crate) fn is_untouched(&self) -> bool {
        u16::from_ne_bytes([self.pending, self.matched]) == 0
    }

    /// Marks the group as posted on `mask`. Must be called before the first post; the next send then
    /// matches the next group.
    #[inline]
    pub(crate) fn mark_posted(&mut self, mask: u8) {
        (self.pending, self.matched, self.mask, self.moved) = (mask, 0, mask, 0);
    }

    /// Returns the group's size as its immediates state it. `first` is the size of its first send in
    /// bytes.
    #[inline]
    pub(crate) fn size(&self, layout: ImmLayout, first: usize) -> SizeQ {
        if self.count == 1 { layout.size(first) } else { SizeQ::RECORD }
    }

    /// Returns whether each receive has been matched.
    #[inline]
    pub(crate) fn is_matched(&self) -> bool {
        u32::from(self.matched) == (1 << self.count) - 1
    }
}

impl SendOp {
    /// Returns the local and the remote side of a part.
    #[inline]
    pub(crate) fn ends(&self, rail: usize, offset: usize, len: usize) -> (Local, Remote) {
        let addr = (self.buffer.addr + offset) as u64;
        // The length fits: a port's largest message is a 32-bit number.
        let local = Local { addr, len: len as u32, lkey: self.lkeys[rail] };
        let addr = self.target.addr.wrapping_add(offset as u64);
        (local, Remote { addr, rkey: self.target.rkey(rail) })
    }
}
