//! NCCL's operations in the page: those of each communicator in turn, and the slowest ones.
//!
//! Threads of the application begin operations, NCCL's proxy threads count what they move. Nothing here
//! waits: numbers are added, and a place that is still in use is not taken.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::layout::{Page, Text};
use super::{
    Generation, STATS_COMMUNICATOR_SIZE, STATS_OPERATION_SIZE, STATS_OPERATIONS, STATS_RAILS, STATS_SLOWEST,
};

/// The time for which the slowest operation is kept, at least.
const SLOWEST_FOR: u64 = 60_000_000_000;

/// Value of [`OperationRecord::running`] while the place is being taken: no part of it begins.
const TAKEN: u32 = u32::MAX;

/// Returns the time of CLOCK_MONOTONIC in ns, without a system call where the kernel offers that. All
/// processes of a host have the same.
pub fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()));
    (time.0 as u64).wrapping_mul(1_000_000_000).wrapping_add(time.1 as u64)
}

/// A communicator in the page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CommunicatorRecord {
    pub(super) generation: Generation,
    id: AtomicU64,
    since: AtomicU64,
    /// Operations so far.
    begun: AtomicU64,
    /// Of these, operations that were not recorded.
    dropped: AtomicU64,
    rank: AtomicU32,
    ranks: AtomicU32,
    name: Text<8>,
    /// Number of the port record, from 1, of each rail of its operations; 0 if it is free.
    ports: [AtomicU32; STATS_RAILS],
    /// Since when `slowest[0]` is collected.
    window: AtomicU64,
    has_messages: AtomicBool,
    /// Held while `slowest` is written.
    slowing: AtomicBool,
    _pad: AtomicU32,
    _free: [AtomicU64; 12],
    pub(super) slowest: [OperationRecord; STATS_SLOWEST],
    pub(super) operations: [OperationRecord; STATS_OPERATIONS],
}

/// An operation in the page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct OperationRecord {
    pub(super) generation: Generation,
    sequence: AtomicU64,
    asked: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    bytes: AtomicU64,
    name: Text<2>,
    algorithm: Text<2>,
    protocol: Text<1>,
    channels: AtomicU32,
    /// Parts of it that NCCL's proxy has begun and not ended, or [`TAKEN`]. It decides who has the place:
    /// it is taken from 0 alone.
    running: AtomicU32,
    /// What the header has when its data begins to move, and what was added until it ended.
    episodes: [AtomicU64; 2],
    stalled: [AtomicU64; 2],
    rails: [RailRecord; STATS_RAILS],
}

/// What an operation has sent on a rail.
#[derive(Debug)]
#[repr(C)]
struct RailRecord {
    bytes: AtomicU64,
    in_flight: AtomicU64,
}

const _: () = {
    assert!(size_of::<CommunicatorRecord>() == STATS_COMMUNICATOR_SIZE);
    assert!(size_of::<OperationRecord>() == STATS_OPERATION_SIZE);
    assert!(offset_of!(CommunicatorRecord, name) == 48 && offset_of!(CommunicatorRecord, ports) == 112);
    assert!(offset_of!(CommunicatorRecord, slowest) == STATS_OPERATION_SIZE);
    assert!(offset_of!(OperationRecord, name) == 48 && offset_of!(OperationRecord, channels) == 88);
    assert!(offset_of!(OperationRecord, episodes) == 96 && offset_of!(OperationRecord, rails) == 128);
};

/// The communicators of this process in its page.
#[derive(Debug, Clone, Copy)]
pub struct Operations(&'static Page);

/// A new operation.
#[derive(Debug, Clone, Copy)]
pub struct NewOperation<'a> {
    /// Its number among those of its kind.
    pub sequence: u64,
    /// What it is, such as `AllReduce`.
    pub name: &'a str,
    /// How NCCL does it, such as `RING`; empty if it has none.
    pub algorithm: &'a str,
    /// Its protocol, such as `SIMPLE`; empty if it has none.
    pub protocol: &'a str,
    /// Bytes of the count that the program passes, of a reduce-scatter those that a rank receives; 0 if
    /// that is unknown.
    pub bytes: u64,
    /// Channels.
    pub channels: u32,
}

