//! Two mailboxes over memory whose writes are lost, repeated, torn, late and reordered; and a peer
//! that lies.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn area() -> Vec<AtomicU64> {
    (0..RING_BYTES / 8).map(|_| AtomicU64::new(0)).collect()
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// A frame that names itself: its number, then bytes that depend on it.
fn numbered(n: u32, len: usize) -> Vec<u8> {
    let fill = (0..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(n) as u8);
    frame(&n.to_le_bytes().into_iter().chain(fill).collect::<Vec<_>>())
}

/// What the network does with a write.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    /// Arrives if it is no acknowledgement.
    IfChunk,
    /// Only the words that this seed selects arrive.
    Torn(u64),
    /// Arrives at a later step. An adapter reads the memory when it sends, or sends again later.
    Late {
        steps: usize,
        reads_late: bool,
        torn: Option<u64>,
    },
    Twice {
        steps: usize,
        reads_late: bool,
    },
}

#[derive(Debug, Clone)]
enum Act {
    Send(usize),
    Write(Fate),
    Poll,
    Resend,
}

#[derive(Debug, Default)]
struct End {
    mailbox: MailState,
    ring: Vec<AtomicU64>,
    staging: Vec<AtomicU64>,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
}

/// A write that has not arrived: from this end, the words if they have been read.
#[derive(Debug)]
struct Late {
    from: usize,
    span: Span,
    words: Option<Vec<u64>>,
    torn: Option<u64>,
}

#[derive(Debug)]
struct Pair {
    ends: [End; 2],
    step: usize,
    late: BTreeMap<usize, Vec<Late>>,
}

impl Pair {
    fn new() -> Self {
        let end = || End { ring: area(), staging: area(), ..End::default() };
        Self { ends: [end(), end()], step: 0, late: BTreeMap::new() }
    }

