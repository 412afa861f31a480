//! Mailboxes of two ends that are joined by two rails of software devices.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mpib_proto::{MAX_RAILS, SCRATCH, written_bytes};

use super::*;
use crate::connect::tests::{ports, until};
use crate::device::Nic;
use crate::verbs::{Access, Batch, Cq, Fresh, Path, Pd, Qp, QpOptions, Ready, Timing};

const DEPTH: u32 = 16;

/// One end: its queue pair on each rail, and what the plugin keeps for a connection.
struct End {
    mailbox: Mailbox,
    // Before the memory that they write.
    queues: Vec<SendQueue>,
    cqs: Vec<Arc<Cq>>,
    region: Region,
    remote: RemoteMemory,
    chain: Chain,
}

impl End {
    fn drive(&mut self, rail: usize, now: Instant) -> usize {
        let Self { mailbox, queues, region, remote, chain, .. } = self;
        mailbox.drive((rail, &mut queues[rail]), region, remote, chain, now).unwrap()
    }

    fn poll(&mut self) -> Option<Vec<u8>> {
        self.mailbox.poll(&self.region).unwrap()
    }

    /// Waits for the completions of all writes on a rail.
    fn complete(&mut self, rail: usize) {
        let mut batch = Batch::new();
        until(|| {
            for completion in self.cqs[rail].poll(&mut batch).unwrap() {
                assert_eq!((completion.status(), Work::of(completion.wr_id())), (0, Work::Mail));
                self.queues[rail].sent(completion.wr_id()).unwrap();
            }
            (self.queues[rail].in_flight() == 0).then_some(())
        });
    }
}

fn path(nic: &Nic, remote: &Qp<Fresh>) -> Path {
    let (port, gids) = nic.now().unwrap();
    let gid = &gids[0];
    Path {
        port: port.number,
        gid_index: nic.place_of(gid).unwrap(),
        pkey_index: 0,
        mtu: port.mtu,
        lid: port.lid,
        gid: Some(gid.raw),
        service_level: 0,
        traffic_class: 0,
        qpn: remote.number(),
        peer_psn: 0,
        psn: 0,
        access: Access::Write,
        ece: None,
    }
}

/// Connects two queue pairs of one adapter; each with its CQ.
fn joined(nic: &Nic, depth: u32) -> [(Qp<Ready>, Arc<Cq>); 2] {
    let new = || {
        let cq = Arc::new(Cq::new(&nic.context(), depth).unwrap());
        let options = QpOptions { send_depth: depth, inline: 0, receives: 0 };
        (Qp::new(&nic.pd(), &cq, None, options).unwrap(), cq)
    };
    let ((mut a, a_cq), (mut b, b_cq)) = (new(), new());
    let timing = Timing { timeout: 14, retries: 7 };
    let (to_a, to_b) = (path(nic, &a), path(nic, &b));
    a.advance(&to_b, timing).unwrap();
    b.advance(&to_a, timing).unwrap();
    [(a.ready().unwrap(), a_cq), (b.ready().unwrap(), b_cq)]
}

/// Two ends with a mailbox and two rails, each with send queues of this depth.
fn pair(depth: u32) -> [End; 2] {
    let nics: Vec<&Nic> = ports()[..2].iter().map(|device| &*device.rails[0]).collect();
    let pds: Vec<Arc<Pd>> = nics.iter().map(|nic| nic.pd()).collect();
    let regions = [0, 1].map(|_| Region::new(&pds, memory_bytes(true) / 8, false).unwrap().0);
    let remotes = [1, 0].map(|peer: usize| {
        let mut rkeys = [0; MAX_RAILS];
        rkeys.iter_mut().zip(regions[peer].mrs()).for_each(|(rkey, mr)| *rkey = mr.rkey());
        RemoteMemory { addr: regions[peer].addr(0) as u64, rkeys }
    });
    let (mut queues, mut cqs) = ([vec![], vec![]], [vec![], vec![]]);
    for nic in nics {
        let ends = joined(nic, depth);
        let numbers = [1, 0].map(|peer: usize| ends[peer].0.number());
        for (i, (qp, cq)) in ends.into_iter().enumerate() {
            queues[i].push(SendQueue::new(qp, numbers[i]));
            cqs[i].push(cq);
        }
    }
    let mut remotes = remotes.into_iter();
    let mut ends = regions.into_iter().zip(queues.into_iter().zip(cqs)).map(|(region, (queues, cqs))| End {
        mailbox: Mailbox::of(&region).unwrap(),
        queues,
        cqs,
        region,
        remote: remotes.next().unwrap(),
        chain: Chain::default(),
    });
    [ends.next().unwrap(), ends.next().unwrap()]
}

fn frame(fill: u8, len: usize) -> Vec<u8> {
    [&(len as u32).to_le_bytes()[..], &vec![fill; len]].concat()
}

