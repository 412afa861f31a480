//! A context of GIN: a queue to NCCL's proxy for each rank, counters and signals.

use std::{
    hint, ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};

use super::{Descriptor, Operation};
use crate::layout::GinContext;

/// A context. Several threads may post to it.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    queue_size: u32,
    queues: usize,
    posted: usize,
    completed: usize,
    counters: usize,
    signals: usize,
    signal_offsets: usize,
}

/// A descriptor that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    rank: u32,
    /// How many descriptors had been posted for the rank with this one, modulo 2^32.
    position: u32,
}

impl Context {
    /// Reads a context from a copy of its structure.
    ///
    /// # Safety
    ///
    /// The structure must be one of NCCL's, whose pointers this process can follow, and which stays
    /// as long as the context is used.
    pub unsafe fn new(layout: &GinContext, structure: &[u8]) -> Self {
        Self {
            queue_size: layout.queue_size.get(structure) as u32,
            queues: layout.queues.size(structure),
            posted: layout.posted.size(structure),
            completed: layout.completed.size(structure),
            counters: layout.counters.size(structure),
            signals: layout.signals.size(structure),
            signal_offsets: layout.signal_offsets.size(structure),
        }
    }

    /// Returns an element of an array of 32 bits.
    fn word(array: usize, index: u32) -> &'static AtomicU32 {
        let at = ptr::with_exposed_provenance_mut(array + 4 * index as usize);
        // SAFETY: an element of an array of NCCL, which stays as long as the context (`new`). Kernels
        // and the proxy use it atomically.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Returns an element of an array of 64 bits.
    fn double_word(array: usize, index: usize) -> &'static AtomicU64 {
        let at = ptr::with_exposed_provenance_mut(array + 8 * index);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Posts a descriptor for a rank. Waits while the queue is full; returns `None` if `stopped` says
    /// that nobody empties it.
    pub fn post(&self, rank: u32, operation: Operation, stopped: impl Fn() -> bool) -> Option<Ticket> {
        let position = Self::word(self.posted, rank).fetch_add(1, Ordering::Relaxed);
        let completed = Self::word(self.completed, rank);
        wait(|| position.wrapping_sub(completed.load(Ordering::Acquire)) < self.queue_size, stopped)?;
        let slot = rank as usize * self.queue_size as usize + (position & (self.queue_size - 1)) as usize;
        let queue = self.queues + slot * Descriptor::SIZE;
        let Descriptor(words) = Descriptor::new(operation);
        // The proxy reads the first word first, and waits for each of the others.
        for (index, word) in words.into_iter().enumerate() {
            Self::double_word(queue, index).store(word, Ordering::Release);
        }
        Some(Ticket { rank, position: position.wrapping_add(1) })
    }

    /// Returns whether a descriptor is complete: what a put reads may change, and what a get writes
    /// has arrived.
    pub fn is_complete(&self, ticket: Ticket) -> bool {
        let completed = Self::word(self.completed, ticket.rank).load(Ordering::Acquire);
        completed.wrapping_sub(ticket.position).cast_signed() >= 0
    }

    /// Returns a counter.
    pub fn counter(&self, id: u32) -> u64 {
        Self::double_word(self.counters, id as usize).load(Ordering::Acquire)
    }

    /// Sets a counter to zero, as kernels do while nothing that counts is under way.
    pub fn reset_counter(&self, id: u32) {
        Self::double_word(self.counters, id as usize).store(0, Ordering::Release);
    }

    /// Returns a signal since it was last reset.
    pub fn signal(&self, id: u32) -> u64 {
        let offset = Self::double_word(self.signal_offsets, id as usize).load(Ordering::Relaxed);
        Self::double_word(self.signals, id as usize).load(Ordering::Acquire).wrapping_sub(offset)
    }

    /// Lets a signal begin at zero, as kernels do: the word itself only grows.
    pub fn reset_signal(&self, id: u32) {
        let value = Self::double_word(self.signals, id as usize).load(Ordering::Acquire);
        Self::double_word(self.signal_offsets, id as usize).store(value, Ordering::Relaxed);
    }
}

