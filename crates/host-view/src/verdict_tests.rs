//! The line for made-up hosts.

use super::*;
use crate::{Process, Wait};

const AT_MS: u64 = 10_000_000;

fn rail(name: &str, lacks: Option<Lack>) -> Rail {
    Rail {
        name: name.into(),
        given_up_at_ms: lacks.map(|_| AT_MS - 192_500),
        lacks: lacks.map(|lack| lack.word().into()),
        ..Rail::default()
    }
}

fn connection(rails: [(&str, Option<Lack>); 2]) -> Connection {
    let rails = rails.into_iter().map(|(name, lack)| rail(name, lack)).collect();
    Connection { state: "open".into(), direction: "send".into(), rails, ..Connection::default() }
}

fn port(name: &str, state: &str, scale: u32) -> Port {
    Port { state: state.into(), scale, ..Port::unused(name) }
}

fn host(ports: Vec<Port>, connections: Vec<Connection>) -> Host {
    let open = u32::try_from(connections.len()).unwrap();
    let process = Process { open, ports, connections, ..Process::default() };
    let mut host = Host { at_ms: AT_MS, processes: vec![process], ..Host::default() };
    host.sum(&Default::default());
    host.judge();
    host
}

fn verdict(host: &Host) -> (&str, &str, usize) {
    let Verdict { level, text, degraded } = &host.verdict;
    (level, text, *degraded)
}

fn up() -> Vec<Port> {
    vec![port("a:1", "healthy", 1024), port("b:1", "healthy", 1024)]
}

const BOTH: [(&str, Option<Lack>); 2] = [("a:1", None), ("b:1", None)];

//= stats.md: the first line says which connections run without a rail, and why
#[test]
fn the_line_counts_connections_and_names_rails() {
    let well = host(up(), vec![connection(BOTH); 48]);
    assert_eq!(verdict(&well), ("good", "48 connections, all rails up", 0));
    assert_eq!(verdict(&host(up(), vec![])), ("good", "no open connection", 0));
    let lacks = |lack| connection([("a:1", None), ("b:1", Some(lack))]);
    let (stall, connect) = (Lack::GivenUp(Reason::Stall), Lack::Connect);
    let two = host(up(), vec![connection(BOTH), lacks(connect), lacks(stall), lacks(stall)]);
    let text = "3 of 4 connections are degraded: 2 lack b:1 for 3 min 12 s (stall), 1 lacks b:1 for 3 min 12 s (connect)";
    assert_eq!(verdict(&two), ("bad", text, 3));
    // A device of many ports.
    let rails = ["a:1", "b:1", "c:1", "d:1"].map(|name| rail(name, Some(connect))).to_vec();
    let many = host(up(), vec![Connection { rails, ..connection(BOTH) }]);
    assert!(many.verdict.text.ends_with("1 lacks c:1 for 3 min 12 s (connect), and 1 more"), "{many:?}");
}

//= stats.md: the reason of a rail whose port is down is the port
#[test]
fn a_port_that_is_down_is_the_reason() {
    let down = || vec![port("a:1", "healthy", 1024), port("b:1", "down", 1024)];
    let completion = connection([("a:1", None), ("b:1", Some(Lack::GivenUp(Reason::Completion)))]);
    let text = "1 of 1 connection is degraded: 1 lacks b:1 for 3 min 12 s (port)";
    assert_eq!(verdict(&host(down(), vec![completion])), ("bad", text, 1));
    // The last rail of a connection is not given up.
    let last = Connection { rails: vec![rail("b:1", None)], ..connection(BOTH) };
    let text = "1 of 1 connection is degraded: 1 lacks b:1 (port)";
    assert_eq!(verdict(&host(down(), vec![last])), ("bad", text, 1));
    let left_out = connection([("a:1", None), ("b:1", Some(Lack::LeftOut))]);
    assert_eq!(
        host(down(), vec![left_out]).processes[0].connections[0].rails[1].lacks.as_deref(),
        Some("left_out")
    );
    assert_eq!(verdict(&host(down(), vec![])), ("bad", "0 connections: b:1 is down", 0));
}

//= stats.md: a rail on a drained port counts with that reason, unless the connection has no other
#[test]
fn a_drained_port_is_a_reason() {
    let drained = |a, b| vec![port("a:1", "healthy", a), port("b:1", "healthy", b)];
    let receives = Connection { direction: "recv".into(), ..connection(BOTH) };
    let one = host(drained(1024, 0), vec![connection(BOTH), receives]);
    let text = "1 of 2 connections is degraded: 1 lacks b:1 (drained)";
    assert_eq!(verdict(&one), ("drained", text, 1));
    assert_eq!(verdict(&host(drained(0, 0), vec![connection(BOTH)])).0, "good");
    let last = connection([("a:1", Some(Lack::Connect)), ("b:1", None)]);
    assert_eq!(
        verdict(&host(drained(1024, 0), vec![last])).1,
        "1 of 1 connection is degraded: 1 lacks a:1 for 3 min 12 s (connect)"
    );
}

//= stats.md: the first line has failed connections, and waits of a minute for anything but data
#[test]
fn failures_and_long_waits_are_in_the_line() {
    let waits = |what: Awaited, ms: u64| Connection {
        wait: Some(Wait {
            r#for: what.word().into(),
            what: what.of_peer(None, "host-b"),
            since_ms: AT_MS - ms,
        }),
        ..connection(BOTH)
    };
    let usual = vec![waits(Awaited::Data, 600_000), waits(Awaited::Receive, 59_999)];
    assert_eq!(verdict(&host(up(), usual)).0, "good");
    let failed =
        Connection { state: "failed".into(), ..connection([("a:1", None), ("b:1", Some(Lack::Connect))]) };
    let all = vec![failed, waits(Awaited::Receive, 72_000), waits(Awaited::Room, 60_000)];
    let text = "3 connections: 1 has failed; 2 wait, one of them 1 min 12 s for a receive of host-b";
    assert_eq!(verdict(&host(up(), all)), ("bad", text, 0));
    let mut full = host(up(), vec![waits(Awaited::Room, 7_260_000)]);
    (full.processes[0].open, full.processes[0].not_shown) = (1100, 76);
    full.judge();
    assert_eq!(
        full.verdict.text,
        "1100 connections (76 not shown): 1 waits 2 h 1 min for room in a queue to host-b"
    );
}
