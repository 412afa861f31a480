//! Who waits, from readings; and documents of other hosts.

use super::*;
use crate::Wait;

const AT: u64 = 1_000_000;

fn connection(direction: &str, peer: &str, wait: Option<(&str, u64)>) -> Connection {
    let wait = wait.map(|(r#for, ms)| Wait { r#for: r#for.into(), since_ms: AT - ms, ..Wait::default() });
    let (state, direction, peer) = ("open".into(), direction.into(), peer.into());
    Connection { state, direction, peer, wait, ..Connection::default() }
}

fn host(state: State, done: u64, connections: &[Connection]) -> Host {
    let mut process = Process { pid: 7, state, connections: connections.to_vec(), ..Process::default() };
    process.totals.send.done = Count(done);
    Host { at_ms: AT, hostname: "node1".into(), processes: vec![process], ..Host::default() }
}

/// What the process does between two readings.
fn between(first: &Host, last: &Host) -> Waiter {
    Waits::of(&[first, last]).processes.remove(0)
}

fn waits(done: u64, connections: &[Connection]) -> Option<(Awaited, usize, u64)> {
    let [first, last] = [0, done].map(|done| host(State::Alive, done, connections));
    between(&first, &last).wait.map(|wait| (wait.r#for, wait.waiting, wait.waited_ms))
}

#[test]
fn connections_to_one_process_are_one_wait() {
    let names = ["192.0.2.7:1 (node7, pid 9)", "192.0.2.7:2 (node7, pid 9)", "192.0.2.7:3 (node7, pid 10)"];
    let of = |(name, ms): (&str, u64)| connection("send", name, Some(("receive", ms)));
    let all: Vec<_> = names.into_iter().zip([6_000, 7_000, 9_000]).map(of).collect();
    assert_eq!(waits(0, &all), Some((Awaited::Receive, 2, 7_000)));
    let process = between(&host(State::Alive, 0, &all), &host(State::Alive, 0, &all));
    assert_eq!(process.peers.len(), 2);
    assert!(process.is_peer_of("node7", 10) && !process.is_peer_of("node8", 10));
}

//= why.md: a process that moves data waits if it does so for 5 s
#[test]
fn moments_count_while_nothing_moves() {
    let name = "192.0.2.7:1 (node7, pid 9)";
    let short = [connection("send", name, Some(("receive", 10)))];
    assert_eq!((waits(0, &short), waits(1, &short)), (Some((Awaited::Receive, 1, 10)), None));
    let data = [connection("recv", name, Some(("data", 60_000)))];
    assert_eq!((waits(0, &data), waits(1, &data)), (Some((Awaited::Data, 1, 60_000)), None));
    // What has lasted comes first, and then what is grave.
    let both = [short, data].concat();
    assert_eq!(waits(0, &both), Some((Awaited::Data, 1, 60_000)));
}

#[test]
fn an_access_to_a_disk_is_no_hang() {
    let state = |states: [State; 2]| {
        let [first, last] = states.map(|state| host(state, 0, &[]));
        between(&first, &last).state
    };
    assert_eq!(state([State::Alive, State::Uninterruptible]), State::Alive);
    assert_eq!(state([State::Uninterruptible; 2]), State::Uninterruptible);
    assert_eq!(state([State::Alive, State::Stopped]), State::Stopped);
}

//= why.md: what another host answers is checked
#[test]
fn a_wrong_answer_of_a_host_is_refused() {
    let received = |waits: &Waits| Waits::received(&serde_json::to_vec(waits).unwrap(), "node7");
    let wait = Waiting { r#for: Awaited::Receive, peer: "x".into(), waiting: 1, of: 2, waited_ms: u64::MAX };
    let process = Waiter { pid: 9, wait: Some(wait.clone()), ..Waiter::default() };
    let good = Waits { format: 1, hostname: "node7".into(), at_ms: 0, processes: vec![process.clone()] };
    assert_eq!(received(&good), Ok(good.clone()));
    let long = "x".repeat(513);
    let with = |process: Waiter| Waits { processes: vec![process], ..good.clone() };
    for (bad, expected) in [
        (Waits { format: 2, ..good.clone() }, "its answer has format 2, expected 1"),
        (Waits { hostname: "node8".into(), ..good.clone() }, "the host that answers there is node8"),
        (
            Waits { processes: vec![process.clone(), process.clone()], ..good.clone() },
            "process 9 is in it twice",
        ),
        (
            Waits {
                processes: (0..=1024).map(|pid| Waiter { pid, ..Waiter::default() }).collect(),
                ..good.clone()
            },
            "more than 1024 processes",
        ),
        (with(Waiter { command: long.clone(), ..process.clone() }), "a name of more than 512 bytes"),
        (with(Waiter { peers: vec![Peer { host: long.clone(), pid: 1 }], ..process.clone() }), "512 bytes"),
        (with(Waiter { wait: Some(Waiting { peer: long, ..wait.clone() }), ..process.clone() }), "512 bytes"),
        (with(Waiter { wait: Some(Waiting { waiting: 3, ..wait.clone() }), ..process.clone() }), "on 3 of 2"),
        (with(Waiter { wait: Some(Waiting { waiting: 0, ..wait }), ..process }), "on 0 of 2"),
    ] {
        let why = received(&bad).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
    for bad in ["", "[]", "{\"format\": 1}", "{\"format\": 1e99}", "nonsense"] {
        assert!(Waits::received(bad.as_bytes(), "node7").unwrap_err().contains("cannot be read"), "{bad}");
    }
}