/// Where an operation is. It may have been overwritten meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationPlace {
    /// The communicator, below [`STATS_COMMUNICATORS`](super::STATS_COMMUNICATORS).
    pub communicator: usize,
    /// The place, below [`STATS_OPERATIONS`].
    pub index: usize,
    /// The use of the place, without the bits above those of [`Self::USE`].
    pub generation: u64,
}

impl OperationPlace {
    /// The bits of the generation by which uses differ.
    pub const USE: u64 = (1 << 14) - 1;
}

impl Operations {
    pub(super) fn new(page: &'static Page) -> Self {
        Self(page)
    }

    /// Returns the process of the page.
    pub fn pid(self) -> u32 {
        self.0.header.pid.load(Ordering::Relaxed)
    }

    /// Takes a place for a communicator; `None` if all are in use. `has_messages`: what it sends is
    /// counted by message.
    pub fn open(self, id: u64, name: &str, (rank, ranks): (u32, u32), has_messages: bool) -> Option<usize> {
        // Threads of several GPUs make communicators at the same time.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |record: &&CommunicatorRecord| record.generation.number().is_multiple_of(2);
        let index = self.0.communicators.iter().position(|record| is_free(&record))?;
        let record = &self.0.communicators[index];
        let odd = record.generation.prepare(record.generation.number());
        for (place, value) in [
            (&record.id, id),
            (&record.since, super::writer::now()),
            (&record.begun, 0),
            (&record.dropped, 0),
            (&record.window, 0),
        ] {
            place.store(value, Ordering::Relaxed);
        }
        record.rank.store(rank, Ordering::Relaxed);
        record.ranks.store(ranks, Ordering::Relaxed);
        record.has_messages.store(has_messages, Ordering::Relaxed);
        record.slowing.store(false, Ordering::Relaxed);
        record.name.write(name);
        record.ports.iter().for_each(|port| port.store(0, Ordering::Relaxed));
        for operation in record.slowest.iter().chain(&record.operations) {
            operation.free();
        }
        record.generation.publish(odd);
        Some(index)
    }

    /// Frees the place of a communicator.
    pub fn close(self, communicator: usize) {
        let Some(record) = self.0.communicators.get(communicator) else { return };
        let number = record.generation.number();
        if !number.is_multiple_of(2) {
            record.generation.free(number);
        }
    }

    /// Sets the id and the rank of a communicator, which some releases name with each operation.
    pub fn identify(self, communicator: usize, id: u64, rank: u32, name: &str) {
        let Some(record) = self.open_record(communicator) else { return };
        if record.id.swap(id, Ordering::Relaxed) != id {
            record.rank.store(rank, Ordering::Relaxed);
            record.name.write(name);
        }
    }

    /// Begins an operation in the place of the oldest one. `None` if that one is not over: the operation
    /// is counted alone.
    pub fn begin(self, communicator: usize, new: &NewOperation<'_>) -> Option<OperationPlace> {
        let record = self.open_record(communicator)?;
        let number = record.begun.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(number % STATS_OPERATIONS as u64).unwrap_or(0);
        let operation = &record.operations[index];
        // The time of the last part comes before.
        if operation.running.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            record.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        record.remember(operation);
        let odd = operation.reset(new);
        operation.generation.publish(odd);
        // A part that begins from here on sees the generation.
        operation.running.store(0, Ordering::Release);
        Some(OperationPlace { communicator, index, generation: odd & OperationPlace::USE })
    }

