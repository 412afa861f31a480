//! The mailbox: control frames in both directions of a connection by RDMA writes over any living
//! rail, for times when the control connection is silent.
//!
//! Each end has a ring in its control memory that the peer writes, and a staging area of the same
//! layout to write from: one line with an acknowledgement, then four chunks. The frames of a
//! direction are a stream of bytes. It is cut into chunks with numbers from 1; chunk *n* lies in
//! place *n* mod 4. A repeated chunk has the same bytes as before.
//!
//! A write of a dead rail may arrive late. It then puts back older bytes, or mixes older bytes with
//! newer ones. So the reader accepts only the chunk with the next number and a right checksum, and
//! the writer repeats a chunk until the reader acknowledges it.

use std::collections::VecDeque;

use super::control_memory::CACHE_LINE;
use super::frame::{FrameError, MAX_FRAME_BYTES, Peeked};
use super::wire::HEADER_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// Chunks of a ring, and the most chunks without acknowledgement.
const CHUNKS: usize = 4;
/// Bytes of a ring, and of a staging area.
pub const RING_BYTES: usize = 4096;
/// The most writes that are due at a time: each chunk and the acknowledgement.
pub const MAX_WRITES: usize = CHUNKS + 1;

/// Bytes of the line with the acknowledgement, the first of a ring. Its first word is the number of
/// the last accepted chunk; the rest is zero.
const ACK_BYTES: usize = CACHE_LINE;
const CHUNK_BYTES: usize = (RING_BYTES - ACK_BYTES) / CHUNKS;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
/// Bytes of a chunk before its length, checksum and number.
const PAYLOAD_BYTES: usize = CHUNK_BYTES - 16;
/// The last word of a chunk: its number. Zeroed memory has 0, the number of no chunk.
const NUMBER: usize = CHUNK_WORDS - 1;
/// The most bytes that wait for a chunk: two of the longest frames.
const MAX_QUEUED: usize = 2 * (HEADER_BYTES + MAX_FRAME_BYTES);

const _: () = assert!(ACK_BYTES + CHUNKS * CHUNK_BYTES == RING_BYTES && CHUNK_BYTES.is_multiple_of(8));

/// The reason why the mailbox refuses a frame of this end, or what the peer has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError {
    /// The bytes are not one frame: a mistake of this end.
    #[error("{0} bytes for the mailbox are not one frame")]
    NotOneFrame(usize),
    /// The frame does not fit behind those that wait.
    #[error("the mailbox has no room for a frame of {frame} bytes: {queued} bytes wait for the peer")]
    Full {
        /// Bytes of the frame.
        frame: usize,
        /// Bytes that wait.
        queued: usize,
    },
    /// A chunk has an impossible length.
    #[error("chunk {number} of the mailbox has {length} bytes, expected 1 to {PAYLOAD_BYTES}")]
    Length {
        /// Number of the chunk.
        number: u64,
        /// Length found.
        length: u32,
    },
    /// The bytes behind the payload of a chunk are not zero.
    #[error("chunk {0} of the mailbox has bytes behind its payload, expected zeroes")]
    Padding(u64),
    /// The peer acknowledges a chunk that this end has not sent.
    #[error("the peer acknowledges chunk {found} of the mailbox, and the last one sent is {sent}")]
    Acknowledged {
        /// Number acknowledged.
        found: u64,
        /// Number of the last chunk.
        sent: u64,
    },
    /// The stream has a malformed frame.
    #[error("the mailbox has {0}")]
    Frame(#[from] FrameError),
}

/// A part of the staging area to write to the same place of the peer's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset in the staging area and in the ring, in bytes.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// The state of both directions at one end.
#[derive(Debug, Default)]
pub struct MailState {
    outgoing: Outgoing,
    incoming: Incoming,
}

/// `acked <= posted <= staged <= acked + 4`.
#[derive(Debug, Default)]
struct Outgoing {
    /// Bytes that no chunk holds yet.
    queued: VecDeque<u8>,
    /// Number of the last chunk in the staging area.
    staged: u64,
    /// Number of the last chunk that has been posted since the last repetition began.
    posted: u64,
    /// Number of the last chunk that the peer has acknowledged.
    acked: u64,
}

#[derive(Debug, Default)]
struct Incoming {
    /// Number of the last accepted chunk.
    accepted: u64,
    /// Whether to write the acknowledgement, again if the peer has not seen it.
    ack_due: bool,
    /// The stream after the last returned frame.
    bytes: Vec<u8>,
}

