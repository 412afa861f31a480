//! What is in flight at a receiver: its groups by slot, and the checks of what the peer sends for them.

use std::sync::atomic::Ordering;

use mpib_proto::{
    Arrivals, Imm, ImmLayout, MAX_RECVS, OpenGroup, RECORD_BYTES, RailSet, Record, RecordError, SLOTS,
    Sequence, SizeQ, Step, Violation,
};
use nccl_net_versions::Buffer;

use crate::failover::Held;
use crate::transport::request::Cells;
use crate::transport::request::cell::RequestCell;
use crate::verbs::Region;

/// The groups in flight of a receiver. The index of a receive's request is its slot.
#[derive(Debug)]
pub(super) struct Window {
    /// The next group.
    seq: Sequence,
    cells: Cells<SLOTS>,
    slots: Box<[Slot; SLOTS]>,
    /// Slots whose data is outstanding.
    outstanding: usize,
    /// Of these, the slots whose request has completed ahead of the data.
    ahead: usize,
    /// Groups that may begin before the receives of the rails are looked at again.
    credit: usize,
}

/// The oldest group with a part that has arrived and another one that has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incomplete {
    pub(super) seq: Sequence,
    /// The parts that have arrived.
    pub(super) got: RailSet,
    /// The others.
    pub(super) missing: RailSet,
}

/// One group of receives.
// In this order: all that a group of one needs is in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Slot {
    count: u8,
    arrivals: Arrivals,
    /// The first immediate of several.
    first: u32,
    size: SizeQ,
    /// The buffer of each receive.
    buffers: [Buffer; MAX_RECVS],
}

/// The placeholder for unused entries.
const NO_BUFFER: Buffer = Buffer { addr: 0, len: 0 };

/// Why an immediate breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArrivalError {
    #[error("an immediate that no sender makes")]
    Word,
    #[error("data arrived for slot {0}, where no receive waits")]
    Idle(u8),
    #[error("data for slot {0} arrived on a queue pair that does not carry it")]
    Queue(u8),
    #[error("slot {0}: rails carry different sizes, {1:?} and {2:?}")]
    Sizes(u8, SizeQ, SizeQ),
    #[error("slot {0}: a group of {1} receives got one size")]
    OneSize(u8, u8),
    #[error("slot {0}: {1}")]
    Mask(u8, Violation),
    #[error("slot {slot}: {size} bytes arrived for a receive of {room}")]
    TooLarge { slot: u8, size: usize, room: usize },
    #[error("slot {0}: {1}")]
    Record(u8, RecordError),
    #[error("slot {0}: part {1} was sent again and not requested")]
    Unrequested(u8, u8),
}

impl Window {
    pub(super) fn new(cells: Cells<SLOTS>) -> Self {
        Self {
            seq: Sequence::FIRST,
            cells,
            slots: Box::new([Slot::EMPTY; SLOTS]),
            outstanding: 0,
            ahead: 0,
            credit: 0,
        }
    }

    /// Returns the sequence number of the next group.
    #[inline(always)]
    pub(super) fn next(&self) -> Sequence {
        self.seq
    }

    /// Returns how many slots have data outstanding.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns whether a request has completed ahead of data that is still outstanding.
    #[inline]
    pub(super) fn awaits_data(&self) -> bool {
        self.ahead > 0
    }

    /// Returns whether the request of a slot is in flight.
    #[inline]
    pub(super) fn is_pending(&self, slot: u8) -> bool {
        self.cells.get(slot).is_in_flight()
    }

    /// Returns whether the slot of the next group is free.
    #[inline(always)]
    pub(super) fn has_slot(&self) -> bool {
        self.cells.get(self.seq.slot()).is_free()
    }

    /// Returns whether a group may begin without another look at the receives of the rails.
    #[inline(always)]
    pub(super) fn has_credit(&self) -> bool {
        self.credit != 0
    }

    /// Sets how many groups may begin before the receives must be looked at again.
    pub(super) fn set_credit(&mut self, credit: usize) {
        self.credit = credit;
    }

    /// Begins a group of at most [`MAX_RECVS`] receives, with a slot and credit, before the peer learns
    /// of it. Returns its sequence number.
    #[inline(always)]
    pub(super) fn begin(&mut self, buffers: impl ExactSizeIterator<Item = Buffer>) -> Sequence {
        let seq = self.seq;
        let slot = &mut self.slots[usize::from(seq.slot()) % SLOTS];
        slot.begin(buffers.len());
        buffers.enumerate().for_each(|(index, buffer)| slot.set_buffer(index, buffer));
        self.cells.get(seq.slot()).begin();
        self.outstanding += 1;
        self.credit -= 1;
        self.seq = seq.next();
        seq
    }

