//! Groups of messages, and the events that a profiler should get for them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use mpib_tests::pair::{Buffer, Pair, pattern};
use mpib_tests::recorder::{Event, FIRST};
use mpib_tests::table::set_profiler_handles;
use mpib_tests::vdevices::{fits_immediate, parts};

/// Bytes of the largest group.
pub(crate) const MOST: usize = 4 << 20;
/// `IBV_WR_RDMA_WRITE` and `IBV_WR_RDMA_WRITE_WITH_IMM`
const WRITE: c_int = 0;
const WITH_IMM: c_int = 1;

/// The rails of a connection, as its events should show them.
pub(crate) struct Rails {
    /// Of the adapters, by index in the device.
    pub(crate) names: &'static [&'static str],
    /// By rail: the adapter.
    pub(crate) devices: &'static [c_int],
    /// By rail.
    pub(crate) weights: &'static [u64],
    /// Rails that may carry data.
    pub(crate) carriers: &'static [usize],
    /// Larger messages have their immediate apart.
    pub(crate) apart: usize,
}

pub(crate) const SOFT: Rails = Rails {
    names: &["soft0", "soft1"],
    devices: &[0, 1],
    weights: &[1, 1],
    carriers: &[0, 1],
    apart: usize::MAX,
};

/// A connection, and memory for its largest messages.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    /// Sender's queue pairs, with their adapters, and what they are joined to.
    pub(crate) joined: BTreeMap<(c_int, u32), u32>,
}

/// Of each send or receive of a group.
pub(crate) type EventsByHandle = Vec<Vec<Event>>;

impl Rig {
    pub(crate) fn new(pair: Pair) -> Self {
        let (from, to) = (pair.send_buffer(pattern(MOST, 1)), pair.recv_buffer(MOST));
        Self { pair, from, to, joined: BTreeMap::new() }
    }

    /// One group of messages, sent last first. The events of the sends and the receives, which
    /// is over when NCCL learns that they are done.
    pub(crate) fn exchange(&mut self, lens: &[usize]) -> (EventsByHandle, EventsByHandle) {
        let place = |i: usize| lens[..i].iter().sum::<usize>();
        self.to.bytes.fill(0xEE);
        let (pair, to, from) = (&self.pair, &self.to, &self.from);
        let group: Vec<_> =
            (0..lens.len()).map(|i| (to.addr() + place(i), lens[i], i as c_int, to.mr)).collect();
        let receives = FIRST.handles();
        let recv = pair.irecv(&group);
        let send = |i: usize| {
            let handle = FIRST.handles()[0];
            (i, handle, pair.isend(from.addr() + place(i), lens[i], i as c_int, from.mr))
        };
        let sends: Vec<_> = (0..lens.len()).rev().map(send).collect();
        set_profiler_handles(None);
        let mut sent = vec![Vec::new(); lens.len()];
        for (i, handle, request) in sends {
            assert_eq!(pair.wait(request)[0] as usize, lens[i], "send {i} of {lens:?}");
            sent[i] = FIRST.over(handle, "a send was done");
        }
        let sizes = pair.wait(recv);
        let received = (0..lens.len()).map(|i| {
            assert_eq!(sizes[i] as usize, lens[i], "receive {i} of {lens:?}");
            FIRST.over(receives[i], "a receive was done")
        });
        let received = received.collect();
        let whole = place(lens.len());
        assert!(self.to.bytes[..whole] == self.from.bytes[..whole], "{lens:?} differ");
        (sent, received)
    }

    pub(crate) fn close(self) {
        self.from.dereg();
        self.to.dereg();
        self.pair.close();
    }
}

/// By adapter: its queue pairs, and how many writes with an immediate each posted.
fn queue_pairs(rails: &Rails) -> Vec<Vec<(u32, u64)>> {
    let counters = softverbs::counters();
    let of = |name: &&str| {
        let device = counters.iter().find(|d| d.name == **name).unwrap();
        device.qps.iter().map(|q| (q.qpn, q.counters.writes_with_imm)).collect()
    };
    rails.names.iter().map(of).collect()
}

/// Exchanges a group, and checks each event of it.
pub(crate) fn judge(rig: &mut Rig, rails: &Rails, lens: &[usize]) {
    let before = queue_pairs(rails);
    let (sent, received) = rig.exchange(lens);
    let after = queue_pairs(rails);
    let what = format!("{lens:?}: {sent:?} {received:?}");

    let cut: Vec<_> = lens.iter().map(|len| parts(*len, rails.weights)).collect();
    let carries = |rail: &usize| cut.iter().any(|parts| parts[*rail] > 0);
    let lightest = rails.weights.iter().position(|w| *w > 0).unwrap();
    let leader = (0..rails.devices.len()).find(carries).unwrap_or(lightest);
    let alone = lens.len() == 1 && fits_immediate(lens[0], rails.devices.len()) && lens[0] <= rails.apart;
    let mut using = BTreeSet::new();
    for (events, parts) in sent.iter().zip(&cut) {
        let mut carrying: Vec<_> = (0..parts.len()).filter(|rail| parts[*rail] > 0).collect();
        if carrying.is_empty() {
            carrying.push(leader);
        }
        let opcode = |rail: usize| if alone || parts[rail] == 0 { WITH_IMM } else { WRITE };
        let expected: Vec<_> =
            carrying.iter().map(|&rail| (rails.devices[rail], parts[rail], opcode(rail))).collect();
        let found: Vec<_> = events.iter().map(|e| (e.device, e.len, e.opcode)).collect();
        assert_eq!(found, expected, "{what}");
        let own: BTreeSet<_> = events.iter().map(|e| (e.device, e.qpn)).collect();
        assert_eq!(own.len(), events.len(), "a queue pair twice: {what}");
        using.extend(own);
        for (event, rail) in events.iter().zip(carrying) {
            let place = rails.carriers.iter().position(|carrier| *carrier == rail).unwrap();
            let peer = received[0][place].qpn;
            let known = *rig.joined.entry((event.device, event.qpn)).or_insert(peer);
            assert_eq!(known, peer, "the other end of a queue pair: {what}");
        }
    }
    // Those that wrote an immediate, no others.
    let signalled = |device: usize| {
        let called = after[device].iter().zip(&before[device]).filter(|(a, b)| a.1 > b.1);
        called.map(move |(a, _)| (device as c_int, a.0))
    };
    assert_eq!(using, (0..rails.names.len()).flat_map(signalled).collect(), "{what}");

    let carriers: Vec<_> = rails.carriers.iter().map(|rail| (rails.devices[*rail], 0, WITH_IMM)).collect();
    for events in &received {
        let found: Vec<_> = events.iter().map(|e| (e.device, e.len, e.opcode)).collect();
        assert_eq!(found, carriers, "{what}");
        let own: BTreeSet<_> = events.iter().map(|e| (e.device, e.qpn)).collect();
        assert_eq!(own.len(), events.len(), "a queue pair twice: {what}");
        assert!(own.is_disjoint(&using), "{what}");
        let exists = |(device, qpn): &(c_int, u32)| after[*device as usize].iter().any(|q| q.0 == *qpn);
        assert!(own.iter().all(exists), "no such queue pair: {what}");
    }
    let ends: BTreeSet<_> = rig.joined.iter().map(|((device, _), peer)| (device, peer)).collect();
    assert_eq!(ends.len(), rig.joined.len(), "two queue pairs with one other end: {what}");
    // Both ends report the same slot.
    let slots: BTreeSet<_> = sent.iter().chain(&received).flatten().map(|e| e.wr_id as u8).collect();
    assert_eq!(slots.len(), 1, "{what}");
}
