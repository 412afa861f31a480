//! The layout of the control memory, the same at both ends: two rings with a slot for each receive in
//! flight, scratch memory for probes, then the mailbox of a connection that has one.

use super::mailbox::RING_BYTES;
use super::{CTS_BYTES, MAX_RECVS, RECORD_BYTES};

/// The maximum number of groups in flight. NCCL has at most 32; a slot of an optional receive stays
/// in use until its data has arrived. Few slots stay in the processors' caches.
pub const SLOTS: usize = 64;
/// Bytes of the sender's FIFO of CTS entries.
pub const FIFO_BYTES: usize = SLOTS * MAX_RECVS * CTS_BYTES;
/// Bytes of the receiver's completion records.
pub const RECORDS_BYTES: usize = SLOTS * RECORD_BYTES;
/// Bytes of a cache line.
pub const CACHE_LINE: usize = 64;

// Entries, groups and records are whole cache lines.
const _: () = assert!(CTS_BYTES == CACHE_LINE && RECORD_BYTES == CACHE_LINE);
// A copy of the FIFO follows the records in the memory of a receiver.
const _: () = assert!(RECORDS_BYTES.is_multiple_of(CACHE_LINE) && FIFO_BYTES.is_multiple_of(CACHE_LINE));

/// Offset of the scratch memory. Before it, a sender has its CTS FIFO and the completion records to
/// send, a receiver the completion records and the CTS entries to send.
pub const SCRATCH: usize = FIFO_BYTES + RECORDS_BYTES;
/// Bytes of the scratch memory: a packet of the largest path MTU. Probes of a new queue pair write
/// from it and into it, and flushes read into it, at any time. Nothing uses its content.
pub const SCRATCH_BYTES: usize = 4096;
/// Offset of the mailbox's ring, which the peer writes. The chunks to send follow it, in the same
/// layout.
pub const MAILBOX: usize = SCRATCH + SCRATCH_BYTES;
/// Offset of the mailbox's chunks to send.
pub const MAILBOX_STAGING: usize = MAILBOX + RING_BYTES;

/// Returns the bytes of control memory whose address an end sends to its peer: all that the peer
/// writes lies in them.
pub const fn written_bytes(has_mailbox: bool) -> usize {
    if has_mailbox { MAILBOX_STAGING } else { MAILBOX }
}

/// Returns the bytes of an end's control memory.
pub const fn memory_bytes(has_mailbox: bool) -> usize {
    if has_mailbox { MAILBOX_STAGING + RING_BYTES } else { MAILBOX }
}

/// The sequence number of a receive, from 1: zeroed memory is never a valid CTS entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The first receive of a comm.
    pub const FIRST: Self = Self(1);

    /// Returns the receive with this number, at least 1.
    #[inline]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number in the CTS entry.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the number of the next receive. At 10⁹ receives a second it wraps after 580 years.
    #[inline]
    pub const fn next(self) -> Self {
        match self.0.wrapping_add(1) {
            0 => Self::FIRST,
            n => Self(n),
        }
    }

    /// Yields the receives before this one whose slots have not been used again, the newest first.
    pub fn predecessors(self) -> impl Iterator<Item = Self> {
        let oldest = self.0.saturating_sub(SLOTS as u64).max(Self::FIRST.0);
        (oldest..self.0).rev().map(Self)
    }

    /// Returns the slot of this receive.
    #[inline]
    pub const fn slot(self) -> u8 {
        (self.0 % SLOTS as u64) as u8
    }

    /// Returns the offset in the FIFO of entry `index` (below [`MAX_RECVS`]) of this receive's
    /// group, in bytes.
    #[inline]
    pub const fn cts_offset(self, index: usize) -> usize {
        (self.slot() as usize * MAX_RECVS + index % MAX_RECVS) * CTS_BYTES
    }

    /// Returns the offset of this receive's completion record, in bytes.
    #[inline]
    pub const fn record_offset(self) -> usize {
        self.slot() as usize * RECORD_BYTES
    }
}

/// Returns which of a rail's `qps` queue pairs (at least 1) carries the group in `slot`: they
/// rotate.
#[inline]
pub const fn qp_of_slot(slot: u8, qps: usize) -> usize {
    slot as usize % qps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Two queue pairs on SOUT and three on SUP, numbered by rail.
    //= protocol.md: queue pairs: one per rail and message, round-robin by slot
    #[test]
    fn queue_pairs_take_turns() {
        let table = [(0, 2), (1, 3), (0, 4), (1, 2), (0, 3), (1, 4)];
        for (slot, numbers) in (0u8..).zip(table) {
            assert_eq!((qp_of_slot(slot, 2), 2 + qp_of_slot(slot, 3)), numbers, "slot {slot}");
        }
        for qps in 1..=32 {
            let mut uses = vec![0; qps];
            (0..SLOTS as u8).for_each(|slot| uses[qp_of_slot(slot, qps)] += 1);
            assert!(uses.iter().all(|n| (SLOTS / qps..=SLOTS.div_ceil(qps)).contains(n)), "{uses:?}");
        }
    }

    //= protocol.md: slots: 64, each place of the ring used once
    #[test]
    fn a_ring_of_receives_uses_every_place_once() {
        let (mut seq, mut slots, mut cts, mut records) =
            (Sequence::FIRST, HashSet::new(), HashSet::new(), HashSet::new());
        for _ in 0..SLOTS {
            assert!(slots.insert(seq.slot()) && records.insert(seq.record_offset()));
            assert!((0..MAX_RECVS).all(|i| cts.insert(seq.cts_offset(i))));
            seq = seq.next();
        }
        assert_eq!(seq.slot(), Sequence::FIRST.slot());
        assert!(cts.iter().all(|o| o % CTS_BYTES == 0 && o + CTS_BYTES <= FIFO_BYTES));
        assert!(records.iter().all(|o| o % RECORD_BYTES == 0 && o + RECORD_BYTES <= RECORDS_BYTES));
        assert_eq!((FIFO_BYTES, RECORDS_BYTES), (32_768, 4_096));
    }

    #[test]
    fn predecessors_are_the_receives_of_the_slots_newest_first() {
        let of = |n: u64| Sequence(n).predecessors().map(Sequence::number).collect::<Vec<_>>();
        assert_eq!((of(1), of(3)), (vec![], vec![2, 1]));
        assert_eq!(of(65), (1..=64).rev().collect::<Vec<_>>());
        assert_eq!(of(1000), (936..1000).rev().collect::<Vec<_>>());
        let slots: HashSet<_> = Sequence(1000).predecessors().map(Sequence::slot).collect();
        assert_eq!(slots.len(), SLOTS);
    }

    #[test]
    fn zero_is_never_a_number() {
        assert_eq!((Sequence::FIRST.number(), Sequence::FIRST.slot()), (1, 1));
        assert_eq!(Sequence(u64::MAX).next(), Sequence::FIRST);
    }
}
