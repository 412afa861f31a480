//! A receiver that writes any CTS entries between the sends of its peer.

use arbitrary::Arbitrary;
use mpib_proto::{CTS_BYTES, Cts, FIFO_BYTES, MAX_RAILS, MAX_RECVS, Sequence};
use mpib_tests::code::Success;
use mpib_tests::misbehaving_peer::{self, MisbehavingPeer};
use mpib_tests::pair::{Buffer, until};
use mpib_tests::table::{Ptr, newest};

use crate::steps;
use crate::table::context;

/// Most steps of one run: all sends have room in the send queues.
const MAX_STEPS: usize = 48;
/// Bytes of the send buffer.
const LEN: usize = 4096;
/// Where the receiver's memory takes data: behind the completion records.
const DATA: usize = 8192;

/// A step of a run.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Step {
    /// The receiver writes a whole group.
    Group {
        count: u8,
        first_tag: u8,
        room: u16,
    },
    /// The receiver writes one entry of the next group, or of the one behind it.
    Entry {
        behind: bool,
        place: u8,
        index: u8,
        count: u8,
        tag: u8,
        number: i8,
        room: u16,
    },
    /// The receiver changes one byte of an entry of the next group.
    Byte {
        at: u16,
        value: u8,
    },
    Send {
        tag: u8,
        len: u16,
    },
}

/// What a send does.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It matches no receive yet.
    Waits,
    /// It matches this receive of a group with so many.
    Matches(usize, u8),
    Fails,
}

/// The FIFO as the receiver has written it, and the sender's place in it.
struct Model {
    fifo: Vec<u8>,
    next: Sequence,
    /// Receives of the next group that sends have matched, and how many it has.
    met: Option<(u8, u8)>,
}

/// Runs the steps that the bytes stand for. Each send does what the model does: a wrong entry, and a
/// group whose count changes, fail the connection, and then every request ends.
pub fn fifo(data: &[u8]) {
    let Some(steps) = steps::<Step>(data, MAX_STEPS).filter(|steps| !steps.is_empty()) else { return };
    let table = newest();
    let (comm, liar) = misbehaving_peer::sender(context());
    let buffer = Buffer::new(table, comm, vec![7; LEN]);
    let mut model = Model { fifo: vec![0; FIFO_BYTES], next: Sequence::FIRST, met: None };
    let mut requests = Vec::new();
    for step in steps {
        let Step::Send { tag, len } = step else {
            model.write(step, &liar);
            continue;
        };
        let len = usize::from(len) % (LEN + 1);
        let expected = model.send(i32::from(tag % 4), len);
        let (code, request) = table.isend(comm, buffer.addr(), len, i32::from(tag % 4), buffer.mr);
        let found = match (code, request.is_null()) {
            (Success, true) => Verdict::Waits,
            (Success, false) => match expected {
                Verdict::Matches(place, count) => Verdict::Matches(place, count),
                _ => panic!("{step:?} is matched, the model has {expected:?}"),
            },
            _ => Verdict::Fails,
        };
        assert_eq!(found, expected, "{step:?}");
        if !request.is_null() {
            requests.push(request);
        }
        if expected == Verdict::Fails {
            break;
        }
    }
    drop(liar);
    requests.into_iter().for_each(ends);
    buffer.dereg();
    assert_eq!(table.close_send(comm), Success);
}

/// Waits until a request is done or has failed. The receiver has ended.
fn ends(request: Ptr) {
    until("the end of a request", || {
        let (code, done, _) = newest().test(request);
        (code != Success || done).then_some(())
    });
}

impl Model {
    /// Writes entries into the sender's FIFO, and into the model's.
    fn write(&mut self, step: Step, liar: &MisbehavingPeer) {
        match step {
            Step::Group { count, first_tag, room } => {
                let count = count % MAX_RECVS as u8 + 1;
                for index in 0..count {
                    let tag = (first_tag.wrapping_add(index) % 4).into();
                    let cts = self.entry(liar, (index, count), tag, room);
                    self.put(liar, self.next, index, &cts.encode());
                }
            }
            Step::Entry { behind, place, index, count, tag, number, room } => {
                let seq = if behind { self.next.next() } else { self.next };
                let cts = self.entry(liar, (index % 9, count % 10), (tag % 4).into(), room);
                // Mostly the right number.
                let number = seq.number().saturating_add_signed((number / 32).into());
                self.put(liar, seq, place % MAX_RECVS as u8, &Cts { seq: number, ..cts }.encode());
            }
            Step::Byte { at, value } => {
                let at = usize::from(at) % (MAX_RECVS * CTS_BYTES);
                let (place, at) = (at / CTS_BYTES, at % CTS_BYTES);
                // An address or key that is altered fails the write, not the match.
                if at >= 48 {
                    let start = self.next.cts_offset(place);
                    let mut entry = [0; CTS_BYTES];
                    entry.copy_from_slice(&self.fifo[start..start + CTS_BYTES]);
                    entry[at] = value;
                    self.put(liar, self.next, place as u8, &entry);
                }
            }
            Step::Send { .. } => {}
        }
    }

    /// Returns an entry of the next group that leads to memory of the receiver.
    fn entry(&self, liar: &MisbehavingPeer, (index, count): (u8, u8), tag: i32, room: u16) -> Cts {
        let mut rkeys = [0; MAX_RAILS];
        rkeys.iter_mut().zip(liar.region.mrs()).for_each(|(place, mr)| *place = mr.rkey());
        let addr = liar.region.addr(0) as u64 + DATA as u64;
        let size = u64::from(room) % (LEN as u64 + 1);
        Cts { addr, size, rkeys, tag, count, index, seq: self.next.number() }
    }

    fn put(&mut self, liar: &MisbehavingPeer, seq: Sequence, place: u8, entry: &[u8; CTS_BYTES]) {
        let at = seq.cts_offset(place.into());
        self.fifo[at..at + CTS_BYTES].copy_from_slice(entry);
        liar.poke(at, entry);
    }

    /// Matches a send, as docs/internals/protocol.md has it.
    fn send(&mut self, tag: i32, len: usize) -> Verdict {
        let matched = self.met.map_or(0, |(matched, _)| matched);
        let (mut found, mut count) = (None, 1);
        for index in 0..MAX_RECVS as u8 {
            if index >= count {
                break;
            }
            let at = self.next.cts_offset(index.into());
            let Some(bytes) = self.fifo[at..].first_chunk::<CTS_BYTES>() else { return Verdict::Fails };
            let number = u64::from_le_bytes(bytes[CTS_BYTES - 8..].try_into().expect("eight bytes"));
            if number != self.next.number() {
                return if number < self.next.number() { Verdict::Waits } else { Verdict::Fails };
            }
            let Ok(entry) = Cts::decode(bytes) else { return Verdict::Fails };
            if index == 0 {
                count = entry.count;
            }
            if self.met.is_some_and(|(_, before)| before != count)
                || (entry.index, entry.count) != (index, count)
            {
                return Verdict::Fails;
            }
            if found.is_none() && entry.tag == tag && matched >> index & 1 == 0 {
                found = Some((index, entry.size));
            }
        }
        let Some((place, room)) = found else { return Verdict::Waits };
        if len as u64 > room {
            return Verdict::Fails;
        }
        let matched = matched | 1 << place;
        self.met = Some((matched, count));
        if u32::from(matched) == (1 << count) - 1 {
            (self.next, self.met) = (self.next.next(), None);
        }
        Verdict::Matches(place.into(), count)
    }
}
