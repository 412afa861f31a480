//! Verdicts on made-up hosts.

use mpib_host_view::{
    Adapter, Communicator, Connection, Count, Host, Operation, OperationRail, Port, Process, Rail, State,
    Wait, Waits,
};

use super::ask::hosts_by;
use super::finding::{Finding, Kind};
use super::known::Known;
use super::look::Look;
use super::{Document, verdict, waits as waits_of};

const START: u64 = 1_000_000;

/// A peer on a host.
pub(super) fn peer(host: &str, pid: u32) -> String {
    format!("192.0.2.9:4000 ({host}, pid {pid})")
}

pub(super) fn connection(direction: &str, peer: String) -> Connection {
    let rail = |name: &str| Rail { name: name.into(), ..Rail::default() };
    Connection {
        state: "open".into(),
        direction: direction.into(),
        peer,
        rails: vec![rail("mlx5_0:1"), rail("mlx5_1:1")],
        ..Connection::default()
    }
}

/// A connection that waits since so many seconds before the last look.
pub(super) fn waits(r#for: &str, direction: &str, peer: String, seconds: u64) -> Connection {
    let wait = Wait { r#for: r#for.into(), what: String::new(), since_ms: START + 5_000 - seconds * 1_000 };
    Connection { wait: Some(wait), ..connection(direction, peer) }
}

pub(super) fn process(pid: u32, connections: Vec<Connection>) -> Process {
    Process { pid, command: "python3".into(), made_ms: 1, connections, ..Process::default() }
}

/// A process that has sent so many bytes.
fn sends(pid: u32, bytes: u64) -> Process {
    let mut process = process(pid, vec![connection("send", peer("node2", 9))]);
    (process.totals.send.requests, process.totals.send.bytes) = (Count(bytes), Count(bytes));
    process
}

fn look(at_ms: u64, processes: Vec<Process>) -> Look {
    Look { host: host("node1", at_ms, processes), ..Look::default() }
}

fn host(name: &str, at_ms: u64, processes: Vec<Process>) -> Host {
    Host { at_ms, hostname: name.into(), processes, ..Host::default() }
}

/// The verdict on these looks alone.
fn found(looks: &[Look], pid: Option<u32>) -> Vec<Finding> {
    verdict(looks, Known { own: &waits_of(looks), asked: &[] }, pid)
}

/// The document on these looks, with what other hosts answer.
pub(super) fn document(
    looks: &[Look],
    pid: Option<u32>,
    answer: impl Fn(&str) -> Result<Waits, String> + Sync,
) -> Document {
    let own = waits_of(looks);
    let asked = hosts_by(&own, pid, 16, |host, _| answer(host));
    Document::of(looks, &own, asked, pid)
}

/// What a host answers on which nothing moves.
pub(super) fn answer_of(name: &str, processes: Vec<Process>) -> Waits {
    let host = host(name, START, processes);
    Waits::of(&[&host, &host])
}

/// Two looks at processes that move nothing between them.
pub(super) fn still(processes: Vec<Process>) -> [Look; 2] {
    [look(START, processes.clone()), look(START + 5_000, processes)]
}

/// The only finding.
fn only(looks: &[Look]) -> Finding {
    let mut all = found(looks, None);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

pub(super) fn cause(finding: &Finding) -> Option<(&str, u32, bool)> {
    finding.cause.as_ref().map(|cause| (cause.host.as_str(), cause.pid, cause.seen))
}

//= why.md: a host that does not answer is named with the reason
#[test]
fn a_peer_of_another_host_is_named_once() {
    let mut connections: Vec<_> = [72, 60].map(|s| waits("receive", "send", peer("node7", 812), s)).into();
    connections.push(waits("data", "recv", peer("node7", 812), 72));
    connections.push(connection("send", peer("node8", 5)));
    let unasked = |_: &str| Err("192.0.2.9:9119: no agent listens there".to_owned());
    let mut all = document(&still(vec![process(11, connections)]), None, unasked).findings;
    assert_eq!(all.len(), 1, "{all:?}");
    let finding = all.remove(0);
    assert_eq!(finding.kind, Kind::NoReceive);
    assert_eq!(
        finding.text,
        "stuck for 1 min 12 s: 2 of 4 connections of process 11 (python3) wait for host node7, pid 812, which has \
         posted no receive"
    );
    assert_eq!(
        (cause(&finding), finding.since_ms),
        (Some(("node7", 812, false)), Some(START + 5_000 - 72_000))
    );
    assert_eq!(finding.evidence[1], "host node7 has not answered: 192.0.2.9:9119: no agent listens there");
    assert!(finding.next.unwrap().starts_with("\"mpib why 812\" on host node7"));
}

#[test]
fn processes_that_wait_for_one_are_counted() {
    let waiting = [11, 12, 13].map(|pid| process(pid, vec![waits("receive", "send", peer("node7", 812), 9)]));
    let looks = still(waiting.into_iter().chain([process(14, Vec::new())]).collect());
    let finding = only(&looks);
    assert!(
        finding.text.starts_with("stuck for 9 s: 3 of 4 processes wait for host node7, pid 812"),
        "{finding:?}"
    );
    assert_eq!(finding.processes, [11, 12, 13]);
}

/// Process 11 waits for a receive of 12, which waits for data of 13.
fn chain() -> Vec<Process> {
    let second = vec![connection("recv", peer("node1", 11)), waits("data", "recv", peer("node1", 13), 20)];
    vec![
        process(11, vec![waits("receive", "send", peer("node1", 12), 20)]),
        process(12, second),
        process(13, vec![connection("send", peer("node1", 12))]),
    ]
}

//= why.md: waits are followed to the process that waits for nobody
#[test]
fn a_chain_on_this_host_is_followed_to_its_end() {
    let finding = only(&still(chain()));
    assert_eq!((cause(&finding), &finding.processes[..]), (Some(("node1", 13, true)), &[11, 12][..]));
    assert!(
        finding.text.ends_with("process 13 (python3), which has sent nothing: NCCL in it asks for nothing"),
        "{}",
        finding.text
    );
    assert_eq!(finding.evidence.len(), 2, "{:?}", finding.evidence);

    let mut looks = still(chain());
    looks[1].host.processes[2].state = State::Stopped;
    let finding = only(&looks);
    assert_eq!(finding.kind, Kind::Held);
    assert!(finding.text.ends_with("process 13 (python3), which is stopped (state T)"), "{}", finding.text);
    assert!(finding.next.unwrap().starts_with("\"kill -CONT 13\""));
    // With a process, only what it waits for.
    assert_eq!(found(&looks, Some(12))[0].processes, [12]);
}

#[test]
fn a_process_that_moves_other_data_is_no_silent_one() {
    let mut looks = still(chain());
    looks[1].host.processes[2].totals.send.done = Count(7);
    assert!(only(&looks).text.ends_with("which has sent nothing and moves other data"));
}

//= why.md: a peer of this host without a page is not followed
#[test]
fn a_process_of_another_container_is_not_taken_for_the_peer() {
    let mut processes = chain();
    processes.pop();
    let finding = only(&still(processes.clone()));
    assert_eq!(cause(&finding), Some(("node1", 13, false)));
    // One with that number, which is connected with others.
    processes.push(process(13, vec![connection("send", peer("node1", 99))]));
    assert_eq!(cause(&only(&still(processes))), Some(("node1", 13, false)));
}

//= why.md: a circle is named as one
#[test]
fn a_circle_is_named_once() {
    let in_circle = |r#for: &str| {
        let end = |pid, next, last| {
            process(
                pid,
                vec![waits(r#for, "recv", peer("node1", next), 30), connection("send", peer("node1", last))],
            )
        };
        only(&still(vec![end(11, 13, 12), end(12, 11, 13), end(13, 12, 11)]))
    };
    let finding = in_circle("receive");
    assert_eq!(finding.kind, Kind::Circle);
    assert_eq!(finding.text, "stuck for 30 s: processes 11, 13 and 12 wait for each other in a circle");
    let finding = in_circle("data");
    assert_eq!(finding.kind, Kind::NoData);
    assert!(finding.text.contains("for data of each other, and none has sent any"), "{}", finding.text);
    assert!(finding.next.unwrap().starts_with("nothing, if that process computes"));
}

#[test]
fn waits_for_rails_adapters_and_queues_end_with_their_process() {
    let of = |r#for: &str| {
        let mut lost = waits(r#for, "send", peer("node1", 12), 8);
        lost.rails[0].missing = Some("mlx5_0:1: the link went down".into());
        lost.rails[1].missing = Some("nothing answers".into());
        let mut down = port("mlx5_0:1", 1);
        (down.state, down.cause) = ("down".into(), Some("mlx5_0:1: the link went down".into()));
        let first = Process { ports: vec![down], ..process(11, vec![lost]) };
        only(&still(vec![first, process(12, vec![connection("recv", peer("node1", 11))])]))
    };
    let finding = of("rail");
    assert_eq!((finding.kind, finding.processes), (Kind::NoRail, vec![11]));
    assert_eq!(
        finding.text,
        "stuck for 8 s: the connection of process 11 (python3) waits for a rail to process 12 (python3): \
         none is left"
    );
    assert_eq!(
        finding.evidence[1..],
        ["mlx5_0:1: the link went down", "mlx5_1:1: nothing answers (process 12 (python3))"]
    );
    let kinds = ["room", "data"].map(|r#for| {
        found(&still(vec![process(11, vec![waits(r#for, "send", peer("node7", 1), 8)])]), None)[0].kind
    });
    assert_eq!(kinds, [Kind::NoRoom, Kind::NoAcknowledgements]);
}

#[test]
fn short_waits_and_receives_beside_moving_data_are_no_findings() {
    let short = process(11, vec![waits("receive", "send", peer("node7", 1), 4)]);
    assert_eq!(only(&still(vec![short])).kind, Kind::Idle);
    let mut looks = still(vec![process(11, vec![waits("data", "recv", peer("node7", 1), 60)])]);
    assert_eq!(only(&looks).kind, Kind::NoData);
    looks[1].host.processes[0].totals.send.done = Count(1);
    assert_eq!(only(&looks).kind, Kind::Fine);
}

//= why.md: connections that run without a rail are counted by port
#[test]
fn lost_rails_are_counted_by_port() {
    let mut lost = sends(11, 100);
    lost.connections.push(connection("send", peer("node3", 9)));
    let rail = &mut lost.connections[0].rails[1];
    (rail.given_up_at_ms, rail.missing) = (Some(START), Some("the link went down".into()));
    rail.lacks = Some("port".into());
    let finding = only(&[look(START, vec![sends(11, 0)]), look(START + 5_000, vec![lost])]);
    assert_eq!((finding.kind, finding.since_ms), (Kind::Degraded, Some(START)));
    assert_eq!(finding.text, "1 of 2 connections runs without mlx5_1:1 for 5 s");
    assert_eq!(finding.evidence, ["mlx5_1:1: the link went down (host node2, pid 9)"]);
}

/// A port that carries so many bytes per second of its speed of 1000.
fn port(name: &str, goodput: u64) -> Port {
    let adapter = Adapter { speed: Some(Count(1_000)), ..Adapter::default() };
    Port {
        name: name.into(),
        state: "healthy".into(),
        scale: 1024,
        goodput: Some(Count(goodput)),
        adapter: Some(adapter),
        ..Port::default()
    }
}

//= why.md: a port is slow if it carries less than half of what the best one does
#[test]
fn slow_and_drained_ports_are_named() {
    let of = |ports: [Port; 2]| {
        let mut looks = [look(START, vec![sends(11, 0)]), look(START + 5_000, vec![sends(11, 100)])];
        looks[1].host.ports = ports.to_vec();
        only(&looks)
    };
    assert_eq!(of([port("mlx5_0:1", 900), port("mlx5_1:1", 500)]).kind, Kind::Fine);
    let finding = of([port("mlx5_0:1", 900), port("mlx5_1:1", 300)]);
    assert_eq!(finding.kind, Kind::SlowRail);
    assert!(
        finding.text.starts_with("mlx5_1:1 is slow: it carries 300 B/s, 30 % of its speed"),
        "{}",
        finding.text
    );
    // Small messages fill no port.
    assert_eq!(of([port("mlx5_0:1", 200), port("mlx5_1:1", 20)]).kind, Kind::Fine);
    let unknown = Port { adapter: None, ..port("mlx5_1:1", 1) };
    assert_eq!(of([port("mlx5_0:1", 900), unknown]).kind, Kind::Fine);
    assert_eq!(of([port("mlx5_0:1", 900), port("mlx5_9:1", 1)]).kind, Kind::Fine, "nobody uses it");
    let drained = Port { scale: 0, ..port("mlx5_1:1", 1) };
    let finding = of([port("mlx5_0:1", 900), drained]);
    assert_eq!(
        (finding.kind, finding.text),
        (Kind::Drained, "mlx5_1:1 is drained: it gets no new data".into())
    );
}

//= why.md: an operation that a rail made slow is named with it
#[test]
fn an_operation_that_a_rail_made_slow_is_named() {
    let of = |why: Option<&str>| {
        let slowest = Operation {
            name: "AllReduce".into(),
            bytes: Some(Count(32_000_000)),
            asked_ms: START,
            took_ms: Some(812.0),
            usual_ms: Some(198.0),
            rails: vec![OperationRail {
                port: "mlx5_1:1".into(),
                bytes: Count(16_000_000),
                in_flight_ms: 90.0,
            }],
            why: why.map(str::to_owned),
            ..Operation::default()
        };
        let slowest = Some(slowest);
        let communicator =
            Communicator { id: "0xc0ffee".into(), rank: 3, slowest, ..Communicator::default() };
        let process = |bytes| Process { communicators: vec![communicator.clone()], ..sends(11, bytes) };
        only(&[look(START, vec![process(0)]), look(START + 5_000, vec![process(100)])])
    };
    let finding = of(Some("mlx5_1:1 carried 50 % of it"));
    assert_eq!((finding.kind, finding.since_ms), (Kind::SlowOperation, Some(START)));
    assert_eq!(
        finding.text,
        "AllReduce of 32.00 MB took 812.0 ms, 4.1 times the usual 198.0 ms: mlx5_1:1 carried 50 % of it"
    );
    assert_eq!(
        finding.evidence,
        [
            "of communicator 0xc0ffee, rank 3, on process 11 (python3)",
            "mlx5_1:1: 16.00 MB, in flight for 90.0 ms in all"
        ]
    );
    assert_eq!(of(None).kind, Kind::Fine, "no rail explains it");
}

//= why.md: how often the network is in use
#[test]
fn a_job_with_nothing_to_send_is_no_fault_of_the_network() {
    let mut looks: Vec<_> = (0..10).map(|n| look(START + n * 1_000, vec![sends(11, n * 9_000)])).collect();
    looks[4].active.insert(11);
    looks[5].active.insert(12);
    let finding = only(&looks);
    assert!(!finding.kind.is_fault() && finding.text.contains("gives it nothing to do"), "{finding:?}");
    assert_eq!(
        finding.evidence,
        ["sent 9.00 kB/s, received 0 B/s", "the network was in use at 1 of 10 looks (10 %)"]
    );
    (0..5).for_each(|n| _ = looks[n].active.insert(11));
    assert!(only(&looks).text.ends_with("it is in use for most of the time"));
}

#[test]
fn processes_that_have_failed_or_are_held_are_faults() {
    let mut failed = process(11, vec![connection("send", peer("node2", 9))]);
    let c = &mut failed.connections[0];
    (c.state, c.reason) = ("failed".into(), Some("status 12".into()));
    let mut looks = still(vec![failed, process(12, Vec::new())]);
    looks[1].host.processes[1].state = State::Traced;
    let all = found(&looks, None);
    assert_eq!(all.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [Kind::Failed, Kind::Held]);
    assert!(all[0].evidence[0].ends_with("status 12") && all[1].text.contains("by a debugger"), "{all:?}");
    // An access to a disk is no hang.
    looks[1].host.processes[1].state = State::Uninterruptible;
    assert_eq!(found(&looks, None).len(), 1);
    looks[0].host.processes[1].state = State::Uninterruptible;
    assert_eq!(found(&looks, None)[1].kind, Kind::Held);
}

#[test]
fn a_host_without_pages_has_a_verdict() {
    let finding = only(&still(Vec::new()));
    assert_eq!((finding.kind, finding.text), (Kind::NoPage, "no process has a statistics page".into()));
}

//= why.md: at most ten lines: the verdict, its evidence, other findings, what to do next
#[test]
fn the_text_has_ten_lines_at_most() {
    let many: Vec<_> =
        (1..=9).map(|pid| process(pid, vec![waits("receive", "send", peer("node7", pid), 9)])).collect();
    let text = document(&still(many), None, |_| Err(String::new())).text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 10, "{text}");
    assert!(lines[0].starts_with("stuck for 9 s: ") && lines[9].starts_with("next: "), "{text}");
    assert_eq!(lines[8], "also: 3 more findings, with --json");
    let finding = document(&still(chain()), None, |host| panic!("{host} was asked"));
    assert_eq!((finding.exit_code, finding.text().lines().count()), (7, 4));
}
