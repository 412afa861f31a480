//! What is in flight at a sender: its groups by slot, and its sends by request.

use mpib_proto::{ImmLayout, MAX_RAILS, MAX_RECVS, RailSet, SLOTS, Sequence, SizeQ, Split, rails};
use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::failover::Posted;
use crate::transport::request::Cells;
use crate::transport::send::cts_fifo::Target;
use crate::verbs::{Local, Remote};

/// Sends in flight at most, and so requests of a sending comm: NCCL has at most 32 operations in
/// flight, each of up to 8 sends.
pub(crate) const SENDS: usize = 32 * MAX_RECVS;

/// The groups and sends in flight, and the group that is being matched.
#[derive(Debug)]
pub(crate) struct Window {
    /// The group that the next send matches.
    seq: Sequence,
    cells: Cells<SENDS>,
    /// Where the search for a free request begins.
    next: u8,
    /// Sends in flight.
    in_flight: usize,
    /// By request.
    sends: Box<[Matched; SENDS]>,
    /// By request: how those that say so are split. Empty on a single rail, which splits nothing.
    splits: Box<[Split]>,
    /// By slot: the groups in flight, and the one that is being matched.
    groups: Box<[Group; SLOTS]>,
    /// The sends of the group that is being matched, by receive.
    ops: Box<[SendOp; MAX_RECVS]>,
}

/// What remains of a send once it is matched: all that its completion needs, and what is needed to
/// send it again.
// Aligned: its size is then a power of two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Matched {
    addr: usize,
    /// The length in bytes.
    len: usize,
    /// The slot of its group.
    slot: u8,
    /// Whether `splits` has an entry for this send. Otherwise it went whole on one rail.
    is_split: bool,
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
    /// Parts whose completion is outstanding; none before the group is posted.
    pending: RailSet,
    /// Receives that have been matched by a send, one bit each.
    matched: u8,
    /// Receives in the group.
    count: u8,
    /// The parts that were posted.
    parts: RailSet,
    /// The parts that were posted again on other rails.
    moved: RailSet,
    /// The send that matches each receive.
    sends: [u8; MAX_RECVS],
}

impl Window {
    /// `several`: whether the connection has several rails.
    pub(super) fn new(cells: Cells<SENDS>, several: bool) -> Self {
        Self {
            seq: Sequence::FIRST,
            cells,
            next: 0,
            in_flight: 0,
            sends: Box::new([Matched::default(); SENDS]),
            splits: vec![Split::NONE; if several { SENDS } else { 0 }].into(),
            groups: Box::new([Group::default(); SLOTS]),
            ops: Box::new([SendOp::NONE; MAX_RECVS]),
        }
    }

    /// Returns the sequence number of the group that the next send matches.
    #[inline(always)]
    pub(super) fn seq(&self) -> Sequence {
        self.seq
    }

    /// Returns how many sends are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether a request is in flight.
    #[inline]
    pub(super) fn is_pending(&self, index: u8) -> bool {
        self.cells.get(index).is_in_flight()
    }

    /// Returns the rails whose completions a request waits for. A send whose group is not posted yet
    /// waits for none. Parts that are sent again may be on any rail.
    #[inline]
    pub(super) fn awaited(&self, index: u8) -> RailSet {
        let group = self.group(self.sends[usize::from(index)].slot);
        if group.moved.is_empty() { group.pending } else { RailSet::ALL }
    }

    /// Returns whether the next send can be a group of one: nothing of its group has been matched or
    /// is in flight, and the next request is free.
    #[inline(always)]
    pub(super) fn takes_single(&self) -> bool {
        let group = &self.groups[usize::from(self.seq.slot())];
        group.is_untouched() && self.cells.get(self.next).is_free()
    }

    /// Begins a group of one that goes whole on one rail, the only one of `carriers`, if the window
    /// [takes it](Self::takes_single). Returns the request.
    #[inline(always)]
    pub(super) fn begin_whole(&mut self, buffer: Buffer, carriers: RailSet) -> u8 {
        self.begin_single(buffer, carriers, false)
    }

    /// Begins a group of one that is split, if the window [takes it](Self::takes_single). Returns the
    /// request.
    #[inline(always)]
    pub(super) fn begin_split(&mut self, buffer: Buffer, split: &Split) -> u8 {
        let is_split = self.keep(self.next, split);
        self.begin_single(buffer, split.rails(), is_split)
    }

    /// Keeps the split of a send. Returns `false` on a single rail, where none is kept.
    #[inline(always)]
    fn keep(&mut self, index: u8, split: &Split) -> bool {
        self.splits.get_mut(usize::from(index)).map(|kept| *kept = *split).is_some()
    }