    /// Counts a part of an operation that NCCL's proxy begins. Returns whether the operation is still
    /// there.
    pub fn part_begins(self, place: OperationPlace) -> bool {
        let Some((record, operation)) = self.operation(place) else { return false };
        let more = |running: u32| running.checked_add(1).filter(|more| *more != TAKEN);
        if operation.running.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_err() {
            return false;
        }
        // While it runs nobody takes the place. It may have been taken just before.
        if self.operation(place).is_none() {
            operation.part_is_over();
            return false;
        }
        if !record.has_messages.load(Ordering::Relaxed) {
            self.moves(operation);
        }
        true
    }

    /// Counts a part that has ended.
    pub fn part_ends(self, place: OperationPlace) {
        let Some((_, operation)) = self.operation(place) else { return };
        self.ends(operation);
        operation.part_is_over();
    }

    /// Counts bytes that an operation sends on the port with this number of its record, from 1. Returns
    /// the rail, for [`sent`](Self::sent); `None` if the operation or room for the port is not there.
    pub fn sends(self, place: OperationPlace, port: u32, bytes: u64) -> Option<usize> {
        let (record, operation) = self.operation(place)?;
        self.moves(operation);
        let rail = record.rail(port)?;
        operation.rails[rail].bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(rail)
    }

    /// Adds the time for which a message was in flight on a rail.
    pub fn sent(self, place: OperationPlace, rail: usize, time: Duration) {
        let Some((_, operation)) = self.operation(place) else { return };
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(rail) = operation.rails.get(rail) {
            rail.in_flight.fetch_add(nanos, Ordering::Relaxed);
        }
        self.ends(operation);
    }

    /// Records that a message of an operation has arrived.
    pub fn received(self, place: OperationPlace) {
        let Some((_, operation)) = self.operation(place) else { return };
        self.moves(operation);
        self.ends(operation);
    }

    /// Records that the data of an operation moves.
    fn moves(self, operation: &OperationRecord) {
        if operation.begun.load(Ordering::Relaxed) != 0 {
            return;
        }
        let now = monotonic();
        if operation.begun.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let header = &self.0.header;
            operation.episodes[0].store(header.episodes.load(Ordering::Relaxed), Ordering::Relaxed);
            operation.stalled[0].store(header.stalled.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn ends(self, operation: &OperationRecord) {
        // NCCL has reported no message of it: nothing says when its data moved.
        if operation.begun.load(Ordering::Relaxed) == 0 {
            return;
        }
        let header = &self.0.header;
        for ([before, during], now) in
            [(&operation.episodes, &header.episodes), (&operation.stalled, &header.stalled)]
        {
            let more = now.load(Ordering::Relaxed).wrapping_sub(before.load(Ordering::Relaxed));
            during.store(more, Ordering::Relaxed);
        }
        operation.ended.fetch_max(monotonic(), Ordering::Relaxed);
    }

    fn open_record(self, communicator: usize) -> Option<&'static CommunicatorRecord> {
        let record = self.0.communicators.get(communicator)?;
        (!record.generation.number().is_multiple_of(2)).then_some(record)
    }

    fn operation(
        self,
        place: OperationPlace,
    ) -> Option<(&'static CommunicatorRecord, &'static OperationRecord)> {
        let record = self.open_record(place.communicator)?;
        let operation = record.operations.get(place.index)?;
        let is_same = operation.generation.number() & OperationPlace::USE == place.generation;
        is_same.then_some((record, operation))
    }
}

impl CommunicatorRecord {
    /// Returns the rail of a port, which is added if there is room; `None` of 0, no port.
    fn rail(&self, port: u32) -> Option<usize> {
        if port == 0 {
            return None;
        }
        self.ports.iter().position(|place| match place.load(Ordering::Relaxed) {
            0 => {
                let taken = place.compare_exchange(0, port, Ordering::Relaxed, Ordering::Relaxed);
                taken.is_ok() || taken == Err(port)
            }
            taken => taken == port,
        })
    }

