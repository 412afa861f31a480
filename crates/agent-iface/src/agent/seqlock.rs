//! One entry shared by a writer and readers that never wait for each other.
//!
//! The writer makes `seq` odd, writes, and makes it even; a reader that saw it odd, or changed, has nothing. It may try
//! again, a bounded number of times: a writer can die between its two increments.

use std::net::Ipv4Addr;

use super::hints::{ENTRY_SIZE, Hint};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// An entry in shared memory: its four words in the order and byte order of the file.
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
    /// Writes all that `hint` says. `hint.seq` is the even number that stands there now; gives the one that stands there then.
    /// One writer at a time. It brings the number itself, so it only ever stores.
    pub fn write(&self, hint: Hint) -> u32 {
        let odd = hint.seq | 1;
        let even = odd.wrapping_add(1);
        self.seq.store(odd.to_le(), Ordering::Relaxed);
        // The odd number is seen before any of the fields.
        fence(Ordering::Release);
        self.sup_bw.store(hint.sup_bw.to_le(), Ordering::Relaxed);
        self.src.store(u32::from_ne_bytes(hint.src.octets()), Ordering::Relaxed);
        self.dst.store(u32::from_ne_bytes(hint.dst.octets()), Ordering::Relaxed);
        self.seq.store(even.to_le(), Ordering::Release);
        even
    }

    /// One try to read; `None` while it is being written.
    pub fn read(&self) -> Option<Hint> {
        let seq = self.seq.load(Ordering::Acquire);
        let sup_bw = u32::from_le(self.sup_bw.load(Ordering::Relaxed));
        let ip = |word: &AtomicU32| Ipv4Addr::from(word.load(Ordering::Relaxed).to_ne_bytes());
        let (src, dst) = (ip(&self.src), ip(&self.dst));
        // The fields are read before the number is looked at again.
        fence(Ordering::Acquire);
        let again = self.seq.load(Ordering::Relaxed);
        let hint = Hint { sup_bw, seq: u32::from_le(seq), src, dst };
        (hint.seq.is_multiple_of(2) && again == seq).then_some(hint)
    }

    /// Its bytes, the words in no certain order: what `pread` of a file that is being written gives.
    pub fn copy(&self) -> [u8; ENTRY_SIZE] {
        let mut out = [0; ENTRY_SIZE];
        // Last field first, so that a model of this finds out who relies on an order.
        for (at, word) in [(12, &self.dst), (8, &self.src), (4, &self.seq), (0, &self.sup_bw)] {
            out[at..at + 4].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        out
    }
}

/// What three copies of an entry tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// The entry, whole.
    Consistent(Hint),
    /// It was being written: this number is odd.
    Writing(u32),
    /// It changed meanwhile: try again.
    Changed,
}

/// Reads an entry from three copies made one after the other, with an acquire fence in between. For readers that do not
/// map the file, since a mapped file that somebody truncates kills its reader (SIGBUS). Within one copy
/// the order of the words is unknown, so the number before, the fields, and the number after each need a copy of their own.
pub fn snapshot(before: &[u8; ENTRY_SIZE], fields: &[u8; ENTRY_SIZE], after: &[u8; ENTRY_SIZE]) -> Snapshot {
    let (first, last) = (Hint::decode(before).seq, Hint::decode(after).seq);
    match first == last {
        false => Snapshot::Changed,
        true if !first.is_multiple_of(2) => Snapshot::Writing(first),
        true => Snapshot::Consistent(Hint { seq: first, ..Hint::decode(fields) }),
    }
}
