//! A fleet without hosts: the same plan, schedule and judge with made-up answers, on a clock that
//! costs no time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Pair as PortPair, Verdict as RouteVerdict};

use super::judge::judge;
use super::plan::{Pair, Pairs};
use super::schedule::{Ended, Schedule};
use super::*;
use crate::doctor::{
    judge::PortFacts,
    peer::{LostPort, Measured},
    text::Detail,
};

/// Seconds that a good pair takes, and one with a host that gives no answer.
const GOOD: u64 = 4;
const SILENT: u64 = 300;
const SEED: u64 = 11;

/// What is wrong in a fleet. Numbers of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// All of its ports are slow.
    Slow(usize),
    /// Its second port is slow.
    SlowPort(usize),
    /// Its second port carries no data.
    DeadPort(usize),
    /// The link of its second port is down.
    Down(usize),
    /// It does not answer.
    Dead(usize),
    /// It answers, and then no more.
    Dies(usize),
    /// The cable between two hosts.
    Cable(usize, usize),
}

/// A run on a clock.
struct Run {
    fleet: Fleet,
    seconds: u64,
    /// Most pairs at a time.
    most: usize,
}

/// Makes the result of a fleet of so many hosts with these faults.
pub(super) fn fleet(hosts: usize, faults: &[Fault]) -> Fleet {
    run(hosts, Pairs::usual(hosts), faults).fleet
}

fn run(count: usize, rule: Pairs, faults: &[Fault]) -> Run {
    let planned = rule.of(count, SEED).unwrap();
    let mut hosts: Vec<Host> = (0..count).map(|number| host(number, faults)).collect();
    let answers: Vec<bool> = hosts.iter().map(|host| host.summary.is_some()).collect();
    let mut schedule = Schedule::new(&planned, &answers, AT_ONCE);
    let mut outcomes: Vec<Option<Result<Checked, Failure>>> = planned.iter().map(|_| None).collect();
    let (mut now, mut most, mut running) = (0, 0, BinaryHeap::new());
    loop {
        while let Some(number) = schedule.next() {
            let (takes, how, outcome) = checked(planned[number], faults);
            outcomes[number] = Some(outcome);
            running.push(Reverse((now + takes, number, how == Ended::Silent, how == Ended::Checked)));
        }
        most = most.max(running.len());
        let Some(Reverse((end, number, is_silent, is_good))) = running.pop() else { break };
        now = end;
        let how = match (is_silent, is_good) {
            (true, _) => Ended::Silent,
            (_, true) => Ended::Checked,
            _ => Ended::Failed,
        };
        schedule.ended(number, how);
    }
    assert!(schedule.is_over());
    for (host, is_given_up) in hosts.iter_mut().zip(schedule.given_up()) {
        host.is_given_up = is_given_up;
    }
    let pairs: Vec<HostPair> =
        planned.iter().zip(outcomes).map(|(ends, outcome)| HostPair::new(*ends, &hosts, outcome)).collect();
    let judgement = judge(&hosts, &pairs);
    let fleet = Fleet::new(rule, Some(SEED), judgement, Vec::new(), hosts, pairs);
    Run { fleet, seconds: now, most }
}

fn host(number: usize, faults: &[Fault]) -> Host {
    let (name, address) = (format!("node{number}"), format!("10.0.0.1:{number}"));
    if faults.contains(&Fault::Dead(number)) {
        let (summary, error) = split(Err(Failure::new(Kind::Peer, "cannot connect to it")));
        return Host { name, address, error, is_given_up: false, summary };
    }
    let is_down = faults.contains(&Fault::Down(number));
    let facts = |name: &str| PortFacts {
        name: name.into(),
        mtu: 4096,
        speed_mbps: None,
        limit_mbps: Some(400_000),
        verbs: None,
    };
    let lost = LostPort { name: "b:1".into(), why: "the port is not active".into() };
    let summary = Summary {
        host: name.clone(),
        mpib: "x".into(),
        verdict: Verdict::Usable,
        checks: vec![Check::new("agent", Level::Note, "no agent")],
        tables: vec![12],
        hello: None,
        ports: if is_down { vec![facts("a:1")] } else { vec![facts("a:1"), facts("b:1")] },
        lost: if is_down { vec![lost] } else { Vec::new() },
        devices: Vec::new(),
        plugin: None,
        settings: Vec::new(),
    };
    Host { name, address, error: None, is_given_up: false, summary: Some(summary) }
}