impl MailState {
    /// Queues one whole frame.
    ///
    /// # Errors
    /// The bytes are not one frame, or too many bytes wait already.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), MailboxError> {
        match Peeked::at(frame)? {
            Peeked::Whole { len } if HEADER_BYTES + len == frame.len() => {}
            _ => return Err(MailboxError::NotOneFrame(frame.len())),
        }
        if !self.has_room(frame) {
            let queued = self.outgoing.queued.len();
            return Err(MailboxError::Full { frame: frame.len(), queued });
        }
        self.outgoing.queued.extend(frame);
        Ok(())
    }

    /// Returns whether [`send`](Self::send) has room for a frame.
    pub fn has_room(&self, frame: &[u8]) -> bool {
        self.outgoing.queued.len() + frame.len() <= MAX_QUEUED
    }

    /// Reads this end's ring. Returns the next frame of the peer; the caller repeats the call until
    /// there is none. If nothing has come, loads the number of the next chunk, that of the last
    /// one, and, if this end waits for it, the acknowledgement.
    ///
    /// # Errors
    /// The peer breaks the protocol. The stream cannot continue.
    pub fn poll(&mut self, ring: &[AtomicU64]) -> Result<Option<Vec<u8>>, MailboxError> {
        self.outgoing.read_ack(ring)?;
        loop {
            if let Some(frame) = self.incoming.next_frame()? {
                return Ok(Some(frame));
            }
            if !self.incoming.accept(ring)? {
                return Ok(None);
            }
        }
    }

    /// Moves queued bytes into chunks of the staging area, as far as the peer has room. Returns the
    /// number of writes that are due.
    pub fn stage(&mut self, staging: &[AtomicU64]) -> usize {
        self.outgoing.stage(staging);
        (self.outgoing.staged - self.outgoing.posted) as usize + usize::from(self.incoming.ack_due)
    }

    /// Returns the next write that is due, which then counts as posted. The acknowledgement is the
    /// first.
    pub fn next_write(&mut self, staging: &[AtomicU64]) -> Option<Span> {
        if std::mem::take(&mut self.incoming.ack_due) {
            // An earlier write of the word may be in flight. An adapter reads an aligned word at once,
            // so it carries either number.
            store(&staging[0], self.incoming.accepted);
            return Some(Span { offset: 0, len: 8 });
        }
        let out = &mut self.outgoing;
        if out.posted == out.staged {
            return None;
        }
        out.posted += 1;
        Some(Span { offset: offset(out.posted), len: CHUNK_BYTES })
    }

    /// Returns whether [`poll`](Self::poll) would find a chunk, new or repeated.
    pub fn has_news(&self, ring: &[AtomicU64]) -> bool {
        let last = self.incoming.accepted;
        let is_there = |number: u64| load(&places(ring, number)[NUMBER], Ordering::Relaxed) == number;
        is_there(last + 1) || last > 0 && is_there(last)
    }

    /// Makes all writes due again that the peer may lack: the unacknowledged chunks, and the
    /// acknowledgement.
    pub fn resend(&mut self) {
        self.outgoing.posted = self.outgoing.acked;
        self.incoming.ack_due = self.incoming.accepted > 0;
    }

    /// Returns whether the peer has not acknowledged a chunk yet.
    pub fn is_unacknowledged(&self) -> bool {
        self.outgoing.acked != self.outgoing.staged
    }

    /// Returns whether this end has a write due, or waits for an acknowledgement.
    pub fn is_busy(&self) -> bool {
        self.is_unacknowledged() || !self.outgoing.queued.is_empty() || self.incoming.ack_due
    }
}

impl Outgoing {
    fn stage(&mut self, staging: &[AtomicU64]) {
        while self.staged - self.acked < CHUNKS as u64 && !self.queued.is_empty() {
            let len = self.queued.len().min(PAYLOAD_BYTES);
            let mut payload = [0; PAYLOAD_BYTES];
            payload.iter_mut().zip(self.queued.drain(..len)).for_each(|(to, byte)| *to = byte);
            self.staged += 1;
            let chunk = encode(self.staged, &payload, len as u32);
            places(staging, self.staged).iter().zip(chunk).for_each(|(place, word)| store(place, word));
        }
    }

    /// Reads the peer's acknowledgement, which a late write may have put back to an older one.
    fn read_ack(&mut self, ring: &[AtomicU64]) -> Result<(), MailboxError> {
        if self.acked == self.staged {
            return Ok(());
        }
        let found = load(&ring[0], Ordering::Relaxed);
        if found > self.staged {
            return Err(MailboxError::Acknowledged { found, sent: self.staged });
        }
        self.acked = self.acked.max(found);
        self.posted = self.posted.max(self.acked);
        Ok(())
    }
}

