//! Verdicts on waits that lead to other hosts.

use super::ask::hosts_by;
use super::finding::Kind;
use super::tests::{answer_of, cause, connection, document, peer, process, still, waits};
use super::{Document, waits as waits_of};
use mpib_host_view::{Count, Host, Process, State, Waits};

/// Process 11 of this host waits for a receive of process 21 of node2.
fn here() -> Vec<Process> {
    vec![process(11, vec![waits("receive", "send", peer("node2", 21), 20)])]
}

/// What it waits for has not posted a receive, and waits for a receive of this process.
fn next(pid: u32, before: (&str, u32), after: (&str, u32)) -> Process {
    let (before, after) = (peer(before.0, before.1), peer(after.0, after.1));
    process(pid, vec![connection("recv", before), waits("receive", "send", after, 3)])
}

/// The only finding, with what these hosts answer.
fn only(of: fn(&str) -> Result<Waits, String>) -> super::Finding {
    let mut document = document(&still(here()), None, of);
    assert_eq!(document.findings.len(), 1, "{document:?}");
    document.findings.remove(0)
}

fn node2_waits_for_node3(host: &str) -> Option<Waits> {
    (host == "node2").then(|| answer_of("node2", vec![next(21, ("node1", 11), ("node3", 31))]))
}

//= why.md: waits are followed over hosts to the process that waits for nobody
#[test]
fn a_chain_over_three_hosts_is_followed_to_its_end() {
    let finding = only(|host| {
        let last = process(31, vec![connection("recv", peer("node2", 21))]);
        Ok(node2_waits_for_node3(host).unwrap_or_else(|| answer_of("node3", vec![last])))
    });
    assert_eq!((finding.kind, cause(&finding)), (Kind::NoReceive, Some(("node3", 31, true))));
    assert_eq!(
        finding.text,
        "stuck for 20 s: the connection of process 11 (python3) waits for host node3, pid 31 (python3), which has \
         posted no receive: NCCL in it asks for nothing"
    );
    assert!(
        finding.evidence[1]
            .starts_with("host node2, pid 21 (python3): 1 of 2 connections waits for a receive")
    );
    assert!(finding.next.unwrap().ends_with("\"gdb -p 31\" on host node3"));
}

#[test]
fn a_stopped_process_of_another_host_is_named() {
    let finding = only(|_| {
        let mut stopped = process(21, vec![connection("recv", peer("node1", 11))]);
        stopped.state = State::Stopped;
        Ok(answer_of("node2", vec![stopped]))
    });
    assert_eq!((finding.kind, cause(&finding)), (Kind::Held, Some(("node2", 21, true))));
    assert!(
        finding.text.ends_with("host node2, pid 21 (python3), which is stopped (state T)"),
        "{}",
        finding.text
    );
    assert!(finding.next.unwrap().starts_with("\"kill -CONT 21\" on host node2, unless"));
}

#[test]
fn a_process_of_another_host_that_moves_other_data_is_no_silent_one() {
    let finding = only(|_| {
        let host = |done| {
            let mut moves = process(21, vec![connection("recv", peer("node1", 11))]);
            moves.totals.send.done = Count(done);
            Host { hostname: "node2".into(), processes: vec![moves], ..Host::default() }
        };
        Ok(Waits::of(&[&host(1), &host(2)]))
    });
    assert!(finding.text.ends_with("has posted no receive and moves other data"), "{}", finding.text);
}

//= why.md: connections of the cause that have failed are named
#[test]
fn a_process_of_another_host_whose_connections_have_failed_is_named_with_them() {
    let finding = only(|_| {
        let mut failed = connection("send", peer("node3", 31));
        failed.state = "failed".into();
        let process = process(21, vec![connection("recv", peer("node1", 11)), failed]);
        Ok(answer_of("node2", vec![process]))
    });
    assert!(
        finding.text.ends_with("which has posted no receive: 1 of its connections failed before"),
        "{finding:?}"
    );
}

//= why.md: a circle over hosts is named as one
#[test]
fn a_circle_over_two_hosts_is_named_and_ends() {
    let finding = only(|_| Ok(answer_of("node2", vec![next(21, ("node1", 11), ("node1", 11))])));
    assert_eq!((finding.kind, finding.processes), (Kind::Circle, vec![11]));
    assert_eq!(
        finding.text,
        "stuck for 20 s: process 11 (python3) and host node2, pid 21 (python3) wait for each other in a circle"
    );
}