    #[inline(always)]
    fn begin_single(&mut self, Buffer { addr, len }: Buffer, parts: RailSet, is_split: bool) -> u8 {
        let (slot, index) = (self.seq.slot(), self.next);
        self.cells.get(index).begin();
        self.in_flight += 1;
        self.next = Cells::<SENDS>::after(index);
        let group = &mut self.groups[usize::from(slot)];
        (group.count, group.sends[0]) = (1, index);
        group.mark_posted(parts);
        self.seq = self.seq.next();
        self.sends[usize::from(index)] = Matched { addr, len, slot, is_split };
        index
    }

    /// Returns whether the slot of the group that is being matched is free.
    pub(super) fn has_slot(&self) -> bool {
        self.group(self.seq.slot()).pending.is_empty()
    }

    /// Returns the receives of the present group that have been matched, and their number in all, if
    /// some have.
    pub(super) fn met(&self) -> Option<(u8, u8)> {
        let group = self.group(self.seq.slot());
        (group.matched != 0).then_some((group.matched, group.count))
    }

    /// Returns a free request.
    pub(super) fn find_free(&mut self) -> Option<u8> {
        self.cells.find_free(&mut self.next)
    }

    /// Matches a send with receive `place` of the `count` of the present group. Returns whether it
    /// was the last one: the group is to be posted.
    pub(super) fn match_send(&mut self, index: u8, (place, count): (usize, usize), op: &SendOp) -> bool {
        let slot = self.seq.slot();
        let is_split = self.keep(index, &op.split);
        let Buffer { addr, len } = op.buffer;
        self.sends[usize::from(index)] = Matched { addr, len, slot, is_split };
        self.ops[place] = *op;
        let group = &mut self.groups[usize::from(slot)];
        group.count = count as u8;
        group.sends[place] = index;
        group.matched |= 1 << place;
        u32::from(group.matched) == (1 << group.count) - 1
    }

    /// Takes a match back: there is no room to post the group.
    pub(super) fn unmatch(&mut self, place: usize) {
        self.groups[usize::from(self.seq.slot())].matched &= !(1 << place);
    }

    /// Puts the request of a matched send in flight.
    pub(super) fn begin(&mut self, index: u8) {
        self.cells.get(index).begin();
        self.in_flight += 1;
    }

    /// Returns the group that is being matched, with its sends.
    pub(super) fn matched(&self) -> (Group, &[SendOp]) {
        let group = *self.group(self.seq.slot());
        (group, &self.ops[..usize::from(group.count).min(MAX_RECVS)])
    }

    /// Returns how many sends of the group that is being matched have data on a rail.
    pub(super) fn waiting(&self, rail: usize) -> u32 {
        self.places().filter(|place| self.ops[*place].split.bytes(rail) > 0).count() as u32
    }