    /// Completes a request ahead of its data.
    #[inline]
    pub(super) fn complete_ahead(&mut self, slot: u8) {
        self.cells.get(slot).complete_ahead();
        self.ahead += 1;
    }

    /// Takes the completions ahead of data back that NCCL has not collected.
    pub(super) fn revoke(&self) {
        self.cells.iter().for_each(RequestCell::revoke);
    }

    /// Handles the only immediate of a group of one that is in flight. Otherwise returns `false` and
    /// changes nothing.
    #[inline(always)]
    pub(super) fn arrived_whole(&mut self, slot: u8, rail: usize, size: usize) -> bool {
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        self.cells.get(slot).is_in_flight() && place.arrived_whole(rail, size)
    }

    /// Completes a group of one that is in flight.
    #[inline(always)]
    pub(super) fn complete_one(&mut self, slot: u8, size: usize) {
        self.cells.get(slot).complete_one(size);
        self.outstanding -= 1;
    }

    /// Handles an immediate. Returns the size once all parts of its group have arrived:
    /// [`complete`](Self::complete) must follow. An error has changed nothing.
    #[inline(always)]
    pub(super) fn arrived(
        &mut self,
        layout: ImmLayout,
        word: u32,
        rail: usize,
    ) -> Result<Option<SizeQ>, ArrivalError> {
        let slot = word as u8;
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        let imm = layout.decode(word).ok_or(ArrivalError::Word)?;
        let request = self.cells.get(slot);
        if !request.is_in_flight() && !request.awaits_data() {
            return Err(ArrivalError::Idle(slot));
        }
        place.arrived(imm, word, rail)
    }

    /// Handles an immediate of a group of one that is in flight, whose size it contains. Returns the
    /// size once all parts of the group have arrived: [`complete_one`](Self::complete_one) must follow.
    /// In all other cases returns `None` and changes nothing: see [`arrived`](Self::arrived).
    #[inline(always)]
    pub(super) fn arrived_part(
        &mut self,
        layout: ImmLayout,
        word: u32,
        rail: usize,
    ) -> Option<Option<usize>> {
        let slot = word as u8;
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        if self.cells.get(slot).is_in_flight() { place.arrived_part(layout, word, rail) } else { None }
    }

    /// Handles the arrival of a part that another rail carried. Returns the size once all parts have
    /// arrived: [`complete`](Self::complete) must follow.
    pub(super) fn arrived_again(&mut self, slot: u8, part: u8) -> Result<Option<SizeQ>, ArrivalError> {
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        let (_, missing) = place.parts();
        if !missing.contains(part.into()) {
            return Err(ArrivalError::Unrequested(slot, part));
        }
        Ok(place.add(RailSet::of(part.into())))
    }

    /// Learns the parts of an open group from the sender's STATE. The lost ones that are `done` count
    /// as arrived. Returns the size as [`arrived`](Self::arrived) does.
    pub(super) fn learn(
        &mut self,
        layout: ImmLayout,
        group: &OpenGroup,
        done: RailSet,
    ) -> Result<Option<SizeQ>, ArrivalError> {
        let slot = group.seq.slot();
        let bytes = group.size.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let size = bytes.map_or(SizeQ::RECORD, |bytes| layout.size(bytes));
        if bytes != size.bytes() {
            return Err(ArrivalError::Word);
        }
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        place.learn(slot, group.mask, size)?;
        Ok(if done.is_empty() { None } else { place.add(done) })
    }

