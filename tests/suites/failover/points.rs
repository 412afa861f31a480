//! Faults at each work request of a transfer, enumerated by counter.

use std::time::{Duration, Instant};

use mpib_tests::pair::{LIMIT, Pair, connect_between, init};
use mpib_tests::table::{Ptr, Table, table};
use mpib_tests::vdevices::{self, newest_device};
use mpib_tests::{SHORT, SPLIT_ALL, has_srq, provider};
use softverbs::{
    CqOf, Direction, Fault, Only, Part, Then, faults_struck, heal, inject_at, posted, qp_attributes,
};

use super::traffic::{Link, Traffic};

/// Which points are tried: `all`, or by default every so many.
const POINTS: &str = "FAULT_POINTS";

/// Points of a device per traffic and fault by default.
const SAMPLE: u64 = 3;

/// A fault that a rail does not survive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) fault: Fault,
    /// How long data may still be under way after the sender's queue pair has ended.
    pub(crate) late: Duration,
}

pub(crate) const fn at_once(fault: Fault) -> Kind {
    Kind { fault, late: Duration::ZERO }
}

pub(crate) const fn late(ms: u64, then: Then) -> Kind {
    let late = Duration::from_millis(ms);
    Kind { fault: Fault::Late(late, then), late }
}

/// All faults.
pub(crate) const FAULTS: [Kind; 17] = [
    at_once(Fault::LostAck(Then::Silent)),
    at_once(Fault::LostAck(Then::Down)),
    at_once(Fault::LostAck(Then::Alive)),
    late(0, Then::Silent),
    late(1, Then::Alive),
    late(3, Then::Down),
    late(15, Then::Silent),
    at_once(Fault::Partial(Part::Bytes(40), Then::Alive)),
    at_once(Fault::Partial(Part::Percent(50), Then::Silent)),
    at_once(Fault::Partial(Part::Percent(100), Then::Silent)),
    at_once(Fault::Partial(Part::Percent(100), Then::Down)),
    at_once(Fault::Silence(Direction::In)),
    at_once(Fault::Silence(Direction::Out)),
    at_once(Fault::Silence(Direction::Both)),
    at_once(Fault::LinkDown),
    at_once(Fault::CqError(CqOf::Send)),
    at_once(Fault::CqError(CqOf::Recv)),
];

impl Kind {
    /// Returns whether the fault costs a rail and no data if it strikes this device. A receiver whose
    /// completion queue fails and returns nothing does not know what has arrived, and its sender may have
    /// completed the send. The queues of providers return what they have.
    fn survives(&self, device: &str) -> bool {
        let sends = device.starts_with('s') && !device.starts_with("soft");
        match self.fault {
            Fault::CqError(_) => sends || !matches!(provider().as_str(), "" | "none"),
            Fault::SrqError => !sends && has_srq(),
            _ => true,
        }
    }

    /// The work requests that the fault can strike.
    pub(crate) fn only(&self) -> Only {
        match self.fault {
            Fault::LostAck(_) | Fault::Late(..) | Fault::Partial(..) => Only::WRITES,
            _ => Only::ALL,
        }
    }
}

/// Two hosts of `n` rails each, in this process: r0, r1, … receive, s0, s1, … send.
pub(crate) fn two_hosts(n: usize) -> String {
    two_hosts_with(n, "")
}

/// Like [`two_hosts`], each device with `more` properties, each of them behind a comma.
pub(crate) fn two_hosts_with(n: usize, more: &str) -> String {
    let rails = |name: &str, host: u8| {
        (0..n).map(|i| format!("{name}{i}:addr=10.0.{i}.{host}/24{more}")).collect::<Vec<_>>().join(";")
    };
    format!("{};{}", rails("r", 1), rails("s", 2))
}

/// Settings of fast failures, and `more`.
pub(crate) fn env<'a>(devices: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&SHORT[..], &[("SOFTVERBS_DEVICES", devices), SPLIT_ALL], more].concat()
}

/// Makes connections between the same two devices.
pub(crate) struct Ends {
    pub(crate) table: &'static Table,
    ctx: Ptr,
    pub(crate) receiver: i32,
    pub(crate) sender: i32,
    /// The names of the adapters.
    pub(crate) devices: Vec<String>,
}

impl Ends {
    /// Between the [`two_hosts`].
    pub(crate) fn two_hosts(version: u32, n: usize) -> Self {
        let (_, receiver) = newest_device(n);
        let others: Vec<i32> = (n as i32..2 * n as i32).collect();
        let sender = vdevices::newest().fuse(&others);
        let devices = ["r", "s"].iter().flat_map(|host| (0..n).map(move |i| format!("{host}{i}"))).collect();
        let table = table(version);
        Self { table, ctx: init(table), receiver, sender, devices }
    }

