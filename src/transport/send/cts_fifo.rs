//! The sender's CTS FIFO, which the receiver's NIC fills.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Fast};
use crate::proto::{CTS_WORDS, CtsError, Head, MAX_RAILS, MAX_RECVS, Sequence};

/// The remote side of a send: the address and keys of the receive it matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    /// Two remote keys to a word, as in the CTS entry.
    rkeys: [u64; MAX_RAILS / 2],
}

/// A receive that matches a send.
#[derive(Debug)]
pub(crate) struct Match<'a> {
    /// Its index in its group.
    pub(crate) place: usize,
    /// Receives in the group.
    pub(crate) count: usize,
    /// Size of the receive's buffer in bytes.
    pub(crate) room: u64,
    words: &'a [AtomicU64; CTS_WORDS],
}

impl Target {
    pub(crate) const NONE: Self = Self { addr: 0, rkeys: [0; MAX_RAILS / 2] };

    /// Returns the remote key of a rail.
    #[inline]
    pub(crate) fn rkey(&self, rail: usize) -> u32 {
        (self.rkeys[rail / 2] >> (rail % 2 * 32)) as u32
    }
}

impl<'a> Match<'a> {
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

/// Finds the first receive with this tag in the group with sequence number `seq`, skipping those
/// whose bits are set in `matched`. Returns `None` if there is none, or if an entry of the group
/// has not arrived yet.
///
/// # Errors
/// The FIFO holds an entry that no correct receiver writes.
#[inline]
pub(crate) fn find(fifo: &[AtomicU64], seq: Sequence, tag: i32, matched: u8) -> Fast<Option<Match<'_>>> {
    let start = seq.cts_offset(0) / 8;
    let group = &fifo[start..start + MAX_RECVS * CTS_WORDS];
    let Some(first) = group.first_chunk() else { return Ok(None) };
    // Almost every group has one receive.
    if number(first) == seq.number() && head_word(first) == (Head { tag, count: 1, index: 0 }).word() {
        return Ok(Some(Match::new(first, 0, 1)));
    }
    find_in_group(group, seq, tag, matched)
}

/// Like [`find`], for groups of any size.
#[inline(never)]
fn find_in_group(group: &[AtomicU64], seq: Sequence, tag: i32, matched: u8) -> Fast<Option<Match<'_>>> {
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
        if place.is_none() && head.tag == tag && matched >> index & 1 == 0 {
            place = Some(index);
        }
    }
    Ok(place.map(|place| Match::new(&group.as_chunks().0[place], place, count)))
}

/// The sequence number is the last word of an entry: once it has arrived, so has the rest.
#[inline]
fn number(words: &[AtomicU64; CTS_WORDS]) -> u64 {
    u64::from_le(words[CTS_WORDS - 1].load(Ordering::Acquire))
}

#[inline]
fn head_word(words: &[AtomicU64; CTS_WORDS]) -> u64 {
    u64::from_le(words[CTS_WORDS - 2].load(Ordering::Relaxed))
}

/// Returns the head of an entry of the group with sequence number `seq`; `None` if the entry has
/// not arrived yet.
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
    Error::Protocol(format!("CTS entry {index} of a group of {count} is numbered {said} of {of}")).into()
}