/// Returns how long a pair takes, and what comes of it.
fn checked(pair: Pair, faults: &[Fault]) -> (u64, Ended, Result<Checked, Failure>) {
    let Pair { from, to } = pair;
    let any = |fault: fn(usize) -> Fault| [from, to].iter().any(|host| faults.contains(&fault(*host)));
    if faults.contains(&Fault::Dies(from)) {
        return (SILENT, Ended::Silent, Err(Failure::new(Kind::Peer, "it sent nothing for 300s")));
    }
    if faults.contains(&Fault::Dies(to)) {
        return (20, Ended::Failed, Err(Failure::new(Kind::Peer, "cannot connect to it")));
    }
    // Each pair has another rate.
    let noise = 1.0 - ((from * 31 + to * 17) % 20) as f64 / 100.0;
    let rate = |is_slow: bool| if is_slow { 5.0 * noise } else { 45.0 * noise };
    let is_cut = faults.contains(&Fault::Cable(from, to));
    let second = match any(Fault::DeadPort) || is_cut {
        true => Err("the probe did not complete in time"),
        false => Ok(rate(any(Fault::Slow) || any(Fault::SlowPort))),
    };
    let mut routes = vec![row("a:1", Ok(rate(any(Fault::Slow))))];
    if !any(Fault::Down) {
        routes.push(row("b:1", second));
    }
    let mut checks = vec![Check::new("peer", Level::Ok, "usable")];
    if second.is_err() {
        checks.push(Check::new("routes", Level::Warn, "b:1 to b:1 does not work"));
    }
    (GOOD, Ended::Checked, Ok(Checked { checks, routes }))
}

fn row(port: &str, outcome: Result<f64, &str>) -> Row {
    let measured = Measured { gigabytes_per_second: outcome.ok(), error: outcome.err().map(str::to_owned) };
    let verdict = RouteVerdict::First;
    let pair = PortPair { ours: port.into(), theirs: port.into(), verdict, way: None, why: String::new() };
    let back = Some(measured.clone()).filter(|measured| measured.error.is_none());
    Row { pair, out: Some(measured), back }
}

fn bad(fleet: &Fleet) -> Vec<&str> {
    fleet.judgement.bad_hosts.iter().map(|host| &*host.name).collect()
}

fn reasons(fleet: &Fleet, name: &str) -> String {
    let host = fleet.judgement.bad_hosts.iter().find(|host| host.name == name).expect(name);
    host.reasons.iter().map(|check| format!("{} {:?}\n", check.text, check.code)).collect()
}

/// Hosts that are slow, dead, have one slow port, one that is down, and one that dies later.
//= fleet.md: of 500 hosts the bad ones are named, each with its reason
#[test]
fn of_five_hundred_hosts_the_bad_ones_are_named() {
    use Fault::*;
    let faults = [
        Slow(17),
        Slow(250),
        Slow(251),
        Dead(3),
        Dead(499),
        SlowPort(77),
        DeadPort(130),
        Down(200),
        Dies(340),
    ];
    let begin = Instant::now();
    let Run { fleet, seconds, most } = run(500, Pairs::Random(3), &faults);
    println!(
        "500 hosts: {} pairs, {seconds} s of {GOOD} s each, {most} at a time; planned and judged in {:?}",
        fleet.pairs.len(),
        begin.elapsed()
    );
    assert_eq!(fleet.pairs.len(), 1500);
    let expected = [3, 17, 77, 130, 200, 250, 251, 340, 499].map(|number| format!("node{number}"));
    assert_eq!(bad(&fleet), expected);
    assert_eq!(fleet.judgement.bad_pairs, []);
    assert!(
        reasons(&fleet, "node17").contains("a:1 with 6 hosts: ")
            && reasons(&fleet, "node17").contains("b:1 with")
    );
    assert!(reasons(&fleet, "node17").contains("MPIB-609"));
    let slow_port = reasons(&fleet, "node77");
    assert!(slow_port.starts_with("b:1 with 6 hosts: ") && !slow_port.contains("a:1"), "{slow_port}");
    let dead_port = reasons(&fleet, "node130");
    assert!(dead_port.starts_with("b:1 carries no data with 6 hosts: nothing came through"), "{dead_port}");
    let down = "it uses 1 of 2 ports that most hosts use: b:1 (the port is not active)";
    assert!(reasons(&fleet, "node200").starts_with(down), "{}", reasons(&fleet, "node200"));
    assert!(reasons(&fleet, "node340").starts_with("it was given up: "), "{}", reasons(&fleet, "node340"));
    // The others do not wait for the host that dies.
    assert!(most >= 200 && seconds <= SILENT + 30 * GOOD, "{seconds} s, {most} at a time");
    let without = run(500, Pairs::Random(3), &faults[..8]);
    assert!(without.seconds <= 12 * GOOD, "{} s", without.seconds);
}