    /// The only device, connected to itself.
    pub(crate) fn own(version: u32, devices: &[&str]) -> Self {
        let table = table(version);
        let devices = devices.iter().map(|name| (*name).to_owned()).collect();
        Self { table, ctx: init(table), receiver: 0, sender: 0, devices }
    }

    pub(crate) fn connect(&self) -> Pair {
        let Self { table, ctx, receiver, sender, .. } = *self;
        connect_between(table, ctx, sender, receiver)
    }

    pub(crate) fn link(&self, traffic: &Traffic) -> Link {
        Link::new(self.connect(), traffic)
    }

    /// Returns the numbers of the queue pairs on the rails of these devices, at both ends.
    pub(crate) fn queue_pairs(&self, devices: &[&str]) -> Vec<QueuePair> {
        let number = |device: &str| device.trim_start_matches(char::is_alphabetic).to_owned();
        let rails: Vec<String> = devices.iter().copied().map(number).collect();
        let all = qp_attributes().into_iter();
        all.filter(|qp| rails.contains(&number(qp.device))).map(|qp| (qp.device, qp.qpn)).collect()
    }
}

/// A queue pair by its device and number. The other end may get the number next.
pub(crate) type QueuePair = (&'static str, u32);

/// Returns whether one of these queue pairs exists.
pub(crate) fn exists(queue_pairs: &[QueuePair]) -> bool {
    qp_attributes().iter().any(|qp| queue_pairs.contains(&(qp.device, qp.qpn)))
}

/// Returns which of the points 1 to `n` are tried for the fault with this number. The next
/// fault has the next points.
pub(crate) fn sample(n: u64, fault: usize) -> impl Iterator<Item = u64> {
    let all = std::env::var(POINTS).is_ok_and(|points| points == "all");
    let step = if all { 1 } else { n.div_ceil(SAMPLE) };
    (1..=n).filter(move |at| (at + fault as u64).is_multiple_of(step))
}

/// Runs `traffic` over one connection for each of its work requests, with each of `faults` at that
/// work request, and more transfers afterwards. Returns the number of faults.
pub(crate) fn every_point(ends: &Ends, traffic: &Traffic, faults: &[Kind]) -> u64 {
    let mut points = 0;
    for (number, kind) in faults.iter().enumerate() {
        let mut link = ends.link(traffic);
        let count = || ends.devices.iter().map(|device| posted(device, kind.only()).unwrap());
        let before: Vec<u64> = count().collect();
        link.run(|| {});
        let counts: Vec<u64> = count().zip(before).map(|(after, before)| after - before).collect();
        link.close();
        for (device, n) in ends.devices.iter().zip(counts).filter(|(device, _)| kind.survives(device)) {
            for at in sample(n, number) {
                eprintln!("{:?} at {at} of {n} on {device}", kind.fault);
                strike(ends, ends.link(traffic), device, *kind, at);
                points += 1;
            }
        }
    }
    eprintln!("{points} fault points");
    points
}

/// Runs the link's traffic with a fault at a work request of a device, until both ends have
/// destroyed the rail and nothing of the fault is under way any more.
fn strike(ends: &Ends, mut link: Link, device: &str, kind: Kind, at: u64) {
    let (before, queue_pairs) = (faults_struck(device).unwrap(), ends.queue_pairs(&[device]));
    inject_at(device, kind.fault, at, kind.only()).unwrap();
    while faults_struck(device).unwrap() == before {
        link.run(|| {});
    }
    run_without(&mut link, &queue_pairs, kind.late);
    link.close();
    heal(device).unwrap();
}

/// Runs the link's traffic until these queue pairs are destroyed, then for `late`, and once
/// more: each buffer has been used again.
pub(crate) fn run_without(link: &mut Link, queue_pairs: &[QueuePair], late: Duration) {
    let (begin, mut destroyed) = (Instant::now(), None);
    while destroyed.is_none_or(|since: Instant| since.elapsed() < late) {
        link.run(|| {});
        if destroyed.is_none() && !exists(queue_pairs) {
            destroyed = Some(Instant::now());
        }
        assert!(begin.elapsed() < LIMIT / 2, "the rail is not given up");
    }
    link.run(|| {});
}

/// Prints the number of fault points of a test that has passed.
pub(crate) fn report(test: &str, log: Option<String>) {
    let points = log.iter().flat_map(|log| log.lines()).filter(|line| line.ends_with(" fault points"));
    points.for_each(|line| println!("{test}: {line}"));
}