#[test]
fn a_circle_without_this_host_is_named_and_ends() {
    let finding = only(|host| {
        let answer = node2_waits_for_node3(host);
        Ok(answer.unwrap_or_else(|| answer_of("node3", vec![next(31, ("node2", 21), ("node2", 21))])))
    });
    assert_eq!(finding.kind, Kind::Circle);
    assert!(
        finding.text.ends_with(
            ": host node2, pid 21 (python3) and host node3, pid 31 (python3) wait for each other in a circle"
        ),
        "{}",
        finding.text
    );
}

//= why.md: a process of another host is followed if one of its connections leads back
#[test]
fn a_number_of_another_container_is_not_followed_on_another_host() {
    let finding =
        only(|_| Ok(answer_of("node2", vec![process(21, vec![connection("recv", peer("node9", 1))])])));
    assert_eq!(cause(&finding), Some(("node2", 21, false)));
    assert!(finding.next.unwrap().contains("no statistics page that the agent or doctor there may read"));
}

//= why.md: where an answer is missing the chain ends, and the reason is named
#[test]
fn a_chain_ends_where_a_host_does_not_answer() {
    let of = |host: &str| node2_waits_for_node3(host).ok_or_else(|| "no agent listens there".to_owned());
    let found = document(&still(here()), None, of);
    let finding = &found.findings[0];
    assert_eq!(cause(finding), Some(("node3", 31, false)));
    assert!(
        finding.text.ends_with("waits for host node3, pid 31, which has posted no receive"),
        "{}",
        finding.text
    );
    assert_eq!(finding.evidence[2], "host node3 has not answered: no agent listens there");
    let asked: Vec<_> = found.hosts.iter().map(|asked| (&*asked.host, asked.error.as_deref())).collect();
    assert_eq!(asked, [("node2", None), ("node3", Some("no agent listens there"))]);
}

//= why.md: at most 16 hosts, or --ask, are asked
#[test]
fn no_more_hosts_are_asked_than_wanted() {
    let many =
        (1..=20).map(|n| process(n, vec![waits("receive", "send", peer(&format!("node{}", n + 1), 9), 9)]));
    let looks = still(many.collect());
    let own = waits_of(&looks);
    for most in [0, 3, 16] {
        let asked = hosts_by(&own, None, most, |_, _| Err("x".into()));
        let answered = asked.iter().filter(|asked| asked.error.as_deref() == Some("x")).count();
        assert_eq!((asked.len(), answered), (20, most));
        let why = if most == 0 { "--ask 0" } else { "as --ask has it" };
        assert!(asked[19].error.as_ref().unwrap().ends_with(why));
        let document = Document::of(&looks, &own, asked, Some(20));
        assert!(document.findings[0].evidence[1].ends_with(why), "{document:?}");
    }
    // A chain over hosts counts each of them.
    let of = |host: &str, _| {
        let n: u32 = host[4..].parse().unwrap();
        Ok(answer_of(
            host,
            vec![next(n, (&format!("node{}", n - 1), n - 1), (&format!("node{}", n + 1), n + 1))],
        ))
    };
    let looks = still(vec![process(1, vec![waits("receive", "send", peer("node2", 2), 9)])]);
    let asked = hosts_by(&waits_of(&looks), None, 5, of);
    assert_eq!(asked.iter().filter(|asked| asked.error.is_none()).count(), 5);
    assert_eq!((asked.len(), &*asked[5].host), (6, "node7"));
}

#[test]
fn a_host_is_asked_at_the_address_of_its_control_connection() {
    let address = |peer: &str| super::ask::address(peer).map(|address| address.to_string());
    assert_eq!(address("192.0.2.9:4000 (node2, pid 21)").as_deref(), Some("192.0.2.9:4000"));
    assert_eq!(address("[fe80::1%2]:4000 (node2, pid 21)").as_deref(), Some("[fe80::1%2]:4000"));
    assert_eq!(address("node2 (node2, pid 21)"), None);
}

#[test]
fn a_peer_without_an_address_in_its_name_is_not_asked() {
    let mut processes = here();
    processes[0].connections[0].peer = "somewhere (node2, pid 21)".into();
    let found = document(&still(processes), None, |host| panic!("{host} was asked"));
    assert!(
        found.findings[0].evidence[1].ends_with("its address is not in the name of the peer"),
        "{found:?}"
    );
}