//= fleet.md: a fleet without a fault has no finding
#[test]
fn a_good_fleet_has_no_bad_host() {
    for (hosts, rule) in [(2, Pairs::All), (16, Pairs::All), (40, Pairs::Ring), (500, Pairs::Random(3))] {
        let fleet = run(hosts, rule, &[]).fleet;
        assert_eq!(
            (bad(&fleet), fleet.judgement.bad_pairs.len(), fleet.verdict),
            (vec![], 0, Verdict::Usable)
        );
    }
}

#[test]
fn a_pair_is_named_if_neither_host_is_bad() {
    let text = |fleet: &Fleet| anstream::adapter::strip_str(&text::text(fleet, Detail::Normal)).to_string();
    let fleet = run(10, Pairs::All, &[Fault::Cable(2, 5)]).fleet;
    assert_eq!(bad(&fleet), [""; 0]);
    let said = text(&fleet);
    assert!(said.contains("warn  node2 to node5: b:1 to b:1 does not work"), "{said}");
    // Of a host that is bad, its pairs are not.
    let fleet = run(10, Pairs::All, &[Fault::DeadPort(4)]).fleet;
    assert_eq!(bad(&fleet), ["node4"]);
    let said = text(&fleet);
    assert!(
        said.starts_with(
            "usable with losses: 10 hosts, 45 pairs (all, seed 11), 1 bad host\nwarn  node4: b:1"
        ),
        "{said}"
    );
    assert!(!said.contains("to node4: b:1") && !said.contains("node4 to"), "{said}");
}

/// A port whose link is down is in no measurement.
//= fleet.md: a host with a dead port has not all ports in the matrix
#[test]
fn a_port_that_is_down_takes_the_full_marks() {
    for (hosts, faults) in [(2, vec![Fault::Down(1)]), (4, (0..4).map(Fault::Down).collect())] {
        let fleet = run(hosts, Pairs::All, &faults).fleet;
        let pair = fleet.pairs.iter().find(|pair| pair.has(1)).unwrap();
        assert_eq!((text::cell(pair), text::quality(pair)), ("1 of 2".into(), Level::Warn));
        // Where no host has the port, none is bad.
        assert_eq!(bad(&fleet).len(), usize::from(hosts == 2));
    }
}

/// Adapters of other names are compared by their limit.
#[test]
fn a_slow_port_is_found_where_names_differ() {
    let mut hosts: Vec<Host> = (0..12).map(|number| host(number, &[])).collect();
    for (number, host) in hosts.iter_mut().enumerate() {
        for port in host.summary.iter_mut().flat_map(|summary| &mut summary.ports) {
            port.name = format!("{number}{}", port.name);
        }
    }
    let pairs = Pairs::All.of(12, SEED).unwrap().into_iter().map(|ends| {
        let (_, _, outcome) = checked(ends, &[Fault::Slow(9)]);
        let mut checked = outcome.unwrap();
        for row in &mut checked.routes {
            row.pair.ours = format!("{}{}", ends.from, row.pair.ours);
            row.pair.theirs = format!("{}{}", ends.to, row.pair.theirs);
        }
        HostPair::new(ends, &hosts, Some(Ok(checked)))
    });
    let found = judge(&hosts, &pairs.collect::<Vec<_>>());
    assert_eq!(found.bad_hosts.iter().map(|host| &*host.name).collect::<Vec<_>>(), ["node9"]);
    assert_eq!(found.medians.len(), 1);
    assert_eq!((found.medians[0].ports.clone(), found.medians[0].hosts), (None, 12));
}

/// A link that came up at half of its speed carries all that it can.
//= fleet.md: a port whose link is slower than in most hosts is named
#[test]
fn a_link_that_is_slower_than_in_most_hosts_is_named() {
    let mut hosts: Vec<Host> = (0..5).map(|number| host(number, &[])).collect();
    hosts[3].summary.as_mut().unwrap().ports[1].limit_mbps = Some(200_000);
    let found = judge(&hosts, &[]);
    assert_eq!(found.bad_hosts.len(), 1);
    let check = &found.bad_hosts[0].reasons[0];
    assert_eq!(
        (&*found.bad_hosts[0].name, &*check.text),
        ("node3", "b:1 and its PCIe link carry at most 200 Gb/s, and 400 Gb/s in most hosts")
    );
}
