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
