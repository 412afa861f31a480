//! What two rails should carry, what they did carry, and a connection that moves checked messages.

use mpib_tests::pair::{Buffer, Pair, pattern};
use mpib_tests::table::newest;

/// Room for the largest message, and for a group.
const LARGEST: usize = (8 << 20) + 8192;

/// The rule: what SUP carries of `len` bytes.
pub(crate) fn sup_part(len: usize, share: u16) -> usize {
    if share >= 1024 { len } else { (len * usize::from(share)) >> 10 & !127 }
}

/// What one rail carried: bytes, and writes with an immediate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) bytes: u64,
    pub(crate) signals: u64,
}

pub(crate) fn carried() -> [Carried; 2] {
    let counters = softverbs::counters();
    ["soft0", "soft1"].map(|name| {
        let c = &counters.iter().find(|d| d.name == name).unwrap().total;
        Carried { bytes: c.bytes, signals: c.writes_with_imm }
    })
}

pub(crate) fn since(before: [Carried; 2]) -> [Carried; 2] {
    let now = carried();
    [0, 1].map(|i| Carried {
        bytes: now[i].bytes - before[i].bytes,
        signals: now[i].signals - before[i].signals,
    })
}

/// What the sends of a group are: length and share of each. The rails carry their parts and, where
/// the immediate cannot encode the size, the record on the first active one; SOUT the CTS entries
/// as well, if `cts`.
pub(crate) fn by_the_rule(sends: &[(usize, u16)], cts: bool) -> [Carried; 2] {
    let len: usize = sends.iter().map(|s| s.0).sum();
    let sup: usize = sends.iter().map(|(len, share)| sup_part(*len, *share)).sum();
    let active = [sup < len || len == 0, sup > 0];
    let exact = sends.len() == 1 && (len < 2 << 20 || len.is_multiple_of(128));
    let mut bytes = [len - sup, sup];
    if !exact {
        bytes[usize::from(!active[0])] += 64;
    }
    if cts {
        bytes[0] += 64 * sends.len();
    }
    [0, 1].map(|i| Carried { bytes: bytes[i] as u64, signals: active[i].into() })
}

/// One send of a group, and the room that its receive has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) room: usize,
    pub(crate) len: usize,
}

pub(crate) fn message(len: usize) -> Vec<Part> {
    vec![Part { room: len, len }]
}

/// A connection of this process to itself, and memory for its largest messages.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    /// Content of memory before anything is written to it.
    blank: Vec<u8>,
    turn: usize,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let pair = Pair::new(newest());
        let from = pair.send_buffer(pattern(LARGEST + 65_536, 1));
        let to = pair.recv_buffer(LARGEST);
        let blank = vec![0xEE; LARGEST];
        Self { pair, from, to, blank, turn: 0 }
    }

    /// Where the data of the next send begins: every send has different bytes.
    pub(crate) fn source(&mut self) -> usize {
        self.turn += 1;
        self.turn * 4099 % 65_536
    }

    /// A group, sent in `order`; what the rails carried for it. Every byte is checked, and those
    /// that must not be written.
    pub(crate) fn exchange(&mut self, group: &[Part], order: &[usize]) -> [Carried; 2] {
        let before = carried();
        let mut at = 0;
        let places: Vec<_> = group
            .iter()
            .map(|part| {
                let place = (at, self.source());
                at += part.room + 64;
                place
            })
            .collect();
        let (pair, to, from) = (&self.pair, &self.to, &self.from);
        let receives: Vec<_> = (0i32..)
            .zip(group.iter().zip(&places))
            .map(|(tag, (part, (at, _)))| (to.addr() + at, part.room, tag, to.mr))
            .collect();
        let recv = pair.irecv(&receives);
        let sends: Vec<_> = order
            .iter()
            .map(|&i| pair.isend(from.addr() + places[i].1, group[i].len, i as i32, from.mr))
            .collect();
        for (send, i) in sends.into_iter().zip(order) {
            assert_eq!(pair.wait(send)[0] as usize, group[*i].len);
        }
        let sizes = pair.wait(recv);
        for (i, (part, (at, source))) in group.iter().zip(&places).enumerate() {
            assert_eq!(sizes[i] as usize, part.len, "receive {i} of {group:?}");
            let (data, rest) = self.to.bytes[*at..at + part.room + 64].split_at(part.len);
            assert!(*data == self.from.bytes[*source..source + part.len], "receive {i} of {group:?} differs");
            assert!(*rest == self.blank[..rest.len()], "written behind receive {i} of {group:?}");
        }
        self.to.bytes[..at].fill(0xEE);
        since(before)
    }

    pub(crate) fn close(self) {
        self.from.dereg();
        self.to.dereg();
        self.pair.close();
    }
}