    /// Yields the receives of the present group that have been matched.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> + use<> {
        rails(self.group(self.seq.slot()).matched)
    }

    /// Returns the send that is matched with a receive of the present group.
    pub(super) fn op(&mut self, place: usize) -> &mut SendOp {
        &mut self.ops[place]
    }

    /// Keeps the new split of a send of the present group.
    pub(super) fn split_again(&mut self, place: usize, split: Split) {
        self.ops[place].split = split;
        let index = self.groups[usize::from(self.seq.slot())].sends[place];
        self.keep(index, &split);
    }

    /// Marks the present group as posted in these parts, before the first post, and returns its sends.
    /// The next send matches the next group.
    pub(super) fn post_group(&mut self, parts: RailSet) -> &[SendOp] {
        let group = &mut self.groups[usize::from(self.seq.slot())];
        group.mark_posted(parts);
        self.seq = self.seq.next();
        &self.ops[..usize::from(group.count).min(MAX_RECVS)]
    }

    /// Returns a group in flight.
    #[inline(always)]
    pub(super) fn group(&self, slot: u8) -> &Group {
        &self.groups[usize::from(slot) % SLOTS]
    }

    /// Returns the bytes of a group's part, of sends that are split.
    pub(super) fn bytes(&self, slot: u8, part: usize) -> usize {
        let splits = self.group(slot).members().filter_map(|index| self.splits.get(index));
        splits.map(|split| split.bytes(part)).sum()
    }

    /// Handles the completion of a part. Calls `done` with the size of each send before that completes.
    /// Returns `false` if the part is not outstanding.
    #[inline(always)]
    pub(super) fn sent(&mut self, slot: u8, part: usize, done: impl Fn(usize)) -> bool {
        let group = &mut self.groups[usize::from(slot) % SLOTS];
        if !group.pending.contains(part) {
            return false;
        }
        group.pending.remove(part);
        match (group.pending.is_empty(), group.count) {
            (true, 1) => {
                let first = group.sends[0];
                self.complete(first, &done);
            }
            (true, _) => self.complete_group(slot, &done),
            _ => {}
        }
        true
    }

    /// Completes a send: its last part has completed.
    #[inline(always)]
    fn complete(&mut self, index: u8, done: &impl Fn(usize)) {
        let size = self.sends[usize::from(index)].len;
        done(size);
        self.cells.get(index).complete_one(size);
        self.in_flight -= 1;
        if self.in_flight == 0 {
            // The first requests are the ones in the processor's caches.
            self.next = 0;
        }
    }

    #[inline(never)]
    fn complete_group(&mut self, slot: u8, done: &impl Fn(usize)) {
        let group = *self.group(slot);
        group.members().for_each(|index| self.complete(index as u8, done));
    }

    /// Returns the groups that are posted and not completed.
    pub(super) fn open(&self, layout: ImmLayout) -> Vec<Posted> {
        let open = self.seq.predecessors().filter(|seq| !self.group(seq.slot()).pending.is_empty());
        open.map(|seq| {
            let size = self.size_of(seq, layout).bytes();
            Posted { seq, mask: self.group(seq.slot()).parts.bits(), size: size.map(|bytes| bytes as u64) }
        })
        .collect()
    }

    /// Returns the size of a posted group as its immediates state it.
    pub(super) fn size_of(&self, seq: Sequence, layout: ImmLayout) -> SizeQ {
        let group = self.group(seq.slot());
        group.size(layout, self.sends[usize::from(group.sends[0])].len)
    }

    /// Makes lost parts of an open group outstanding until the receiver has judged them.
    pub(super) fn lose(&mut self, seq: Sequence, lost: RailSet) {
        self.groups[usize::from(seq.slot())].pending |= lost;
    }

    /// Of the lost parts of an open group, only those that are sent again stay outstanding. Calls
    /// `done` with the size of each send before that completes.
    pub(super) fn judge(&mut self, seq: Sequence, (lost, again): (RailSet, RailSet), done: impl Fn(usize)) {
        let group = &mut self.groups[usize::from(seq.slot())];
        group.pending = group.pending.without(lost) | again;
        group.moved |= again;
        if group.pending.is_empty() {
            self.complete_group(seq.slot(), &done);
        }
    }

    /// Yields the buffer and the split of each send of a posted group. Those that were not split went
    /// whole on the rail of `part`.
    pub(super) fn posted(&self, seq: Sequence, part: usize) -> impl Iterator<Item = (Buffer, Split)> + '_ {
        self.group(seq.slot()).members().map(move |index| {
            let Matched { addr, len, is_split, .. } = self.sends[index];
            let mut split = Split::NONE;
            match is_split {
                true => split = self.splits[index],
                false => split.whole(len, part),
            }
            (Buffer { addr, len }, split)
        })
    }
}

impl Group {
    /// Yields the indices of the group's sends.
    #[inline]
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> + Clone {
        let sends = self.sends;
        sends.into_iter().take(usize::from(self.count)).map(usize::from)
    }

    /// Returns the part that leads: its write carries the completion record.
    pub(super) fn leader(&self) -> Option<usize> {
        self.parts.lowest()
    }

    /// Returns whether the slot is free and none of its receives has been matched: one comparison of
    /// two bytes.
    #[inline(always)]
    fn is_untouched(&self) -> bool {
        u16::from_ne_bytes([self.pending.bits(), self.matched]) == 0
    }

    #[inline]
    fn mark_posted(&mut self, parts: RailSet) {
        (self.pending, self.matched, self.parts, self.moved) = (parts, 0, parts, RailSet::EMPTY);
    }

    /// Returns the group's size as its immediates state it. `first` is the size of its first send in
    /// bytes.
    #[inline]
    pub(super) fn size(&self, layout: ImmLayout, first: usize) -> SizeQ {
        if self.count == 1 { layout.size(first) } else { SizeQ::RECORD }
    }
}

impl SendOp {
    pub(super) const NONE: Self = Self {
        buffer: Buffer { addr: 0, len: 0 },
        lkeys: [0; MAX_RAILS],
        target: Target::NONE,
        split: Split::NONE,
        profiler: ProfilerHandle::NONE,
    };

    /// Returns the local and the remote side of a part.
    #[inline]
    pub(super) fn ends(&self, rail: usize, offset: usize, len: usize) -> (Local, Remote) {
        let addr = (self.buffer.addr + offset) as u64;
        // The length fits: a port's largest message is a 32-bit number.
        let local = Local { addr, len: len as u32, lkey: self.lkeys[rail] };
        let addr = self.target.addr.wrapping_add(offset as u64);
        (local, Remote { addr, rkey: self.target.rkey(rail) })
    }
}
