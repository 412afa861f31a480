//! A sequence lock: one writer and any number of readers share an entry without waiting for each
//! other.
//!
//! The writer makes `seq` odd, writes the fields, and makes `seq` even. A reader that saw `seq` odd
//! or changing discards what it read. It retries a bounded number of times, because a writer can
//! die between its two increments.

use std::net::Ipv4Addr;

use super::hints::{ENTRY_SIZE, Hint};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// An entry in shared memory: four words in the order and byte order of the file.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    sup_bw: AtomicU32,
    seq: AtomicU32,
    src: AtomicU32,
    dst: AtomicU32,
}

impl Default for Entry {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        Self { sup_bw: zero(), seq: zero(), src: zero(), dst: zero() }
    }
}

impl Entry {
    /// Writes the fields of `hint`. `hint.seq` must be the current (even) sequence number; returns
    /// the new one.
    ///
    /// There must be only one writer at a time. The writer keeps the number itself: this function
    /// stores and never loads.
    pub fn write(&self, hint: Hint) -> u32 {
        let odd = hint.seq | 1;
        let even = odd.wrapping_add(1);
        self.seq.store(odd.to_le(), Ordering::Relaxed);
        // Readers must see the odd number before any of the fields.
        fence(Ordering::Release);
        self.sup_bw.store(hint.sup_bw.to_le(), Ordering::Relaxed);
        self.src.store(u32::from_ne_bytes(hint.src.octets()), Ordering::Relaxed);
        self.dst.store(u32::from_ne_bytes(hint.dst.octets()), Ordering::Relaxed);
        self.seq.store(even.to_le(), Ordering::Release);
        even
    }

    /// Tries to read the entry once. Returns `None` if it was being written.
    pub fn read(&self) -> Option<Hint> {
        let seq = self.seq.load(Ordering::Acquire);
        let sup_bw = u32::from_le(self.sup_bw.load(Ordering::Relaxed));
        let ip = |word: &AtomicU32| Ipv4Addr::from(word.load(Ordering::Relaxed).to_ne_bytes());
        let (src, dst) = (ip(&self.src), ip(&self.dst));
        // The fields must be read before the number is read again.
        fence(Ordering::Acquire);
        let again = self.seq.load(Ordering::Relaxed);
        let hint = Hint { sup_bw, seq: u32::from_le(seq), src, dst };
        (hint.seq.is_multiple_of(2) && again == seq).then_some(hint)
    }

    /// Copies the bytes, reading the words in no defined order, like a `pread` of a file that is
    /// being written.
    pub fn copy(&self) -> [u8; ENTRY_SIZE] {
        let mut out = [0; ENTRY_SIZE];
        // Last field first: a model check of a reader that relies on the order fails.
        for (at, word) in [(12, &self.dst), (8, &self.src), (4, &self.seq), (0, &self.sup_bw)] {
            out[at..at + 4].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        out
    }
}

/// The result of [`snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// All fields belong to one write.
    Consistent(Hint),
    /// The entry was being written: the sequence number is odd.
    Writing(u32),
    /// The entry changed between the copies: retry.
    Changed,
}

/// Combines three copies of an entry, made one after the other with an acquire fence in between.
///
/// This is for readers that use `pread` instead of mapping the file: if a mapped file is truncated,
/// SIGBUS kills its reader. The order of the words within one copy is unknown. Therefore the
/// sequence number before, the fields, and the sequence number after come from one copy each.
pub fn snapshot(before: &[u8; ENTRY_SIZE], fields: &[u8; ENTRY_SIZE], after: &[u8; ENTRY_SIZE]) -> Snapshot {
    let (first, last) = (Hint::decode(before).seq, Hint::decode(after).seq);
    match first == last {
        false => Snapshot::Changed,
        true if !first.is_multiple_of(2) => Snapshot::Writing(first),
        true => Snapshot::Consistent(Hint { seq: first, ..Hint::decode(fields) }),
    }
}
