//! Two mailboxes, and what adapters and a lying peer write into their rings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arbitrary::Arbitrary;
use mpib_proto::{HEADER_BYTES, MAX_FRAME_BYTES, MailState, MailboxError, RING_BYTES};

use crate::steps;

/// Most steps of one run.
const MAX_STEPS: usize = 200;
/// Most bytes of a frame's body: sometimes several chunks.
const MAX_BODY: usize = 3000;
/// Most writes that an adapter still holds. Others are lost.
const MAX_LATE: usize = 16;
/// The layout of a ring, as docs/internals/protocol.md has it.
const CHUNKS: usize = 4;
const ACK_WORDS: usize = 8;
const CHUNK_WORDS: usize = (RING_BYTES / 8 - ACK_WORDS) / CHUNKS;
/// Rounds after which everything must have arrived.
const ROUNDS: usize = 1000;

/// A step of a run. `from` is the end that acts.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Step {
    /// Queues a frame.
    Send {
        from: bool,
        len: u16,
    },
    /// Hands the writes that are due to the adapter.
    Post {
        from: bool,
    },
    /// Makes all unacknowledged writes due again.
    Resend {
        from: bool,
    },
    /// Executes a write: the words that the mask selects, in rotation. The adapter may execute it again
    /// later.
    Arrive {
        from: bool,
        which: u8,
        mask: u64,
        again: bool,
    },
    /// Loses a write.
    Lose {
        from: bool,
        which: u8,
    },
    Poll {
        at: bool,
    },
    /// The peer writes any word.
    Lie {
        at: bool,
        word: u16,
        value: u64,
    },
    /// The peer writes an acknowledgement, or the length or the number of a chunk.
    NearlyRight {
        at: bool,
        word: u8,
        number: u8,
    },
}

/// A write as the adapter has read it from the staging area.
#[derive(Debug, Clone)]
struct Write {
    first: usize,
    words: Vec<u64>,
}

struct End {
    mail: MailState,
    staging: Vec<AtomicU64>,
    ring: Vec<AtomicU64>,
    /// Writes of the adapter.
    late: VecDeque<Write>,
    /// Frames that are sent to this end and have not arrived.
    expected: VecDeque<Vec<u8>>,
}

/// Runs the steps that the bytes stand for. Writes that are late, lost, torn or repeated change
/// nothing: each frame arrives once, in order. What a liar writes ends with an error or in frames of
/// at most the allowed length.
pub fn mailbox(data: &[u8]) {
    let Some(steps) = steps::<Step>(data, MAX_STEPS) else { return };
    let is_honest = !steps.iter().any(|step| matches!(step, Step::Lie { .. } | Step::NearlyRight { .. }));
    let mut ends = [End::new(), End::new()];
    for (number, step) in steps.into_iter().enumerate() {
        if let Err(e) = make(&mut ends, step, number as u8, is_honest) {
            assert!(!is_honest, "{step:?}: {e}");
            assert!(!e.to_string().is_empty());
            return;
        }
    }
    if is_honest {
        settle(&mut ends);
    }
}

/// Makes a step. An error is one of an end that has read its ring.
fn make(ends: &mut [End; 2], step: Step, fill: u8, is_honest: bool) -> Result<(), MailboxError> {
    match step {
        Step::Send { from, len } => {
            let len = usize::from(len) % MAX_BODY + 1;
            let frame = [&(len as u32).to_le_bytes()[..], &vec![fill; len]].concat();
            match ends[usize::from(from)].mail.send(&frame) {
                Ok(()) => ends[usize::from(!from)].expected.push_back(frame),
                Err(e) => assert!(matches!(e, MailboxError::Full { .. }), "{e}"),
            }
        }
        Step::Post { from } => ends[usize::from(from)].post(),
        Step::Resend { from } => ends[usize::from(from)].mail.resend(),
        Step::Arrive { from, which, mask, again } => {
            let end = &mut ends[usize::from(from)];
            let Some(write) = end.take_late(which) else { return Ok(()) };
            if again {
                end.late.push_back(write.clone());
            }
            write.arrive(&ends[usize::from(!from)].ring, mask);
        }
        Step::Lose { from, which } => drop(ends[usize::from(from)].take_late(which)),
        Step::Poll { at } => ends[usize::from(at)].poll(is_honest)?,
        Step::Lie { at, word, value } => {
            ends[usize::from(at)].ring[usize::from(word) % (RING_BYTES / 8)].store(value, Relaxed);
        }
        Step::NearlyRight { at, word, number } => {
            let place = match usize::from(word) {
                0..32 => 0,
                word => ACK_WORDS + word % CHUNKS * CHUNK_WORDS + CHUNK_WORDS - 1 - word / CHUNKS % 2,
            };
            ends[usize::from(at)].ring[place].store(number.into(), Relaxed);
        }
    }
    Ok(())
}

/// Delivers everything, and asserts that every frame arrives and that both ends come to rest.
fn settle(ends: &mut [End; 2]) {
    for _ in 0..ROUNDS {
        for from in [0, 1] {
            ends[from].post();
            while let Some(write) = ends[from].late.pop_front() {
                write.arrive(&ends[1 - from].ring, u64::MAX);
            }
            ends[1 - from].poll(true).expect("honest ends");
        }
        if ends.iter().all(|end| end.expected.is_empty() && !end.mail.is_busy()) {
            return;
        }
        ends.iter_mut().for_each(|end| end.mail.resend());
    }
    let left = [&ends[0], &ends[1]].map(|end| end.expected.len());
    panic!("{left:?} frames never arrive, or an end never rests");
}

impl Write {
    /// Writes the words that the mask selects into the ring of the peer.
    fn arrive(&self, ring: &[AtomicU64], mask: u64) {
        for (i, word) in self.words.iter().enumerate().filter(|(i, _)| mask >> (i % 64) & 1 == 1) {
            ring[self.first + i].store(*word, Relaxed);
        }
    }
}

impl End {
    fn new() -> Self {
        let area = || (0..RING_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let (late, expected) = (VecDeque::new(), VecDeque::new());
        Self { mail: MailState::default(), staging: area(), ring: area(), late, expected }
    }

    fn post(&mut self) {
        self.mail.stage(&self.staging);
        while let Some(span) = self.mail.next_write(&self.staging) {
            let words = span.offset / 8..(span.offset + span.len) / 8;
            let words: Vec<u64> = self.staging[words].iter().map(|word| word.load(Relaxed)).collect();
            self.late.push_back(Write { first: span.offset / 8, words });
        }
        self.late.truncate(MAX_LATE);
    }

    fn take_late(&mut self, which: u8) -> Option<Write> {
        let count = self.late.len().max(1);
        self.late.remove(usize::from(which) % count)
    }

    fn poll(&mut self, is_honest: bool) -> Result<(), MailboxError> {
        self.mail.has_news(&self.ring);
        while let Some(frame) = self.mail.poll(&self.ring)? {
            assert!((HEADER_BYTES + 1..=HEADER_BYTES + MAX_FRAME_BYTES).contains(&frame.len()));
            if is_honest {
                let expected = self.expected.pop_front();
                assert_eq!(Some(&frame), expected.as_ref(), "another frame than the next one");
            }
        }
        Ok(())
    }
}
