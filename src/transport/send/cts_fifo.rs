//! The sender's CTS FIFO, which the receiver's NIC fills.

use std::sync::atomic::{AtomicU64, Ordering};

use mpib_proto::{CTS_WORDS, CtsError, Head, MAX_RAILS, MAX_RECVS, Sequence, checksum_of_keys};

use crate::error::{Error, Fast};
use crate::verbs::Remote;

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

    /// Returns the address, and the remote key of one rail.
    #[inline(always)]
    pub(crate) fn remote(&self, rail: usize) -> Remote {
        let word = |i: usize| u64::from_le(self.words[i].load(Ordering::Relaxed));
        let keys = word(2 + rail / 2 % (MAX_RAILS / 2));
        Remote { addr: word(0), rkey: (keys >> (rail % 2 * 32)) as u32 }
    }

    #[inline]
    pub(crate) fn target(&self) -> Target {
        let word = |i: usize| u64::from_le(self.words[i].load(Ordering::Relaxed));
        Target { addr: word(0), rkeys: [word(2), word(3), word(4), word(5)] }
    }
}

/// Returns whether the first entry of the group with sequence number `seq` has arrived.
#[inline(always)]
pub(crate) fn has_arrived(fifo: &[AtomicU64], seq: Sequence) -> bool {
    let word = fifo.get(seq.cts_offset(0) / 8 + CTS_WORDS - 1);
    word.is_some_and(|word| u64::from_le(word.load(Ordering::Acquire)) >= seq.number())
}

/// Finds the receive of a group of one with this tag and sequence number. Returns `None` in all
/// other cases: see [`find`].
#[inline(always)]
pub(crate) fn find_single(fifo: &[AtomicU64], seq: Sequence, tag: i32) -> Option<Match<'_>> {
    let start = seq.cts_offset(0) / 8;
    let entry = fifo.get(start..start + CTS_WORDS)?.first_chunk()?;
    let single =
        number(entry) == seq.number() && head_word(entry) == (Head { tag, count: 1, index: 0 }).word();
    single.then(|| Match::new(entry, 0, 1))
}

/// Finds the first receive with this tag in the group with sequence number `seq`. If some of its
/// receives have been matched, `met` has their mask, and the number of the group's receives; they are
/// skipped. Returns `None` if there is no such receive, or if an entry of the group has not arrived
/// yet.
///
/// # Errors
/// The FIFO holds an entry that no correct receiver writes.
pub(crate) fn find(
    fifo: &[AtomicU64],
    seq: Sequence,
    tag: i32,
    met: Option<(u8, u8)>,
) -> Fast<Option<Match<'_>>> {
    let matched = met.map_or(0, |(matched, _)| matched);
    let start = seq.cts_offset(0) / 8;
    let group = &fifo[start..start + MAX_RECVS * CTS_WORDS];
    let (mut place, mut count) = (None, 1);
    for (index, words) in group.as_chunks().0.iter().enumerate() {
        if index >= count {
            break;
        }
        let Some(head) = head(words, seq)? else { return Ok(None) };
        if index == 0 {
            count = usize::from(head.count);
            if let Some((_, before)) = met.filter(|(_, before)| *before != head.count) {
                return Err(recounted(before, count));
            }
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

/// Returns the address and keys of one receive of the group with sequence number `seq`. `None` if
/// the entry is another group's by now.
pub(crate) fn target(fifo: &[AtomicU64], seq: Sequence, place: usize) -> Option<Target> {
    let start = seq.cts_offset(place) / 8;
    let entry: &[AtomicU64; CTS_WORDS] = fifo.get(start..start + CTS_WORDS)?.first_chunk()?;
    (number(entry) == seq.number()).then(|| Match::new(entry, place, 1).target())
}

/// Returns whether the entries of the group with sequence number `seq` are there with keys of this
/// [checksum](checksum_of_keys), or the slot is another group's by now.
pub(crate) fn has_keys(fifo: &[AtomicU64], seq: Sequence, checksum: u32) -> bool {
    let start = seq.cts_offset(0) / 8;
    let group = fifo[start..start + MAX_RECVS * CTS_WORDS].as_chunks().0;
    let (mut count, mut sum) = (1, 0);
    for (index, words) in group.iter().enumerate() {
        if index >= count {
            break;
        }
        let found = number(words);
        if found != seq.number() {
            return found > seq.number();
        }
        let Ok(head) = Head::of(head_word(words)) else { return false };
        count = usize::from(head.count);
        sum = checksum_of_keys(sum, words);
    }
    sum == checksum
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

/// The sends that have been matched with the earlier group would never complete.
#[cold]
fn recounted(before: u8, now: usize) -> Box<Error> {
    let what = format!("a CTS entry is of a group of {now} receives, which had {before} before");
    Error::Protocol(what).into()
}

#[cold]
fn misplaced(head: Head, index: usize, count: usize) -> Box<Error> {
    let (said, of) = (head.index, head.count);
    Error::Protocol(format!("CTS entry {index} of a group of {count} is numbered {said} of {of}")).into()
}