    fn words(&self, from: usize, span: Span) -> Vec<u64> {
        let words = &self.ends[from].staging[span.offset / 8..][..span.len / 8];
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn land(&self, late: &Late) {
        let read_now = || self.words(late.from, late.span);
        let words = late.words.clone().unwrap_or_else(read_now);
        let to = &self.ends[1 - late.from].ring[late.span.offset / 8..];
        for (i, (place, word)) in to.iter().zip(words).enumerate() {
            if late.torn.is_none_or(|seed| seed.rotate_left(i as u32 * 7) & 1 == 1) {
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    fn delay(&mut self, late: Late, steps: usize) {
        self.late.entry(self.step + 1 + steps).or_default().push(late);
    }

    fn write(&mut self, from: usize, fate: Fate) -> bool {
        let end = &mut self.ends[from];
        end.mailbox.stage(&end.staging);
        let Some(span) = end.mailbox.next_write(&end.staging) else { return false };
        let words = self.words(from, span);
        let now = Late { from, span, words: Some(words.clone()), torn: None };
        let later = |reads_late: bool| if reads_late { None } else { Some(words) };
        match fate {
            Fate::Arrives => self.land(&now),
            Fate::IfChunk if span.len > 8 => self.land(&now),
            Fate::Lost | Fate::IfChunk => {}
            // The acknowledgement is one aligned word.
            Fate::Torn(seed) => self.land(&Late { torn: (span.len > 8).then_some(seed), ..now }),
            Fate::Late { steps, reads_late, torn } => {
                let torn = torn.filter(|_| span.len > 8);
                self.delay(Late { words: later(reads_late), torn, ..now }, steps);
            }
            Fate::Twice { steps, reads_late } => {
                self.land(&now);
                self.delay(Late { words: later(reads_late), ..now }, steps);
            }
        }
        true
    }

    fn poll(&mut self, at: usize) {
        let end = &mut self.ends[at];
        while let Some(frame) = end.mailbox.poll(&end.ring).unwrap() {
            end.received.push(frame);
        }
        let (received, sent) = (&self.ends[at].received, &self.ends[1 - at].sent);
        assert_eq!(received[..], sent[..received.len()], "each frame once, in order");
    }

    fn act(&mut self, at: usize, act: &Act) {
        self.step += 1;
        for late in self.late.remove(&self.step).unwrap_or_default() {
            self.land(&late);
        }
        match act {
            Act::Send(len) => {
                let end = &mut self.ends[at];
                let frame = numbered(end.sent.len() as u32, *len);
                if end.mailbox.send(&frame).is_ok() {
                    end.sent.push(frame);
                }
            }
            Act::Write(fate) => {
                self.write(at, *fate);
            }
            Act::Poll => self.poll(at),
            Act::Resend => self.ends[at].mailbox.resend(),
        }
    }

    /// Repeats over a rail that works until both ends are quiet. Each second round loses the
    /// acknowledgements. Returns whether this took at most so many rounds.
    fn settle(&mut self, rounds: usize) -> bool {
        for round in 0..rounds {
            if !self.ends.iter().any(|end| end.mailbox.is_busy()) && self.late.is_empty() {
                return true;
            }
            // Late writes of the dead rails go on arriving.
            self.act(0, &Act::Poll);
            for at in [0, 1] {
                if self.ends[at].mailbox.is_unacknowledged() {
                    self.ends[at].mailbox.resend();
                }
                let fate = if round % 2 == 0 { Fate::IfChunk } else { Fate::Arrives };
                while self.write(at, fate) {}
            }
            (0..2).for_each(|at| self.poll(at));
        }
        false
    }
}

/// miri takes a second for some acts.
const MOST_ACTS: usize = if cfg!(miri) { 12 } else { 300 };

fn fate() -> impl Strategy<Value = Fate> {
    let late = (0usize..40, any::<bool>(), prop::option::of(any::<u64>()));
    prop_oneof![
        4 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        2 => any::<u64>().prop_map(Fate::Torn),
        3 => late.prop_map(|(steps, reads_late, torn)| Fate::Late { steps, reads_late, torn }),
        2 => (0usize..40, any::<bool>()).prop_map(|(steps, reads_late)| Fate::Twice { steps, reads_late }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => prop_oneof![0usize..60, 900usize..1100, 2000usize..9000].prop_map(Act::Send),
        8 => fate().prop_map(Act::Write),
        4 => Just(Act::Poll),
        1 => Just(Act::Resend),
    ]
}

proptest! {
    //= protocol.md: mailbox: each frame arrives once and in order, over memory that late writes tear
    #[test]
    fn every_frame_arrives_once_and_in_order(
        acts in prop::collection::vec((0usize..2, act()), 0..MOST_ACTS),
        both_send in any::<bool>(),
    ) {
        let mut pair = Pair::new();
        for (at, act) in &acts {
            match act {
                // The other end then has acknowledgements to write and nothing else.
                Act::Send(_) if *at == 1 && !both_send => {}
                act => pair.act(*at, act),
            }
        }
        let bytes = |end: &End| end.sent.iter().map(Vec::len).sum::<usize>();
        // Each two rounds move up to four chunks each way; late writes undo at most 40 rounds.
        let bound = 50 + pair.ends.iter().map(bytes).max().unwrap_or(0) / PAYLOAD_BYTES;
        prop_assert!(pair.settle(bound), "not quiet after {} rounds", bound);
        let [a, b] = &pair.ends;
        prop_assert_eq!((&a.received, &b.received), (&b.sent, &a.sent));
    }

    /// Also chunks with the right number, and the right checksum.
    #[test]
    #[cfg_attr(miri, ignore = "miri takes many minutes for whole rings of random words")]
    fn no_bytes_of_the_peer_panic(
        words in prop::collection::vec(any::<u64>(), RING_BYTES / 8),
        payload in prop::collection::vec(any::<u8>(), PAYLOAD_BYTES),
        length in prop_oneof![any::<u32>(), 0u32..PAYLOAD_BYTES as u32 + 4],
        ack in any::<u64>(),
        valid in any::<bool>(),
    ) {
        let (mut mailbox, ring, staging) = (MailState::default(), area(), area());
        mailbox.send(&numbered(0, 3000)).unwrap();
        prop_assert_eq!(mailbox.stage(&staging), CHUNKS);
        ring.iter().zip(words).for_each(|(place, word)| store(place, word));
        store(&ring[0], ack);
        if valid {
            put(&ring, 1, &encode(1, &payload.try_into().unwrap(), length));
        }
        let expected_frame = !valid || (1..=PAYLOAD_BYTES as u32).contains(&length);
        let found = mailbox.poll(&ring);
        prop_assert!(expected_frame && ack <= 4 || found.is_err());
    }
}

fn put(ring: &[AtomicU64], number: u64, chunk: &[u64; CHUNK_WORDS]) {
    places(ring, number).iter().zip(chunk).for_each(|(place, word)| store(place, *word));
}

/// Returns what an end reads if its peer writes this payload with this length as chunk 1.
fn read(bytes: &[u8], length: u32) -> Result<Option<Vec<u8>>, MailboxError> {
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..bytes.len()].copy_from_slice(bytes);
    let ring = area();
    put(&ring, 1, &encode(1, &payload, length));
    MailState::default().poll(&ring)
}

#[test]
fn a_chunk_has_its_payload_length_checksum_and_number() {
    let (mut mailbox, staging) = (MailState::default(), area());
    mailbox.send(&frame(b"abc")).unwrap();
    assert_eq!(mailbox.stage(&staging), 1);
    assert_eq!(mailbox.next_write(&staging), Some(Span { offset: 64 + 1008, len: 1008 }));
    let bytes: Vec<u8> = staging.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    let chunk = &bytes[64 + 1008..][..1008];
    assert_eq!(chunk[..7], [3, 0, 0, 0, b'a', b'b', b'c']);
    assert!(chunk[7..992].iter().all(|byte| *byte == 0));
    assert_eq!(chunk[992..996], [7, 0, 0, 0]);
    let sum = crc32fast::hash(&[&chunk[..996], &[1, 0, 0, 0, 0, 0, 0, 0][..]].concat());
    assert_eq!(chunk[996..1000], sum.to_le_bytes());
    assert_eq!(chunk[1000..], [1, 0, 0, 0, 0, 0, 0, 0]);
}

//= protocol.md: mailbox: a chunk that breaks a rule is refused
#[test]
fn wrong_chunks_and_acknowledgements_are_refused() {
    assert_eq!(read(&frame(b"x"), 5), Ok(Some(frame(b"x"))));
    assert_eq!(read(&frame(b"x"), 0), Err(MailboxError::Length { number: 1, length: 0 }));
    assert_eq!(read(&frame(b"x"), 993), Err(MailboxError::Length { number: 1, length: 993 }));
    assert_eq!(read(&frame(b"x"), 4), Err(MailboxError::Padding(1)));
    assert_eq!(read(&[0; 4], 4), Err(MailboxError::Frame(FrameError::Empty)));
    assert_eq!(read(&[0xff; 4], 4), Err(MailboxError::Frame(FrameError::TooLong(0xffff_ffff))));

    let (mut mailbox, ring, staging) = (MailState::default(), area(), area());
    store(&ring[0], 2);
    assert_eq!(mailbox.poll(&ring), Ok(None), "nothing to acknowledge");
    mailbox.send(&frame(b"x")).unwrap();
    mailbox.stage(&staging);
    assert_eq!(mailbox.poll(&ring), Err(MailboxError::Acknowledged { found: 2, sent: 1 }));
}

//= protocol.md: mailbox: a torn chunk waits for its repetition
#[test]
fn torn_chunks_and_other_numbers_are_ignored_until_they_are_repeated() {
    let (mut mailbox, ring) = (MailState::default(), area());
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..5].copy_from_slice(&frame(b"x"));
    let chunk = encode(1, &payload, 5);
    for word in 0..CHUNK_WORDS {
        let mut torn = chunk;
        torn[word] ^= 1 << 32;
        put(&ring, 1, &torn);
        assert_eq!(mailbox.poll(&ring), Ok(None), "word {word}");
    }
    put(&ring, 1, &encode(5, &payload, 5));
    assert_eq!(mailbox.poll(&ring), Ok(None));
    put(&ring, 1, &chunk);
    assert_eq!(mailbox.poll(&ring), Ok(Some(frame(b"x"))));
    assert_eq!(mailbox.poll(&ring), Ok(None), "once");
}

//= protocol.md: mailbox: at most four chunks are without acknowledgement
#[test]
fn at_most_four_chunks_are_unacknowledged() {
    let (mut mailbox, ring, staging) = (MailState::default(), area(), area());
    mailbox.send(&numbered(0, 6 * PAYLOAD_BYTES)).unwrap();
    assert_eq!(mailbox.stage(&staging), 4);
    for _ in 0..4 {
        assert!(mailbox.next_write(&staging).is_some());
    }
    assert_eq!((mailbox.stage(&staging), mailbox.next_write(&staging)), (0, None));
    // A late write puts the older one back.
    for ack in [3, 2] {
        store(&ring[0], ack);
        mailbox.poll(&ring).unwrap();
    }
    assert_eq!(mailbox.stage(&staging), 3, "the rest");
    // Those without acknowledgement, the fourth on.
    mailbox.resend();
    assert_eq!(mailbox.stage(&staging), 4);
}

//= protocol.md: mailbox: a repeated chunk is acknowledged again
#[test]
fn an_end_acknowledges_once_and_again_if_the_peer_repeats() {
    let (mut mailbox, ring, staging) = (MailState::default(), area(), area());
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..5].copy_from_slice(&frame(b"x"));
    for _ in 0..2 {
        put(&ring, 1, &encode(1, &payload, 5));
        while mailbox.poll(&ring).unwrap().is_some() {}
        assert_eq!(mailbox.next_write(&staging), Some(Span { offset: 0, len: 8 }));
        assert_eq!(load(&staging[0], Ordering::Relaxed), 1);
        assert_eq!(mailbox.poll(&ring), Ok(None));
        assert!(!mailbox.is_busy(), "an acknowledgement needs none");
    }
}

#[test]
fn what_is_not_one_frame_and_what_has_no_room_is_refused() {
    let mut mailbox = MailState::default();
    let two = [frame(b"x"), frame(b"y")].concat();
    assert_eq!(mailbox.send(&two), Err(MailboxError::NotOneFrame(10)));
    assert_eq!(mailbox.send(&two[..4]), Err(MailboxError::NotOneFrame(4)));
    assert_eq!(mailbox.send(&[0; 4]), Err(MailboxError::Frame(FrameError::Empty)));
    let longest = frame(&vec![7; MAX_FRAME_BYTES]);
    assert_eq!([mailbox.send(&longest), mailbox.send(&longest)], [Ok(()); 2]);
    assert_eq!(mailbox.send(&frame(b"x")), Err(MailboxError::Full { frame: 5, queued: MAX_QUEUED }));
}
