//! The document and the metrics of this process, which writes a page like the plugin does.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mpib_host_view::{
    Count, Host, Ledger, MAX_PEERS, MAX_PORTS, MetricsOptions, Owner, Port, Process, Source, metrics,
};
use nccl_net_mpib_agent_iface::stats::{
    Awaited, ConnectionEntry, Data, Direction, Event, Islands, Lack, NewConnection, PortState, Reason,
    StatsWriter, Traffic,
};

/// Returns the page of this process, for one test at a time.
fn writer() -> (MutexGuard<'static, ()>, &'static StatsWriter) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, StatsWriter::for_this_process("1.2.3").unwrap())
}

fn connect(writer: &'static StatsWriter, direction: Direction, peer: &str) -> ConnectionEntry {
    let (islands, data, substituted, traffic) = (Islands::Two, Data::Split, false, Traffic::Messages);
    let rails = &[(0, "hv0:1"), (1, "hv1:2")];
    writer.add(&NewConnection { direction, islands, data, traffic, peer, rails, substituted })
}

fn read() -> Host {
    Source::default().process(std::process::id()).unwrap()
}

fn text(host: &Host) -> String {
    metrics(host, MetricsOptions::default())
}

/// Returns the value of a metric with just these labels.
fn value(text: &str, metric: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

#[test]
fn the_document_of_a_process_has_what_its_page_has() {
    let (_turn, writer) = writer();
    // Tests share the ports of the process.
    writer.port("hv0:1").unwrap().measured(0, 0);
    let before = read();
    let [send, receive] = [Direction::Send, Direction::Receive]
        .map(|way| connect(writer, way, "192.0.2.2:48129 (host-b, pid 7)"));
    send.entry().request();
    send.entry().request();
    send.entry().done(1, 5000);
    send.entry().rail(1).posted(3, 2, 4000);
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(before.at_ms - 72_000);
    send.entry().waits(Some((Awaited::Receive, since)));
    receive.entry().rail(0).arrived();
    receive.entry().failure("a reason");
    writer.event(Event::LinkDown);
    writer.episode("hv1:2", Reason::Stall, 77, Duration::from_millis(3));
    writer.port_state(
        "hv1:2",
        PortState::Down,
        Some(("no link", SystemTime::UNIX_EPOCH + Duration::from_millis(5))),
    );
    let mut host = read();
    host.at_ms = before.at_ms + 500;
    host.rates(&before);

    assert_eq!((host.format, host.processes.len(), host.interval_seconds), (1, 1, Some(0.5)));
    let process = &host.processes[0];
    assert_eq!((process.pid, process.plugin.as_str(), process.open), (std::process::id(), "1.2.3", 2));
    assert_eq!(process.uid, nix::unistd::getuid().as_raw());
    assert!(!process.command.is_empty() && process.made_ms <= host.at_ms + 60_000);
    let [a, b] = &process.connections[..] else { panic!("{:?}", process.connections) };
    let (sends, receives) = if a.direction == "send" { (a, b) } else { (b, a) };
    assert_eq!(
        (sends.in_flight, sends.bytes, sends.peer.as_str()),
        (Count(1), Count(5000), "192.0.2.2:48129 (host-b, pid 7)")
    );
    let wait = sends.wait.as_ref().unwrap();
    assert_eq!(
        (wait.r#for.as_str(), wait.what.as_str()),
        ("receive", "a receive of 192.0.2.2:48129 (host-b, pid 7)")
    );
    assert_eq!((sends.waited_ms(host.at_ms), receives.waited_ms(host.at_ms)), (Some(72_500), None));
    assert_eq!((receives.state.as_str(), receives.reason.as_deref()), ("failed", Some("a reason")));
    assert_eq!((&sends.rails[1].bytes, &receives.rails[1].bytes), (&Some(Count(4000)), &None));
    let port = host.ports.iter().find(|port| port.name == "hv1:2").unwrap();
    assert_eq!((port.device.as_str(), port.port, port.connections), ("hv1", 2, 2));
    assert_eq!((port.state.as_str(), port.cause.as_deref(), port.since_ms), ("down", Some("no link"), 5));
    assert_eq!((port.counts.bytes_sent.0 % 4000, port.counts.episodes["stall"]), (0, Count(1)));
    assert_eq!(host.totals.send.bytes_per_second, Some(10_000.0));

    let text = text(&host);
    for (metric, expected) in [
        ("mpib_connections", 2.0),
        ("mpib_connections_failed", 1.0),
        ("mpib_oldest_wait_seconds{for=\"receive\"}", 72.5),
        ("mpib_oldest_wait_seconds{for=\"data\"}", 0.0),
        ("mpib_adapter_events_total{event=\"link down\"}", 1.0),
        ("mpib_rail_state{device=\"hv1\",port=\"2\",state=\"down\"}", 1.0),
        ("mpib_rail_state{device=\"hv1\",port=\"2\",state=\"healthy\"}", 0.0),
        ("mpib_rail_state{device=\"hv0\",port=\"1\",state=\"healthy\"}", 1.0),
        ("mpib_rail_scale_ratio{device=\"hv1\",port=\"2\"}", 1.0),
        ("mpib_failovers_total{device=\"hv1\",port=\"2\",reason=\"stall\"}", 1.0),
        ("mpib_failovers_total{device=\"hv1\",port=\"2\",reason=\"port\"}", 0.0),
        ("mpib_replayed_bytes_total{device=\"hv1\",port=\"2\"}", 77.0),
        ("mpib_failover_stall_seconds_bucket{device=\"hv1\",port=\"2\",le=\"0.002\"}", 0.0),
        ("mpib_failover_stall_seconds_bucket{device=\"hv1\",port=\"2\",le=\"0.005\"}", 1.0),
        ("mpib_failover_stall_seconds_bucket{device=\"hv1\",port=\"2\",le=\"+Inf\"}", 1.0),
        ("mpib_failover_stall_seconds_sum{device=\"hv1\",port=\"2\"}", 0.003),
        ("mpib_failover_stall_seconds_count{device=\"hv1\",port=\"2\"}", 1.0),
    ] {
        assert_eq!(value(&text, metric), Some(expected), "{metric} in\n{text}");
    }
    let sent = "mpib_message_bytes_total{direction=\"send\"}";
    assert_eq!(value(&text, sent), Some(host.totals.send.bytes.0 as f64));
    // Nothing is measured, and no peer has a label.
    assert!(!text.contains("mpib_rail_goodput") && !text.contains("mpib_rail_weight"), "{text}");
    assert!(!text.contains("host-b"));
    writer.port_state("hv1:2", PortState::Healthy, None);
    writer.port("hv0:1").unwrap().measured(3_000, 30);
    writer.port("hv1:2").unwrap().measured(1_000, 10);
    writer.port("hv1:2").unwrap().set_scale(256);
    let text = metrics(&read(), MetricsOptions { per_peer: true });
    for (metric, expected) in [
        ("mpib_rail_goodput_bytes_per_second{device=\"hv0\",port=\"1\"}", 3_000.0),
        ("mpib_rail_weight_ratio{device=\"hv0\",port=\"1\"}", 0.75),
        ("mpib_rail_weight_ratio{device=\"hv1\",port=\"2\"}", 0.25),
        ("mpib_rail_scale_ratio{device=\"hv1\",port=\"2\"}", 0.25),
        ("mpib_peer_connections{peer=\"host-b\",direction=\"send\"}", 1.0),
        ("mpib_peer_requests_in_flight{peer=\"host-b\",direction=\"send\"}", 1.0),
    ] {
        assert_eq!(value(&text, metric), Some(expected), "{metric} in\n{text}");
    }
}

//= stats.md: the metric of degraded connections has their ports and reasons
#[test]
fn a_degraded_connection_counts_by_port_and_reason() {
    let (_turn, writer) = writer();
    writer.port("hv1:2").unwrap().set_scale(1024);
    let metric = |reason: &str| {
        let metric = format!("mpib_connections_degraded{{device=\"hv1\",port=\"2\",reason=\"{reason}\"}}");
        value(&text(&read()), &metric).unwrap()
    };
    let taken = connect(writer, Direction::Send, "degraded");
    let mut reasons = vec![(Lack::Connect, "connect")];
    reasons.extend(Reason::ALL.iter().map(|reason| (Lack::GivenUp(*reason), reason.word())));
    for (lack, reason) in reasons {
        taken.entry().rail(1).missing(Some((lack, "why")));
        assert_eq!((metric(reason), metric("left_out"), metric("drained")), (1.0, 0.0, 0.0), "{reason}");
    }
    assert_eq!(metric("connect"), 0.0);
    taken.entry().rail(1).missing(None);
    // A stripe of the same rail counts once.
    taken.leave_out(1, "hv1:2", "no route");
    taken.leave_out(1, "hv1:2", "no route");
    assert_eq!((metric("left_out"), metric("peer")), (1.0, 0.0));
    taken.entry().failure("a failed connection lacks nothing");
    assert_eq!(metric("left_out"), 0.0);
    drop(taken);
    let _drained = connect(writer, Direction::Send, "drained");
    writer.port("hv1:2").unwrap().set_scale(0);
    let host = read();
    assert_eq!((metric("drained"), host.verdict.level.as_str()), (1.0, "drained"));
    writer.port("hv1:2").unwrap().set_scale(1024);
}

#[test]
fn documents_survive_the_way_through_json() {
    let (_turn, writer) = writer();
    let taken = connect(writer, Direction::Send, "json");
    taken.entry().rail(0).posted(1, 1, 1);
    let host = read();
    let mut again: Host = serde_json::from_str(&serde_json::to_string(&host).unwrap()).unwrap();
    // The reader alone needs to know who is charged.
    for (again, read) in again.processes.iter_mut().zip(&host.processes) {
        again.owner.clone_from(&read.owner);
    }
    assert_eq!(again, host);
}

/// A process with one port.
fn process(pid: u32, bytes: u64) -> Process {
    let mut port = Port { name: "p:1".into(), device: "p".into(), port: 1, ..Port::default() };
    port.counts.bytes_sent = Count(bytes);
    port.counts.stalls.bounds_ms = vec![1];
    port.counts.stalls.counts = vec![Count(1), Count(2)];
    let mut process =
        Process { pid, made_ms: pid.into(), opened: Count(1), ports: vec![port], ..Process::default() };
    process.totals.send.bytes = Count(bytes);
    process
}

//= stats.md: sums keep what ended processes have counted
#[test]
fn sums_keep_what_ended_processes_have_counted() {
    let mut ledger = Ledger::default();
    let mut read = |processes: &[Process]| {
        let mut host = Host { processes: processes.to_vec(), ..Host::default() };
        host.sum(&BTreeSet::new());
        ledger.update(&mut host, &BTreeSet::new());
        let port = host.ports.first();
        let (bytes, stalls) =
            port.map_or((0, vec![]), |p| (p.counts.bytes_sent.0, p.counts.stalls.counts.clone()));
        (host.totals.send.bytes.0, bytes, host.opened.0, stalls.iter().map(|n| n.0).collect::<Vec<_>>())
    };
    assert_eq!(read(&[]), (0, 0, 0, vec![]));
    assert_eq!(read(&[process(1, 100), process(2, 10)]), (110, 110, 2, vec![2, 4]));
    assert_eq!(read(&[process(1, 150)]), (160, 160, 2, vec![2, 4]));
    // Another process with the number of an ended one.
    let again = Process { made_ms: 99, ..process(2, 1) };
    assert_eq!(read(&[process(1, 150), again.clone()]), (161, 161, 3, vec![3, 6]));
    assert_eq!(read(&[again]), (161, 161, 3, vec![3, 6]));
    assert_eq!(read(&[]), (161, 161, 3, vec![3, 6]));
    assert_eq!(read(&[]), (161, 161, 3, vec![3, 6]));
}

#[test]
fn the_port_of_ended_processes_has_no_state() {
    let (mut ledger, mut first) =
        (Ledger::default(), Host { processes: vec![process(1, 5)], ..Host::default() });
    first.sum(&BTreeSet::new());
    ledger.update(&mut first, &BTreeSet::new());
    let mut second = Host::default();
    ledger.update(&mut second, &BTreeSet::new());
    assert_eq!((second.ports.len(), second.ports[0].state.as_str()), (1, "unused"));
    let text = text(&second);
    assert_eq!(value(&text, "mpib_rail_transmit_bytes_total{device=\"p\",port=\"1\"}"), Some(5.0));
    assert_eq!(value(&text, "mpib_rail_state{device=\"p\",port=\"1\",state=\"healthy\"}"), Some(0.0));
}

//= stats.md: labels are bounded
#[test]
fn labels_are_bounded() {
    let ports = |from: usize| {
        let port =
            |i| Port { name: format!("d{i:03}:1"), device: format!("d{i:03}"), port: 1, ..Port::default() };
        (from..from + 50).map(port).collect()
    };
    let mut processes = [process(1, 0), process(2, 0)];
    processes[0].ports = ports(0);
    processes[1].ports = ports(40);
    for (i, peer) in (0..MAX_PEERS + 5).map(|i| (i, format!("peer {i:03}"))) {
        let c = mpib_host_view::Connection { index: i, peer, direction: "send".into(), ..Default::default() };
        processes[0].connections.push(c);
    }
    let mut host = Host { processes: processes.to_vec(), ..Host::default() };
    host.sum(&BTreeSet::new());
    assert_eq!((host.ports.len(), host.ports_not_shown), (MAX_PORTS, 90 - MAX_PORTS));
    let text = metrics(&host, MetricsOptions { per_peer: true });
    let count = |metric: &str| text.lines().filter(|line| line.starts_with(metric)).count();
    assert_eq!(count("mpib_rail_transmit_bytes_total{"), MAX_PORTS);
    assert_eq!(value(&text, "mpib_ports_not_shown"), Some(26.0));
    assert_eq!(count("mpib_peer_connections{"), MAX_PEERS + 1);
    assert_eq!(value(&text, "mpib_peer_connections{peer=\"other\",direction=\"send\"}"), Some(5.0));
}

/// A process of a user with these ports.
fn of_user(uid: u32, names: impl Iterator<Item = String>) -> Process {
    let ports = names.map(|name| Port { name, ..process(uid, 1).ports[0].clone() }).collect();
    Process { uid, ports, ..process(uid, 1) }
}

/// Names before those of all adapters.
fn invented(pid: u64) -> impl Iterator<Item = String> {
    (0..MAX_PORTS).map(move |i| format!("0x{pid}_{i:02}:1"))
}

//= stats.md: ports of the kernel come first
#[test]
fn nobody_hides_the_ports_of_others() {
    let real = BTreeSet::from(["mlx5_0:1".to_owned()]);
    let own = ["mlx5_0:1", "of_a_container:1"].map(String::from).into_iter();
    let processes = vec![of_user(7, invented(1)), of_user(7, invented(2)), of_user(8, own)];
    let mut host = Host { processes, ..Host::default() };
    host.sum(&real);
    let names: Vec<&str> = host.ports.iter().map(|port| &*port.name).collect();
    assert!(names.is_sorted() && names.len() == MAX_PORTS, "{names:?}");
    assert!(names.contains(&"mlx5_0:1") && names.contains(&"of_a_container:1"), "{names:?}");
    assert_eq!(host.ports_not_shown, 2 * MAX_PORTS + 2 - MAX_PORTS);
}

//= agent.md: all that one person, job or pod has counts together
#[test]
fn many_user_ids_of_one_person_do_not_hide_the_ports_of_others() {
    let own_name = std::iter::once("of_a_container:1".to_owned());
    let one = |uid| Process { owner: Some(Owner::User(7)), ..of_user(uid, invented(uid.into()).take(1)) };
    let processes = (100_000..100_100).map(one).chain([of_user(8, own_name)]).collect();
    let mut host = Host { processes, ..Host::default() };
    host.sum(&BTreeSet::new());
    assert!(host.ports.iter().any(|port| port.name == "of_a_container:1"));
    assert_eq!(host.ports.len(), MAX_PORTS);
}

//= stats.md: ports that the kernel does not have are forgotten after a day
#[test]
fn the_counts_of_a_port_outlive_those_that_were_invented() {
    let real = BTreeSet::from(["mlx5_0:1".to_owned()]);
    let (mut ledger, mut at_ms) = (Ledger::default(), 0);
    let mut read = |processes: Vec<Process>, later| {
        at_ms += later;
        let mut host = Host { at_ms, processes, ..Host::default() };
        host.sum(&real);
        ledger.update(&mut host, &real);
        host
    };
    for pid in 0..10 {
        read(vec![Process { made_ms: pid, ..of_user(7, invented(pid)) }], 1000);
    }
    read(vec![of_user(8, real.iter().cloned())], 1000);
    let sent =
        |host: &Host| host.ports.iter().find(|port| port.name == "mlx5_0:1").unwrap().counts.bytes_sent;
    let busy = read(vec![of_user(7, invented(99))], 1000);
    assert_eq!((busy.ports.len(), sent(&busy)), (MAX_PORTS, Count(1)));
    let quiet = read(Vec::new(), 25 * 3600 * 1000);
    assert_eq!((quiet.ports.len(), quiet.ports_not_shown, sent(&quiet)), (1, 0, Count(1)));
}

/// Writes the state of a port into a folder of adapters.
fn set_port(adapters: &Path, device: &str, state: &str, physical: &str) {
    let port = adapters.join(device).join("ports/1");
    fs::create_dir_all(port.join("counters")).unwrap();
    fs::write(port.join("state"), state).unwrap();
    fs::write(port.join("phys_state"), physical).unwrap();
    fs::write(port.join("counters/link_downed"), "4\n").unwrap();
    fs::write(port.join("counters/port_rcv_errors"), "5\n").unwrap();
}

//= agent.md: a port that has lost its link is one that had it, and that nobody has set down
#[test]
fn a_port_without_jobs_that_loses_its_link_is_reported_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (up, polling, disabled) =
        (("4: ACTIVE\n", "5: LinkUp\n"), ("1: DOWN\n", "2: Polling\n"), ("1: DOWN\n", "3: Disabled\n"));
    let set = |device: &str, (state, physical): (&str, &str)| set_port(dir.path(), device, state, physical);
    let (mut source, mut ledger) = (Source::new(dir.path()), Ledger::default());
    let mut read = || {
        let mut host = source.processes(&[]);
        ledger.update(&mut host, &source.ports());
        let text = text(&host);
        let of =
            |name: &str, device: &str| value(&text, &format!("{name}{{device=\"{device}\",port=\"1\"}}"));
        let shown = ["mlx5_0", "mlx5_1"].map(|d| (of("mpib_port_up", d), of("mpib_port_link_lost", d)));
        assert_eq!(of("mpib_port_link_downed_total", "mlx5_1"), Some(4.0), "{text}");
        assert_eq!(of("mpib_port_rcv_errors_total", "mlx5_1"), Some(5.0), "{text}");
        (shown, host.verdict)
    };
    let is = |up: bool, lost: bool| (Some(f64::from(up)), Some(f64::from(lost)));
    set("mlx5_0", polling);
    set("mlx5_1", up);
    let (shown, verdict) = read();
    assert_eq!((shown, &*verdict.level), ([is(false, false), is(true, false)], "good"));
    set("mlx5_1", polling);
    let (shown, verdict) = read();
    assert_eq!((shown, &*verdict.level), ([is(false, false), is(false, true)], "bad"));
    assert!(verdict.text.starts_with("0 connections: mlx5_1:1 has had no link for "), "{verdict:?}");
    set("mlx5_1", disabled);
    assert_eq!(read().0[1], is(false, false));
    set("mlx5_1", polling);
    assert_eq!(read().0[1], is(false, true));
    set("mlx5_1", up);
    let (shown, verdict) = read();
    assert_eq!((shown[1], &*verdict.level), (is(true, false), "good"));
}

/// More ports of the kernel than there is room for.
#[test]
fn ports_that_processes_use_come_before_those_of_the_kernel_that_are_unused() {
    let name = |i| format!("mlx5_{i:03}:1");
    let real: BTreeSet<String> = (0..MAX_PORTS + 2).map(name).collect();
    let mut process = of_user(7, std::iter::once(name(65)));
    process.ports[0].state = "healthy".into();
    let mut host = Host { processes: vec![process], ..Host::default() };
    host.sum(&real);
    let mut ledger = Ledger::default();
    ledger.update(&mut host, &real);
    assert_eq!((host.ports.last().map(|port| &*port.name), host.ports_not_shown), (Some("mlx5_065:1"), 2));
    let mut quiet = Host::default();
    quiet.sum(&real);
    ledger.update(&mut quiet, &real);
    assert_eq!((quiet.ports.len(), quiet.ports_not_shown), (MAX_PORTS, 2));
}

/// Processes end one after the other, each with other names of ports.
#[test]
fn ports_of_ended_processes_are_bounded() {
    let mut ledger = Ledger::default();
    let mut last = 0;
    for pid in 0..100 {
        let mut process = process(pid, 1);
        let port = |i| Port { name: format!("p{pid}d{i}:1"), ..Port::default() };
        process.ports = (0..64).map(port).collect();
        let mut host = Host { processes: vec![process], ..Host::default() };
        host.sum(&BTreeSet::new());
        ledger.update(&mut host, &BTreeSet::new());
        last = host.ports_not_shown;
    }
    // Of 6,400 names, those of the process and four times as many as are shown.
    assert_eq!(last, 4 * MAX_PORTS);
}

/// Any process may have a page with any numbers.
#[test]
fn processes_that_lie_do_no_harm() {
    let huge = |pid| {
        let mut process = process(pid, u64::MAX);
        let port = &mut process.ports[0];
        (port.connections, port.weight, port.scale) = (u32::MAX, Some(u32::MAX), u32::MAX);
        port.counts.stalls.counts = vec![Count(u64::MAX); 2];
        port.counts.stalls.sum_ms = 1.8e13;
        process.open = u32::MAX;
        let c = || mpib_host_view::Connection { in_flight: Count(u64::MAX), ..Default::default() };
        process.connections = vec![c(), c()];
        process
    };
    let mut host = Host { processes: vec![huge(1), huge(2)], at_ms: 1, ..Host::default() };
    let before = host.clone();
    host.sum(&BTreeSet::new());
    host.at_ms = 2;
    host.rates(&before);
    Ledger::default().update(&mut host, &BTreeSet::new());
    let text = metrics(&host, MetricsOptions { per_peer: true });
    let weight = value(&text, "mpib_rail_weight_ratio{device=\"p\",port=\"1\"}");
    assert_eq!((weight, host.ports[0].connections), (Some(1.0), u32::MAX));
    assert_eq!(value(&text, "mpib_connections"), Some(2.0 * f64::from(u32::MAX)));
    serde_json::to_string(&host).unwrap();
}

/// Prometheus' own checker accepts the text. Without the program, the test only checks the form of
/// each line.
//= stats.md: the metrics
#[test]
fn promtool_accepts_the_metrics() {
    let (_turn, writer) = writer();
    let taken = connect(writer, Direction::Send, "a \"quoted\"\\peer\nname");
    taken.entry().rail(0).posted(1, 1, 1);
    writer.port("hv0:1").unwrap().measured(3_000, 30);
    let adapters = tempfile::tempdir().unwrap();
    let dir = adapters.path().join("hv0/ports/1/hw_counters");
    fs::create_dir_all(&dir).unwrap();
    for name in ["roce_adp_retrans", "rx_icrc_encapsulated", "np_cnp_sent"] {
        fs::write(dir.join(name), "3\n").unwrap();
    }
    fs::write(adapters.path().join("hv0/ports/1/rate"), "100 Gb/sec\n").unwrap();
    let host = Source::new(adapters.path()).process(std::process::id()).unwrap();
    let text = metrics(&host, MetricsOptions { per_peer: true });
    assert_eq!(value(&text, "mpib_port_roce_adp_retrans_total{device=\"hv0\",port=\"1\"}"), Some(3.0));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, number) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("mpib_") && number.parse::<f64>().is_ok(), "{line}");
    }
    let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
    let check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut check) = check else {
        return eprintln!("skipped: promtool is not installed (Debian: prometheus)");
    };
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.trim().is_empty(), "{complaints}\n{text}");
}