    /// Completes the request of a slot whose parts have all arrived. The completion record lies in the
    /// control memory. Calls `done` with the number and the bytes of its messages.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        slot: u8,
        size: SizeQ,
        region: &Region,
        done: impl Fn(usize, usize),
    ) -> Result<(), ArrivalError> {
        let request = self.cells.get(slot);
        let Some(size) = size.bytes() else { return self.complete_recorded(slot, region, done) };
        done(1, size);
        self.outstanding -= 1;
        match request.is_in_flight() {
            true => request.complete_one(size),
            false => {
                request.data_arrived(size);
                self.ahead -= 1;
            }
        }
        Ok(())
    }

    /// Completes the request of a slot whose sizes are in its completion record.
    #[inline(never)]
    fn complete_recorded(
        &mut self,
        slot: u8,
        region: &Region,
        done: impl Fn(usize, usize),
    ) -> Result<(), ArrivalError> {
        let (request, place) = (self.cells.get(slot), &self.slots[usize::from(slot) % SLOTS]);
        let record = Record::decode(&read_record(region, slot), &place.rooms()[..place.count()]);
        let record = record.map_err(|e| ArrivalError::Record(slot, e))?;
        let bytes = record.sizes().iter().sum();
        done(record.sizes().len(), bytes);
        self.outstanding -= 1;
        match request.is_in_flight() {
            true => request.complete(record.sizes()),
            false => {
                request.data_arrived(bytes);
                self.ahead -= 1;
            }
        }
        Ok(())
    }

    /// Yields the groups that a slot still describes, the newest first.
    pub(super) fn groups(&self) -> impl Iterator<Item = Sequence> + use<> {
        self.seq.predecessors()
    }

    /// Returns the oldest group whose data is outstanding, or the next group if there is none.
    pub(super) fn oldest_outstanding(&self) -> Sequence {
        self.groups().filter(|seq| self.is_outstanding(*seq)).last().unwrap_or(self.seq)
    }

    /// Returns whether data of a group is outstanding.
    pub(super) fn is_outstanding(&self, seq: Sequence) -> bool {
        let is_in_its_slot = self.seq.number() - seq.number() <= SLOTS as u64;
        let request = self.cells.get(seq.slot());
        is_in_its_slot && (request.is_in_flight() || request.awaits_data())
    }

    /// Returns what has arrived of a group.
    pub(super) fn held(&self, seq: Sequence) -> Held {
        if !self.is_outstanding(seq) {
            return Held::Whole;
        }
        let given_back = self.cells.get(seq.slot()).awaits_data();
        let mut later = self.groups().take_while(|later| *later > seq);
        let used = given_back && later.any(|later| self.of(later).overlaps(self.of(seq)));
        Held::Parts { got: self.of(seq).arrivals.seen(), given_back, used }
    }

    /// Returns the oldest group that has one part and lacks another that `counts`.
    pub(super) fn oldest_incomplete(&self, counts: impl Fn(usize) -> bool) -> Option<Incomplete> {
        if self.outstanding == 0 {
            return None;
        }
        let incomplete = |seq: Sequence| {
            let (got, missing) = self.of(seq).parts();
            let missing: RailSet = missing.iter().filter(|rail| counts(*rail)).collect();
            let lacks = !got.is_empty() && !missing.is_empty() && self.is_outstanding(seq);
            lacks.then_some(Incomplete { seq, got, missing })
        };
        self.groups().filter_map(incomplete).last()
    }

    /// Returns the rails that carried the data of the newest group with a buffer at `addr`, if a slot
    /// still describes it.
    pub(super) fn carriers_into(&self, addr: usize) -> Option<RailSet> {
        let slot = self.groups().map(|seq| self.of(seq)).find(|slot| slot.is_into(addr));
        slot.map(|slot| RailSet::from_bits(slot.arrivals.seen()))
    }

    /// Returns the buffers of a group.
    pub(super) fn buffers(&self, seq: Sequence) -> &[Buffer] {
        self.of(seq).buffers()
    }

    fn of(&self, seq: Sequence) -> &Slot {
        &self.slots[usize::from(seq.slot()) % SLOTS]
    }
}

/// Reads the completion record of a slot. It is complete: the leader's immediate arrived after it.
fn read_record(region: &Region, slot: u8) -> [u8; RECORD_BYTES] {
    let start = usize::from(slot) * RECORD_BYTES / 8;
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(&region.words()[start..]) {
        place.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
    }
    bytes
}

impl Slot {
    pub(super) const EMPTY: Self = Self {
        count: 0,
        arrivals: Arrivals::NONE,
        first: 0,
        size: SizeQ::RECORD,
        buffers: [NO_BUFFER; MAX_RECVS],
    };

    /// Starts a group of at most [`MAX_RECVS`] receives. [`set_buffer`](Self::set_buffer) must follow
    /// for each.
    #[inline]
    pub(super) fn begin(&mut self, count: usize) {
        (self.count, self.arrivals, self.first) = (count as u8, Arrivals::NONE, 0);
    }

    /// Sets the buffer of one receive.
    #[inline]
    pub(super) fn set_buffer(&mut self, index: usize, buffer: Buffer) {
        self.buffers[index] = buffer;
    }

