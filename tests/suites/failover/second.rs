//! A second rail that dies at each work request from the death of the first one on.

use std::cell::Cell;

use mpib_tests::{here, isolated};
use softverbs::{Direction, Fault, Only, Part, Then, faults_struck, heal, inject_at, posted};

use super::points::{Ends, Kind, at_once, env, late, report, sample, two_hosts};
use super::traffic::Traffic;

/// Adapters of different rails: the first dies first. s0 and s1 send data, r0 sends CTS entries,
/// and r1 does after the death of rail 0.
const PAIRS: [(&str, &str); 8] = [
    ("s0", "s1"),
    ("s0", "r1"),
    ("r0", "s1"),
    ("r0", "r1"),
    ("s1", "s0"),
    ("s1", "r0"),
    ("s1", "s2"),
    ("s2", "s1"),
];

const FIRST: [Kind; 4] = [
    at_once(Fault::LostAck(Then::Alive)),
    at_once(Fault::Partial(Part::Percent(100), Then::Silent)),
    at_once(Fault::Silence(Direction::Both)),
    at_once(Fault::LinkDown),
];

const SECOND: [Kind; 3] =
    [at_once(Fault::LostAck(Then::Silent)), late(2, Then::Alive), at_once(Fault::LinkDown)];

/// A fault at a work request of an adapter.
#[derive(Clone, Copy)]
struct Armed<'a> {
    device: &'a str,
    kind: Kind,
    at: u64,
}

impl Armed<'_> {
    fn arm(&self) {
        inject_at(self.device, self.kind.fault, self.at, self.kind.only()).unwrap();
    }
}

/// Counts what a device posts from the strike of `first` to the end of the next run.
fn count(ends: &Ends, traffic: &Traffic, first: Armed<'_>, device: &str, only: Only) -> u64 {
    let mut link = ends.link(traffic);
    let (struck, begin) = (faults_struck(first.device).unwrap(), Cell::new(None));
    first.arm();
    let watch = || {
        if begin.get().is_none() && faults_struck(first.device).unwrap() > struck {
            begin.set(Some(posted(device, only).unwrap()));
        }
    };
    while begin.get().is_none() {
        link.run(watch);
    }
    link.run(|| {});
    let n = posted(device, only).unwrap() - begin.get().unwrap();
    link.close();
    heal(first.device).unwrap();
    n
}

/// Runs with both faults until neither rail carries anything any more. Returns whether the second
/// fault has struck.
fn strike(ends: &Ends, traffic: &Traffic, first: Armed<'_>, second: Armed<'_>) -> bool {
    let mut link = ends.link(traffic);
    let struck = |fault: Armed<'_>| faults_struck(fault.device).unwrap();
    let before = (struck(first), struck(second));
    first.arm();
    let armed = Cell::new(false);
    let watch = || {
        if !armed.get() && struck(first) > before.0 {
            second.arm();
            armed.set(true);
        }
    };
    while !armed.get() {
        link.run(watch);
    }
    ends.run_without(&mut link, &[first.device, second.device], second.kind.late);
    link.close();
    let strikes = struck(second) > before.1;
    heal(first.device).unwrap();
    heal(second.device).unwrap();
    strikes
}

fn every_second_death(test: &str, more: &[(&str, &str)], traffic: &Traffic) {
    let devices = two_hosts(3);
    let log = isolated(test, &env(&devices, more), || {
        let (ends, mut points) = (Ends::two_hosts(12, 3), 0);
        for (number, (device, other)) in PAIRS.into_iter().enumerate() {
            for (i, kind) in FIRST.into_iter().enumerate() {
                let second = SECOND[(number + i) % SECOND.len()];
                let first = Armed { device, kind, at: 2 };
                let n = count(&ends, traffic, first, other, second.only());
                for at in sample(n, number + i) {
                    let (a, b) = (kind.fault, second.fault);
                    eprintln!("{a:?} at 2 on {device}, then {b:?} at {at} of {n} on {other}");
                    let second = Armed { device: other, kind: second, at };
                    points += u64::from(strike(&ends, traffic, first, second));
                }
            }
        }
        eprintln!("{points} fault points");
    });
    report(test, log);
}

//= protocol.md: episode: each further death is a further episode
#[test]
fn messages() {
    every_second_death(here!(), &[], &Traffic::of(&[&[3000], &[8], &[200], &[0]], 3, 4));
}

//= protocol.md: episode: each further death is a further episode
#[test]
fn groups() {
    every_second_death(here!(), &[], &Traffic::of(&[&[1000, 5, 0, 900], &[0, 0], &[10, 2000]], 2, 3));
}

//= protocol.md: episode: each further death is a further episode
#[test]
fn optional_receives() {
    every_second_death(here!(), &[], &Traffic::of(&[&[8], &[1000], &[3000], &[1, 1]], 3, 4).optional());
}

//= protocol.md: episode: each further death is a further episode
#[test]
fn separate_immediates() {
    let more = [("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "256")];
    every_second_death(here!(), &more, &Traffic::of(&[&[1000], &[200], &[5000]], 2, 3));
}