impl Incoming {
    /// Accepts the next chunk if the ring has all of it.
    fn accept(&mut self, ring: &[AtomicU64]) -> Result<bool, MailboxError> {
        let number = self.accepted + 1;
        let chunk = places(ring, number);
        if load(&chunk[NUMBER], Ordering::Acquire) != number {
            self.notice_repetition(ring);
            return Ok(false);
        }
        // The peer may write the chunk again meanwhile: the checksum is of this copy.
        let chunk: [u64; CHUNK_WORDS] = std::array::from_fn(|i| load(&chunk[i], Ordering::Relaxed));
        let Some(payload) = decode(number, &chunk)? else { return Ok(false) };
        self.bytes.extend_from_slice(&payload);
        self.accepted = number;
        self.ack_due = true;
        erase(ring, number);
        Ok(true)
    }

    /// Acknowledges again if the peer has repeated the last chunk: it has not seen the
    /// acknowledgement. A peer that lacks it for an earlier chunk repeats the last one, too.
    fn notice_repetition(&mut self, ring: &[AtomicU64]) {
        if self.accepted > 0 && erase(ring, self.accepted) {
            self.ack_due = true;
        }
    }

    /// Takes the frame at the front of the stream.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, MailboxError> {
        let Peeked::Whole { len } = Peeked::at(&self.bytes)? else { return Ok(None) };
        let rest = self.bytes.split_off(HEADER_BYTES + len);
        Ok(Some(std::mem::replace(&mut self.bytes, rest)))
    }
}

/// Erases the number of an accepted chunk. Returns whether it was there. A newer chunk in its place
/// stays.
fn erase(ring: &[AtomicU64], number: u64) -> bool {
    let place = &places(ring, number)[NUMBER];
    // A load alone as long as there is nothing to erase.
    load(place, Ordering::Relaxed) == number
        && place.compare_exchange(number.to_le(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Returns the offset of a chunk in bytes.
const fn offset(number: u64) -> usize {
    ACK_BYTES + (number % CHUNKS as u64) as usize * CHUNK_BYTES
}

/// Returns the words of a chunk.
fn places(area: &[AtomicU64], number: u64) -> &[AtomicU64] {
    &area[offset(number) / 8..][..CHUNK_WORDS]
}

fn load(place: &AtomicU64, order: Ordering) -> u64 {
    u64::from_le(place.load(order))
}

fn store(place: &AtomicU64, word: u64) {
    place.store(word.to_le(), Ordering::Relaxed);
}

/// Returns the words of a chunk: the payload, the length with the checksum above it, the number.
fn encode(number: u64, payload: &[u8; PAYLOAD_BYTES], length: u32) -> [u64; CHUNK_WORDS] {
    let mut chunk = [0; CHUNK_WORDS];
    for (word, bytes) in chunk.iter_mut().zip(payload.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    chunk[NUMBER - 1] = u64::from(length) | u64::from(checksum(number, payload, length)) << 32;
    chunk[NUMBER] = number;
    chunk
}

/// Decodes the chunk with this number. `None` if it is torn: its checksum is wrong.
fn decode(number: u64, chunk: &[u64; CHUNK_WORDS]) -> Result<Option<Vec<u8>>, MailboxError> {
    let mut payload = [0; PAYLOAD_BYTES];
    for (bytes, word) in payload.as_chunks_mut().0.iter_mut().zip(chunk) {
        *bytes = word.to_le_bytes();
    }
    let (length, sum) = (chunk[NUMBER - 1] as u32, (chunk[NUMBER - 1] >> 32) as u32);
    if chunk[NUMBER] != number || sum != checksum(number, &payload, length) {
        return Ok(None);
    }
    let Some((used, padding)) =
        payload.split_at_checked(length as usize).filter(|(used, _)| !used.is_empty())
    else {
        return Err(MailboxError::Length { number, length });
    };
    if padding.iter().any(|byte| *byte != 0) {
        return Err(MailboxError::Padding(number));
    }
    Ok(Some(used.to_vec()))
}

/// Returns the CRC-32 of a chunk's payload, length and number.
fn checksum(number: u64, payload: &[u8; PAYLOAD_BYTES], length: u32) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(payload);
    sum.update(&length.to_le_bytes());
    sum.update(&number.to_le_bytes());
    sum.finalize()
}

#[cfg(all(test, not(loom)))]
#[path = "mailbox_tests.rs"]
mod tests;