    /// Returns the buffer of each receive.
    fn buffers(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.count)]
    }

    /// Returns the number of receives.
    pub(super) fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns the buffer size of each receive. Those beyond the group's [`count`](Self::count) mean
    /// nothing.
    pub(super) fn rooms(&self) -> [usize; MAX_RECVS] {
        self.buffers.map(|buffer| buffer.len)
    }

    /// Returns whether the buffer of a receive of the group begins at `addr`.
    fn is_into(&self, addr: usize) -> bool {
        self.buffers().iter().any(|buffer| buffer.addr == addr)
    }

    /// Returns the rails whose parts have arrived, and those of the other parts that an immediate has
    /// announced.
    fn parts(&self) -> (RailSet, RailSet) {
        let got = RailSet::from_bits(self.arrivals.seen());
        (got, RailSet::from_bits(self.arrivals.expected()).without(got))
    }

    /// Handles the only immediate of a group of one, which arrived on `rail`. Otherwise returns
    /// `false` and changes nothing.
    #[inline(always)]
    pub(super) fn arrived_whole(&mut self, rail: usize, size: usize) -> bool {
        let whole = self.count == 1 && self.arrivals.expected() == 0 && size <= self.buffers[0].len;
        if whole {
            self.arrivals = Arrivals::whole(rail);
        }
        whole
    }

    /// Returns whether an immediate on `rail` is a further one of the group: they are the same word.
    /// None that has a mask is 0, and there is no first one in 0.
    #[inline(always)]
    fn is_further(&self, word: u32, rail: usize) -> bool {
        word == self.first && word != 0 && self.parts().1.contains(rail)
    }

    /// Handles an immediate that contains the size of the group, which must be in flight. Returns the
    /// size once all parts have arrived. In all other cases returns `None` and changes nothing.
    #[inline(always)]
    pub(super) fn arrived_part(
        &mut self,
        layout: ImmLayout,
        word: u32,
        rail: usize,
    ) -> Option<Option<usize>> {
        if self.is_further(word, rail) {
            let size = self.size.bytes()?;
            return Some(self.add(RailSet::of(rail)).map(|_| size));
        }
        let imm = layout.decode(word)?;
        let size = imm.size.bytes()?;
        self.arrived(imm, word, rail).ok().map(|all| all.map(|_| size))
    }

    /// Handles an immediate that arrived on `rail` for this slot, which must be in use. Returns the
    /// size once the immediates of all rails have arrived.
    pub(super) fn arrived(
        &mut self,
        imm: Imm,
        word: u32,
        rail: usize,
    ) -> Result<Option<SizeQ>, ArrivalError> {
        let Imm { slot, mask, size } = imm;
        if self.arrivals.expected() != 0 && self.size != size {
            return Err(ArrivalError::Sizes(slot, self.size, size));
        }
        self.check_size(slot, size)?;
        match self.arrivals.on_arrival(mask, rail as u8) {
            Step::Waiting => {
                (self.size, self.first) = (size, word);
                Ok(None)
            }
            Step::Violation(why) => Err(ArrivalError::Mask(slot, why)),
            Step::Complete => Ok(Some(size)),
        }
    }

    fn check_size(&self, slot: u8, size: SizeQ) -> Result<(), ArrivalError> {
        match (size.bytes(), self.buffers[0].len) {
            (Some(_), _) if self.count != 1 => Err(ArrivalError::OneSize(slot, self.count)),
            (Some(size), room) if size > room => Err(ArrivalError::TooLarge { slot, size, room }),
            _ => Ok(()),
        }
    }

    /// Learns the parts and the size of the group from the sender's STATE.
    fn learn(&mut self, slot: u8, mask: u8, size: SizeQ) -> Result<(), ArrivalError> {
        let learned = self.arrivals.expected();
        if learned != 0 && self.size != size {
            return Err(ArrivalError::Sizes(slot, self.size, size));
        }
        if !self.arrivals.learn(mask) {
            return Err(ArrivalError::Mask(slot, Violation::Changed { learned, mask }));
        }
        self.size = size;
        self.check_size(slot, size)
    }

    /// Handles the arrival of parts that other rails were to carry. Returns the size once all parts
    /// have arrived.
    fn add(&mut self, parts: RailSet) -> Option<SizeQ> {
        self.arrivals.add(parts.bits()).then_some(self.size)
    }

    /// Returns whether the buffers of the two groups have bytes in common.
    fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: &Buffer, b: &Buffer| {
            a.len > 0
                && b.len > 0
                && a.addr < b.addr.saturating_add(b.len)
                && b.addr < a.addr.saturating_add(a.len)
        };
        self.buffers().iter().any(|ours| other.buffers().iter().any(|theirs| meet(ours, theirs)))
    }
}
