//! The ring of a mailbox under every order of two that access it: the peer's adapter, which writes
//! chunks, and the thread that reads.
//!
//! The product's own file, with loom's atomics in the place of the standard library's. The peer is the
//! plugin's [`MailState`].

#[path = "../../../crates/proto/src/mailbox.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is the peer's")]
mod source;

mod control_memory {
    pub(crate) use mpib_proto::CACHE_LINE;
}
mod frame {
    pub(crate) use mpib_proto::{FrameError, MAX_FRAME_BYTES, Peeked};
}
mod wire {
    pub(crate) use mpib_proto::HEADER_BYTES;
}

use std::sync::atomic::{AtomicU64 as Word, AtomicUsize};

use mpib_proto::MailState;

use crate::sync::{AtomicU64, Ordering::Relaxed};
use loom::sync::Arc;
use loom::thread;

const WORDS: usize = source::RING_BYTES / 8;
/// The words at the end of a chunk that differ between chunks with the same frame: checksum and
/// number. An adapter that writes such a chunk over another changes these two.
const LAST: usize = 2;

/// As the function of other models, for models with more accesses.
fn explore(model: impl Fn() + Sync + Send + 'static) -> usize {
    let count: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 50_000;
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        model();
    });
    count.load(Relaxed)
}

/// A frame that fills a chunk.
fn frame() -> Vec<u8> {
    let len: u32 = 900;
    len.to_le_bytes().into_iter().chain((0..len).map(|i| i as u8)).collect()
}

/// A chunk as the peer writes it: its words with their places in the ring.
#[derive(Clone)]
struct Chunk(Vec<(usize, u64)>);

impl Chunk {
    /// Returns the chunks of as many frames.
    fn list(count: usize) -> Vec<Self> {
        let area = || (0..WORDS).map(|_| Word::new(0)).collect::<Vec<_>>();
        let (mut peer, staging, acks) = (MailState::default(), area(), area());
        let mut chunks = Vec::new();
        for number in 1..=count {
            peer.send(&frame()).unwrap();
            assert_eq!(peer.stage(&staging), 1);
            let span = peer.next_write(&staging).unwrap();
            let words = span.offset / 8..(span.offset + span.len) / 8;
            chunks.push(Self(words.map(|at| (at, staging[at].load(Relaxed))).collect()));
            acks[0].store((number as u64).to_le(), Relaxed);
            assert_eq!(peer.poll(&acks).unwrap(), None);
        }
        chunks
    }

    /// The adapter writes the words. A swap in place of a store: loom does not know that a store comes
    /// after a compare-and-exchange which has found the word unchanged.
    fn write(&self, ring: &[AtomicU64]) {
        for (at, word) in &self.0 {
            ring[*at].swap(*word, Relaxed);
        }
    }

    fn body(&self) -> Self {
        Self(self.0[..self.0.len() - LAST].to_vec())
    }

    fn last(&self) -> Self {
        Self(self.0[self.0.len() - LAST..].to_vec())
    }

    fn reversed(mut self) -> Self {
        self.0.reverse();
        self
    }
}

/// The reader with its ring.
struct Reader {
    mail: source::MailState,
    ring: Arc<Vec<AtomicU64>>,
    frames: usize,
}

impl Reader {
    fn new() -> Self {
        let ring = Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect());
        Self { mail: source::MailState::default(), ring, frames: 0 }
    }

    /// Reads chunks, and writes the acknowledgement.
    fn read_and_acknowledge(&mut self, chunks: &[Chunk]) {
        chunks.iter().for_each(|chunk| chunk.write(&self.ring));
        self.poll();
        assert_eq!(self.frames, chunks.len());
        assert!(self.acknowledges());
    }

    fn poll(&mut self) {
        while let Some(found) = self.mail.poll(&self.ring).unwrap() {
            assert_eq!(found, frame());
            self.frames += 1;
        }
    }

    /// Whether an acknowledgement is due, which is then written.
    fn acknowledges(&mut self) -> bool {
        let staging: Vec<_> = (0..1).map(|_| AtomicU64::new(0)).collect();
        self.mail.next_write(&staging).is_some()
    }

    /// Polls while an adapter writes, and once afterwards.
    fn poll_during(&mut self, chunk: Chunk) {
        let ring = Arc::clone(&self.ring);
        let adapter = thread::spawn(move || chunk.write(&ring));
        self.poll();
        adapter.join().unwrap();
        self.poll();
    }
}

/// Each order of the writes: the checksum decides.
#[test]
fn a_chunk_is_read_once_in_any_order_of_arrival() {
    for reversed in [false, true] {
        let schedules = explore(move || {
            let chunk = Chunk::list(1).remove(0);
            let mut reader = Reader::new();
            chunk.body().write(&reader.ring);
            let last = chunk.last();
            reader.poll_during(if reversed { last.reversed() } else { last });
            assert!(reader.frames == 1 && reader.acknowledges());
        });
        assert!(schedules > 2, "{schedules} schedules");
    }
}

/// The peer repeats a chunk because it lacks the acknowledgement.
#[test]
fn a_repeated_chunk_is_acknowledged_again_and_not_read_again() {
    let schedules = explore(|| {
        let chunks = Chunk::list(1);
        let mut reader = Reader::new();
        reader.read_and_acknowledge(&chunks);
        reader.poll_during(chunks[0].last());
        assert_eq!(reader.frames, 1);
        assert!(reader.acknowledges(), "the peer waits for ever");
        reader.poll();
        assert!(!reader.acknowledges(), "a repetition is noticed once");
    });
    assert!(schedules > 2, "{schedules} schedules");
}

/// A newer chunk arrives in the place of a repeated one, before those between them.
#[test]
fn a_newer_chunk_stays_while_a_repeated_one_is_erased() {
    let schedules = explore(|| {
        let chunks = Chunk::list(8);
        let mut reader = Reader::new();
        reader.read_and_acknowledge(&chunks[..4]);
        chunks[3].last().write(&reader.ring);
        reader.poll_during(chunks[7].last());
        assert_eq!(reader.frames, 4);
        chunks[4..7].iter().for_each(|chunk| chunk.last().write(&reader.ring));
        reader.poll();
        assert_eq!(reader.frames, 8, "the newer chunk was erased");
    });
    assert!(schedules > 2, "{schedules} schedules");
}