/// Waits for a condition, or returns `None` when `stopped` holds.
pub fn wait(mut holds: impl FnMut() -> bool, stopped: impl Fn() -> bool) -> Option<()> {
    let mut rounds = 0_u32;
    while !holds() {
        if stopped() {
            return None;
        }
        rounds = rounds.wrapping_add(1);
        // The proxy and the other ranks need the processor, too.
        if rounds.is_multiple_of(16) { thread::yield_now() } else { hint::spin_loop() }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gin::{Add, Signal},
        layout::Field,
    };

    const RANKS: u32 = 2;
    const QUEUE: u32 = 4;
    const WORDS: usize = Descriptor::SIZE / 8;

    /// A context whose other end is the test.
    struct World {
        queues: Vec<AtomicU64>,
        posted: Vec<AtomicU32>,
        completed: Vec<AtomicU32>,
        counters: Vec<AtomicU64>,
        signals: Vec<AtomicU64>,
        offsets: Vec<AtomicU64>,
    }

    impl World {
        /// Begins shortly before the counts of descriptors overflow.
        fn new() -> Self {
            let begin = || (0..RANKS).map(|_| AtomicU32::new(u32::MAX - 1)).collect();
            let zeros = |len: usize| (0..len).map(|_| AtomicU64::new(0)).collect();
            Self {
                queues: zeros((RANKS * QUEUE) as usize * WORDS),
                posted: begin(),
                completed: begin(),
                counters: zeros(2),
                signals: zeros(2),
                offsets: zeros(2),
            }
        }

        fn context(&self) -> Context {
            let field = |index: usize| Field::whole(8 * index, 8);
            let layout = GinContext {
                bytes: 56,
                ranks: Field::whole(0, 4),
                queue_size: Field::whole(4, 4),
                queues: field(1),
                posted: field(2),
                completed: field(3),
                counters: field(4),
                signals: field(5),
                signal_offsets: field(6),
            };
            let words = |array: &[AtomicU64]| array.as_ptr().expose_provenance() as u64;
            let halves = |array: &[AtomicU32]| array.as_ptr().expose_provenance() as u64;
            let pointers = [
                words(&self.queues),
                halves(&self.posted),
                halves(&self.completed),
                words(&self.counters),
                words(&self.signals),
                words(&self.offsets),
            ];
            let head = u64::from(QUEUE) << 32 | u64::from(RANKS);
            let bytes: Vec<u8> = [head].into_iter().chain(pointers).flat_map(u64::to_le_bytes).collect();
            // SAFETY: pointers to arrays of this world, which outlives the context in each test.
            unsafe { Context::new(&layout, &bytes) }
        }

        /// Takes a descriptor out of a queue, as the proxy does.
        fn take(&self, rank: u32, slot: u32) -> [u64; WORDS] {
            let begin = (rank * QUEUE + slot) as usize * WORDS;
            std::array::from_fn(|word| self.queues[begin + word].swap(0, Ordering::Acquire))
        }
    }

    const NEVER: fn() -> bool = || false;

    fn signal(id: u32) -> Operation {
        Operation::Signal(Signal { id, add: Add::One, strong: true })
    }

    #[test]
    fn descriptors_lie_in_the_queue_of_their_rank_one_after_the_other() {
        let world = World::new();
        let context = world.context();
        let tickets: Vec<_> = (0..4).map(|id| context.post(1, signal(id), NEVER).unwrap()).collect();
        // The positions run over the end of the count and of the queue.
        for (id, slot) in [(0, 2), (1, 3), (2, 0), (3, 1)] {
            assert_eq!(world.take(1, slot), Descriptor::new(signal(id)).0, "{id}");
            assert_eq!(world.take(0, slot), [0; WORDS]);
        }
        assert!(!context.is_complete(tickets[0]));
        world.completed[1].store(1, Ordering::Release);
        let complete: Vec<_> = tickets.iter().map(|ticket| context.is_complete(*ticket)).collect();
        assert_eq!(complete, [true, true, true, false]);
    }

    #[test]
    fn a_full_queue_is_waited_for() {
        let world = World::new();
        let context = world.context();
        (0..QUEUE).for_each(|id| assert!(context.post(0, signal(id), NEVER).is_some()));
        thread::scope(|scope| {
            let later = scope.spawn(|| context.post(0, signal(9), NEVER));
            // The count of what was posted shows that the thread waits for room.
            while world.posted[0].load(Ordering::Relaxed) != 3 {
                thread::yield_now();
            }
            assert_eq!(world.take(0, 2), Descriptor::new(signal(0)).0, "nothing is overwritten");
            world.completed[0].fetch_add(1, Ordering::Release);
            assert!(later.join().unwrap().is_some());
        });
        assert_eq!(world.take(0, 2), Descriptor::new(signal(9)).0);
        assert_eq!(context.post(0, signal(1), || true), None, "nobody empties the queue");
    }

    #[test]
    fn signals_and_counters_begin_at_zero_again() {
        let world = World::new();
        let context = world.context();
        world.signals[1].store(7, Ordering::Relaxed);
        world.counters[1].store(3, Ordering::Relaxed);
        assert_eq!((context.signal(1), context.counter(1)), (7, 3));
        context.reset_signal(1);
        context.reset_counter(1);
        world.signals[1].fetch_add(2, Ordering::Relaxed);
        assert_eq!((context.signal(1), context.counter(1), context.signal(0)), (2, 0, 0));
        assert_eq!(world.signals[1].load(Ordering::Relaxed), 9, "the word itself only grows");
    }
}