#[test]
fn frames_of_both_directions_arrive_over_one_rail() {
    let [mut a, mut b] = pair(DEPTH);
    let (long, short) = (frame(7, 20_000), frame(9, 3));
    a.mailbox.send(&long).unwrap();
    a.mailbox.send(&short).unwrap();
    b.mailbox.send(&short).unwrap();
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    until(|| {
        let now = Instant::now();
        for (end, got) in [(&mut a, &mut at_a), (&mut b, &mut at_b)] {
            end.drive(0, now);
            end.complete(0);
            got.extend(end.poll());
        }
        (!a.mailbox.is_busy() && !b.mailbox.is_busy()).then_some(())
    });
    assert_eq!((at_a, at_b), (vec![short.clone()], vec![long, short]));
    for end in [&mut a, &mut b] {
        assert_eq!(end.poll(), None, "nothing comes twice");
        let outside = &end.region.words()[..MAILBOX / 8];
        assert!(outside.iter().all(|word| word.load(Ordering::Relaxed) == 0), "only the ring is written");
    }
}

/// The writes of the first rail count as lost as soon as another rail carries.
//= protocol.md: mailbox: chunks without acknowledgement are repeated on another rail
#[test]
fn another_rail_carries_what_has_no_acknowledgement_once_more() {
    let [mut a, mut b] = pair(DEPTH);
    let now = Instant::now();
    a.mailbox.send(&frame(1, 1500)).unwrap();
    assert_eq!(a.drive(0, now), 2);
    assert_eq!(a.drive(0, now + 10 * REPEAT_AFTER), 0, "not repeated before they have completed");
    assert_eq!(a.drive(1, now), 2, "at once on another rail");
    a.complete(0);
    a.complete(1);
    assert_eq!(b.poll(), Some(frame(1, 1500)));
    assert_eq!(b.poll(), None, "once");
    assert_eq!(a.drive(1, now), 0);
    assert_eq!(a.drive(1, now + REPEAT_AFTER), 2, "again after a time without acknowledgement");
    a.complete(1);
    assert_eq!(b.poll(), None);
    assert_eq!(b.drive(1, now), 1, "the acknowledgement");
    b.complete(1);
    assert_eq!((a.poll(), a.mailbox.is_busy()), (None, false));
    assert_eq!(a.drive(0, now + 10 * REPEAT_AFTER), 0);
    assert!(!b.mailbox.is_busy());
}

/// An end acknowledges again what the peer repeats: it may have lost the acknowledgement.
//= protocol.md: mailbox: a repeated chunk is acknowledged again
#[test]
fn a_lost_acknowledgement_is_written_again_when_the_peer_repeats() {
    let [mut a, mut b] = pair(DEPTH);
    let now = Instant::now();
    a.mailbox.send(&frame(1, 10)).unwrap();
    a.drive(0, now);
    a.complete(0);
    assert!(b.poll().is_some());
    b.drive(0, now);
    b.complete(0);
    // A late write of a dead rail puts the old acknowledgement back.
    a.region.words()[MAILBOX / 8].store(0, Ordering::Relaxed);
    assert!(a.poll().is_none() && a.mailbox.is_busy());
    assert_eq!((b.poll(), b.drive(0, now + REPEAT_AFTER)), (None, 0));
    assert_eq!(a.drive(0, now + REPEAT_AFTER), 1);
    a.complete(0);
    assert_eq!((b.poll(), b.drive(0, now)), (None, 1));
    b.complete(0);
    assert!(a.poll().is_none() && !a.mailbox.is_busy());
}

#[test]
fn a_send_queue_without_room_gets_no_more_than_it_holds() {
    let [mut a, mut b] = pair(3);
    let now = Instant::now();
    a.mailbox.send(&frame(1, 4000)).unwrap();
    assert_eq!(a.drive(0, now), 3);
    assert_eq!(a.drive(0, now), 0);
    a.complete(0);
    assert_eq!(a.drive(0, now), 1);
    a.complete(0);
    assert_eq!(b.poll(), None);
    assert_eq!(b.drive(0, now), 1);
    b.complete(0);
    assert_eq!((a.poll(), a.drive(0, now)), (None, 1));
    a.complete(0);
    assert_eq!(b.poll(), Some(frame(1, 4000)));
}

#[test]
fn a_malformed_frame_of_the_peer_is_a_protocol_error() {
    let [mut a, mut b] = pair(DEPTH);
    assert!(a.mailbox.send(&frame(1, 4)[..7]).unwrap_err().to_string().contains("7 bytes"));
    // The peer acknowledges a chunk that does not exist.
    a.mailbox.send(&frame(1, 4)).unwrap();
    a.drive(0, Instant::now());
    a.complete(0);
    a.region.words()[MAILBOX / 8].store(9_u64.to_le(), Ordering::Relaxed);
    let e = a.mailbox.poll(&a.region).unwrap_err();
    assert!(matches!(*e, Error::Protocol(_)) && e.to_string().contains("acknowledges chunk 9"), "{e}");
    assert!(b.poll().is_some());
}

#[test]
fn control_memory_of_one_rail_has_no_mailbox() {
    let pds = vec![ports()[0].rails[0].pd()];
    let region = Region::new(&pds, memory_bytes(false) / 8, false).unwrap().0;
    assert!(Mailbox::of(&region).is_none());
    assert_eq!((written_bytes(false), memory_bytes(false)), (40960, 40960));
    assert_eq!((written_bytes(true), memory_bytes(true), SCRATCH), (45056, 49152, 36864));
}