    /// Keeps an operation that is to be overwritten if it is the slowest one.
    fn remember(&self, operation: &OperationRecord) {
        let (took, ended) = (operation.took(), operation.ended.load(Ordering::Relaxed));
        if took == 0 || self.slowing.swap(true, Ordering::Acquire) {
            return;
        }
        let [this, last] = &self.slowest;
        let is_over = ended.saturating_sub(self.window.load(Ordering::Relaxed)) > SLOWEST_FOR;
        if is_over {
            last.copy_from(this);
            self.window.store(ended, Ordering::Relaxed);
        }
        if is_over || took > this.took() {
            this.copy_from(operation);
        }
        self.slowing.store(false, Ordering::Release);
    }
}

impl OperationRecord {
    /// Returns how long its data moved, in ns; 0 if it did not.
    fn took(&self) -> u64 {
        let begun = self.begun.load(Ordering::Relaxed);
        let took = self.ended.load(Ordering::Relaxed).saturating_sub(begun);
        if begun == 0 || self.generation.number().is_multiple_of(2) { 0 } else { took }
    }

    fn part_is_over(&self) {
        let less = |running: u32| running.checked_sub(1).filter(|_| running != TAKEN);
        // It is 0 if the place has another operation, whose number has the same lower bits.
        let _ = self.running.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }

    fn free(&self) {
        let number = self.generation.number();
        if !number.is_multiple_of(2) {
            self.generation.free(number);
        }
        self.running.store(0, Ordering::Relaxed);
    }

    /// Makes it a new operation. Returns its generation, which is to be published.
    fn reset(&self, new: &NewOperation<'_>) -> u64 {
        let odd = self.generation.prepare(even(self.generation.number()));
        self.words().for_each(|word| word.store(0, Ordering::Relaxed));
        self.sequence.store(new.sequence, Ordering::Relaxed);
        self.asked.store(super::writer::now(), Ordering::Relaxed);
        self.bytes.store(new.bytes, Ordering::Relaxed);
        self.name.write(new.name);
        self.algorithm.write(new.algorithm);
        self.protocol.write(new.protocol);
        self.channels.store(new.channels, Ordering::Relaxed);
        odd
    }

    /// Makes it the same operation as another one.
    fn copy_from(&self, other: &Self) {
        let odd = self.generation.prepare(even(self.generation.number()));
        for (place, from) in self.words().zip(other.words()) {
            place.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.channels.store(other.channels.load(Ordering::Relaxed), Ordering::Relaxed);
        if other.generation.number().is_multiple_of(2) {
            self.generation.free(odd);
        } else {
            self.generation.publish(odd);
        }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let times = [&self.sequence, &self.asked, &self.begun, &self.ended, &self.bytes];
        let texts = [self.name.words(), self.algorithm.words(), self.protocol.words()];
        let failover = self.episodes.iter().chain(&self.stalled);
        let rails = self.rails.iter().flat_map(|rail| [&rail.bytes, &rail.in_flight]);
        times.into_iter().chain(texts.into_iter().flatten()).chain(failover).chain(rails)
    }
}

fn even(number: u64) -> u64 {
    number.wrapping_add(number % 2)
}

/// A communicator, as it was at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Communicator {
    /// NCCL's number of it, equal on all ranks.
    pub id: u64,
    /// Its name in the program; empty if it has none.
    pub name: String,
    /// The rank of this process.
    pub rank: u32,
    /// Number of ranks; 0 if the release does not name it.
    pub ranks: u32,
    /// Since when the process has it, ns since 1970.
    pub since: u64,
    /// Operations so far.
    pub begun: u64,
    /// Of these, operations that were not recorded, since too many others were not over.
    pub dropped: u64,
    /// The last operations, in the order in which they were asked for.
    pub operations: Vec<Operation>,
    /// The slowest operations of about the last minute that are not among the last ones.
    pub slowest: Vec<Operation>,
}

/// An operation, as it was at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operation {
    /// Its number among those of its kind.
    pub sequence: u64,
    /// What it is, such as `AllReduce`.
    pub name: String,
    /// How NCCL does it, such as `RING`; empty if it has none.
    pub algorithm: String,
    /// Its protocol, such as `SIMPLE`; empty if it has none.
    pub protocol: String,
    /// Bytes of the count that the program passes, of a reduce-scatter those that a rank receives; 0 if
    /// that is unknown.
    pub bytes: u64,
    /// Channels.
    pub channels: u32,
    /// When the program asked for it, ns since 1970.
    pub asked: u64,
    /// When its first data moved, in ns of [`monotonic`]; `None` if NCCL has reported none.
    pub begun: Option<u64>,
    /// When its last data moved, likewise.
    pub ended: Option<u64>,
    /// Whether NCCL's proxy works on it.
    pub is_running: bool,
    /// Failover episodes of the process while its data moved.
    pub episodes: u64,
    /// Stalls of these, in ns.
    pub stalled: u64,
    /// What it has sent, by rail.
    pub rails: Vec<OperationRail>,
}

