//! The sender's FIFO of CTS entries, as the receiver's NIC fills it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Fast};
use crate::proto::{CTS_WORDS, CtsError, Head, MAX_RAILS, MAX_RECVS, Sequence};

/// Where in the peer's memory a send goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    /// Two remote keys in a word, as they stand in the entry.
    rkeys: [u64; MAX_RAILS / 2],
}

/// A receive that a send meets.
#[derive(Debug)]
pub(crate) struct Met<'a> {
    /// Its place in its group.
    pub(crate) place: usize,
    /// Receives in the group.
    pub(crate) count: usize,
    /// Room in bytes.
    pub(crate) room: u64,
    words: &'a [AtomicU64; CTS_WORDS],
}

impl Target {
    pub(crate) const NONE: Self = Self { addr: 0, rkeys: [0; MAX_RAILS / 2] };

    /// The key for a rail.
    #[inline]
    pub(crate) fn rkey(&self, rail: usize) -> u32 {
        (self.rkeys[rail / 2] >> (rail % 2 * 32)) as u32
    }
}

impl<'a> Met<'a> {
    #[inline]
    fn new(words: &'a [AtomicU64; CTS_WORDS], place: usize, count: usize) -> Self {
        Self { place, count, room: u64::from_le(words[1].load(Ordering::Relaxed)), words }
    }

    #[inline]
    pub(crate) fn target(&self) -> Target {
        let word = |i: usize| u64::from_le(self.words[i].load(Ordering::Relaxed));
        Target { addr: word(0), rkeys: [word(2), word(3), word(4), word(5)] }
    }
}

/// The first receive with this tag of the group with number `seq`, but for those whose bits are set in `taken`. `None` where
/// there is none, and while an entry of the group has not come.
///
/// # Errors
/// An entry that no receiver of ours writes.
#[inline]
pub(crate) fn meet(fifo: &[AtomicU64], seq: Sequence, tag: i32, taken: u8) -> Fast<Option<Met<'_>>> {
    let start = seq.cts_offset(0) / 8;
    let group = &fifo[start..start + MAX_RECVS * CTS_WORDS];
    let Some(first) = group.first_chunk() else { return Ok(None) };
    // By far the most groups are of one.
    if number(first) == seq.number() && head_word(first) == (Head { tag, count: 1, index: 0 }).word() {
        return Ok(Some(Met::new(first, 0, 1)));
    }
    among(group, seq, tag, taken)
}

/// As [`meet`], whatever the group.
#[inline(never)]
fn among(group: &[AtomicU64], seq: Sequence, tag: i32, taken: u8) -> Fast<Option<Met<'_>>> {
    let (mut place, mut count) = (None, 1);
    for (index, words) in group.as_chunks().0.iter().enumerate() {
        if index >= count {
            break;
        }
        let Some(head) = head(words, seq)? else { return Ok(None) };
        if index == 0 {
            count = usize::from(head.count);
        }
        if (usize::from(head.count), usize::from(head.index)) != (count, index) {
            return Err(misplaced(head, index, count));
        }
        if place.is_none() && head.tag == tag && taken >> index & 1 == 0 {
            place = Some(index);
        }
    }
    Ok(place.map(|place| Met::new(&group.as_chunks().0[place], place, count)))
}

/// The running number comes last, so what stands before it is there when it is.
#[inline]
fn number(words: &[AtomicU64; CTS_WORDS]) -> u64 {
    u64::from_le(words[CTS_WORDS - 1].load(Ordering::Acquire))
}

#[inline]
fn head_word(words: &[AtomicU64; CTS_WORDS]) -> u64 {
    u64::from_le(words[CTS_WORDS - 2].load(Ordering::Relaxed))
}

/// What tells an entry of the group with number `seq` from the others; `None` while it has not come.
fn head(words: &[AtomicU64; CTS_WORDS], seq: Sequence) -> Fast<Option<Head>> {
    let number = number(words);
    if number != seq.number() {
        return if number < seq.number() { Ok(None) } else { Err(ahead(number, seq)) };
    }
    match Head::of(head_word(words)) {
        Ok(head) => Ok(Some(head)),
        Err(e) => Err(damaged(e)),
    }
}

#[cold]
fn ahead(number: u64, seq: Sequence) -> Box<Error> {
    Error::Protocol(format!("a CTS entry has running number {number}, expected {}", seq.number())).into()
}

#[cold]
fn damaged(e: CtsError) -> Box<Error> {
    Error::Protocol(e.to_string()).into()
}

#[cold]
fn misplaced(head: Head, index: usize, count: usize) -> Box<Error> {
    let (said, of) = (head.index, head.count);
    Error::Protocol(format!("CTS entry {index} of a group of {count} says that it is number {said} of {of}"))
        .into()
}
