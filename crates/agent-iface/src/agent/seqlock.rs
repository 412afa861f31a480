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
        write(&self.seq, hint.seq, || {
            self.sup_bw.store(hint.sup_bw.to_le(), Ordering::Relaxed);
            self.src.store(u32::from_ne_bytes(hint.src.octets()), Ordering::Relaxed);
            self.dst.store(u32::from_ne_bytes(hint.dst.octets()), Ordering::Relaxed);
        })
    }

    /// Tries to read the entry once. Returns `None` if it was being written.
    #[inline]
    pub fn read(&self) -> Option<Hint> {
        let ip = |word: &AtomicU32| Ipv4Addr::from(word.load(Ordering::Relaxed).to_ne_bytes());
        let (seq, hint) = read(&self.seq, || Hint {
            sup_bw: u32::from_le(self.sup_bw.load(Ordering::Relaxed)),
            seq: 0,
            src: ip(&self.src),
            dst: ip(&self.dst),
        })?;
        Some(Hint { seq, ..hint })
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

/// Size of the name in a [`PortEntry`], in bytes. Shorter names are followed by zeros.
pub const PORT_NAME_MAX: usize = 64;

/// What an agent wants of one port of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortScale {
    /// HCA and port, for instance `mlx5_0:1`. Empty: the entry is free.
    pub name: String,
    /// What the port's part of each transfer is multiplied with, in parts per 1024: 1024 changes
    /// nothing, 0 takes the port out of use.
    pub scale: u16,
}

/// An entry of the memory file for one port.
#[derive(Debug)]
#[repr(C)]
pub struct PortEntry {
    scale: AtomicU32,
    seq: AtomicU32,
    name: [AtomicU32; PORT_NAME_MAX / 4],
}

impl Default for PortEntry {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        Self { scale: zero(), seq: zero(), name: std::array::from_fn(|_| zero()) }
    }
}

impl PortEntry {
    /// Writes both fields, as [`Entry::write`] does. What exceeds [`PORT_NAME_MAX`] bytes of the
    /// name is cut off. Returns the new sequence number.
    pub fn write(&self, seq: u32, port: &PortScale) -> u32 {
        let mut name = [0; PORT_NAME_MAX];
        let len = port.name.len().min(PORT_NAME_MAX);
        name[..len].copy_from_slice(&port.name.as_bytes()[..len]);
        write(&self.seq, seq, || {
            self.scale.store(u32::from(port.scale).to_le(), Ordering::Relaxed);
            for (word, bytes) in self.name.iter().zip(name.chunks_exact(4)) {
                word.store(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Ordering::Relaxed);
            }
        })
    }

    /// Leaves the entry half-written, as a writer does that stops.
    #[cfg(test)]
    pub(super) fn begin(&self, seq: u32) {
        self.seq.store((seq | 1).to_le(), Ordering::Relaxed);
    }

    /// Tries to read the entry once. Returns `None` if it was being written. Scales above 1024
    /// count as 1024, and a name ends at its first zero byte.
    pub fn read(&self) -> Option<PortScale> {
        let (_, (scale, name)) = read(&self.seq, || {
            let scale = u32::from_le(self.scale.load(Ordering::Relaxed));
            (scale, self.name.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes()))
        })?;
        let name = name.as_flattened();
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(PORT_NAME_MAX)];
        let one = u32::from(super::SHARE_ONE);
        Some(PortScale {
            name: String::from_utf8_lossy(name).into_owned(),
            scale: u16::try_from(scale.min(one)).unwrap_or(super::SHARE_ONE),
        })
    }
}

/// Stores fields between an odd number and an even one. `seq` is the current number; returns the
/// new one.
fn write(number: &AtomicU32, seq: u32, fields: impl FnOnce()) -> u32 {
    let odd = seq | 1;
    let even = odd.wrapping_add(1);
    number.store(odd.to_le(), Ordering::Relaxed);
    // Readers must see the odd number before any of the fields.
    fence(Ordering::Release);
    fields();
    number.store(even.to_le(), Ordering::Release);
    even
}

/// Loads fields between two loads of the number. Returns them with the number, or `None` if they
/// were being written.
#[inline]
fn read<T>(number: &AtomicU32, fields: impl FnOnce() -> T) -> Option<(u32, T)> {
    let before = number.load(Ordering::Acquire);
    let fields = fields();
    // The fields must be read before the number is read again.
    fence(Ordering::Acquire);
    let after = number.load(Ordering::Relaxed);
    let seq = u32::from_le(before);
    (seq.is_multiple_of(2) && after == before).then_some((seq, fields))
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