/// What an operation has sent on a rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationRail {
    /// Index of its port in [`Statistics::ports`](super::Statistics::ports).
    pub port: usize,
    /// Bytes.
    pub bytes: u64,
    /// Sum of the times for which its messages were in flight, in ns.
    pub in_flight: u64,
}

impl Communicator {
    /// Reads a copy.
    pub(super) fn of(record: &CommunicatorRecord) -> Self {
        let ports = record.ports.each_ref().map(|port| port.load(Ordering::Relaxed));
        let read = |all: &[OperationRecord]| -> Vec<Operation> {
            let mut all: Vec<_> = all.iter().filter_map(|record| Operation::of(record, &ports)).collect();
            all.sort_by_key(|operation| (operation.asked, operation.sequence));
            all
        };
        Self {
            id: record.id.load(Ordering::Relaxed),
            name: record.name.read(),
            rank: record.rank.load(Ordering::Relaxed),
            ranks: record.ranks.load(Ordering::Relaxed),
            since: record.since.load(Ordering::Relaxed),
            begun: record.begun.load(Ordering::Relaxed),
            dropped: record.dropped.load(Ordering::Relaxed),
            operations: read(&record.operations),
            slowest: read(&record.slowest),
        }
    }
}

impl Operation {
    /// Reads a copy; `None` if the place is free.
    fn of(record: &OperationRecord, ports: &[u32; STATS_RAILS]) -> Option<Self> {
        let number = |place: &AtomicU64| place.load(Ordering::Relaxed);
        if record.generation.number().is_multiple_of(2) {
            return None;
        }
        let rail = |(rail, port): (&RailRecord, &u32)| {
            let port = (*port as usize).checked_sub(1)?;
            Some(OperationRail { port, bytes: number(&rail.bytes), in_flight: number(&rail.in_flight) })
        };
        Some(Self {
            sequence: number(&record.sequence),
            name: record.name.read(),
            algorithm: record.algorithm.read(),
            protocol: record.protocol.read(),
            bytes: number(&record.bytes),
            channels: record.channels.load(Ordering::Relaxed),
            asked: number(&record.asked),
            begun: Some(number(&record.begun)).filter(|begun| *begun > 0),
            ended: Some(number(&record.ended)).filter(|ended| *ended > 0),
            is_running: record.running.load(Ordering::Relaxed) > 0,
            episodes: number(&record.episodes[1]),
            stalled: number(&record.stalled[1]),
            rails: record.rails.iter().zip(ports).filter_map(rail).filter(|rail| rail.bytes > 0).collect(),
        })
    }

    /// Returns how long its data moved, in ns; `None` if it did not, or if the operation is not over.
    pub fn took(&self) -> Option<u64> {
        self.ended?.checked_sub(self.begun?).filter(|_| !self.is_running)
    }
}
