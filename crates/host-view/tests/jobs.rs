//! The jobs of a host, and their metrics.

use std::collections::BTreeSet;

use mpib_host_view::{Connection, Count, Host, Ledger, MetricsOptions, Process, Rail, Wait, metrics};

/// A process that has received this many bytes.
fn process(pid: u32, uid: u32, job: &str, bytes: u64) -> Process {
    let mut process = Process { pid, uid, job: Some(job.into()), ..Process::default() };
    process.totals.recv.bytes = Count(bytes);
    process
}

/// Reads a host with these processes, 1 s after the epoch.
fn read(ledger: &mut Ledger, processes: Vec<Process>) -> Host {
    let mut host = Host { processes, at_ms: 1_000, ..Host::default() };
    host.sum(&BTreeSet::new());
    ledger.update(&mut host, &BTreeSet::new());
    host
}

/// Returns the lines of the metrics of jobs.
fn lines(host: &Host) -> Vec<String> {
    let text = metrics(host, MetricsOptions::default());
    text.lines().filter(|line| line.starts_with("mpib_job_")).map(String::from).collect()
}

//= stats.md: metrics have the user and the job
#[test]
fn connections_count_for_their_job() {
    let mut first = process(1, 1000, "7", 10);
    first.user = Some("alice".into());
    let lacks = Rail { lacks: Some("connect".into()), ..Rail::default() };
    let wait = Wait { r#for: "receive".into(), since_ms: 400, ..Wait::default() };
    first.connections = vec![
        Connection { state: "open".into(), rails: vec![lacks], wait: Some(wait), ..Connection::default() },
        Connection { state: "failed".into(), ..Connection::default() },
    ];
    first.open = 2;
    let second = Process { user: first.user.clone(), ..process(2, 1000, "7", 5) };
    let unnamed = Process { job: None, ..process(3, 1000, "", 1) };
    let host = read(&mut Ledger::default(), vec![first, second, unnamed]);
    let labels = "user=\"alice\",job=\"7\"";
    let expected = [
        format!("mpib_job_processes{{{labels}}} 2"),
        format!("mpib_job_connections{{{labels}}} 2"),
        format!("mpib_job_connections_failed{{{labels}}} 1"),
        format!("mpib_job_connections_degraded{{{labels}}} 1"),
    ];
    let lines = lines(&host);
    assert_eq!(lines[..4], expected, "{lines:?}");
    let one = |of: &str, value: &str| {
        lines.iter().any(|line| line.contains(of) && line.ends_with(&format!(" {value}")))
    };
    assert!(one("wait_seconds", "0.6") && one("for=\"receive\"", "0.6"), "{lines:?}");
    assert!(one("direction=\"recv\"", "15") && one("direction=\"send\"", "0"), "{lines:?}");
}

//= stats.md: the sums of a job never decrease while one of its processes runs
#[test]
fn a_process_of_a_job_that_has_ended_counts_while_others_run() {
    let mut ledger = Ledger::default();
    let bytes = |host: Host| host.jobs.iter().map(|job| job.totals.recv.bytes.0).collect::<Vec<_>>();
    assert_eq!(bytes(read(&mut ledger, vec![process(1, 0, "a", 10), process(2, 0, "a", 5)])), [15]);
    assert_eq!(bytes(read(&mut ledger, vec![process(2, 0, "a", 6)])), [16]);
    assert_eq!(bytes(read(&mut ledger, vec![process(3, 0, "b", 1)])), [1], "the job has ended");
    assert_eq!(bytes(read(&mut ledger, vec![process(4, 0, "a", 2)])), [2], "another job with this name");
}

/// Processes may invent names, among them the one for all others.
//= stats.md: at most 16 users and 8 jobs of each have metrics
#[test]
fn the_names_of_jobs_are_bounded() {
    let names = (0..20u32).flat_map(|uid| (0..20).map(move |n| (uid, n)));
    let invented = |(uid, n)| {
        let name = if n == 0 { "other".to_owned() } else { format!("p{n:02}") };
        process(uid * 100 + n, uid, &name, 1)
    };
    let host = read(&mut Ledger::default(), names.map(invented).collect());
    let jobs: BTreeSet<_> = host.jobs.iter().map(|job| (&job.user, &job.job)).collect();
    assert_eq!(jobs.len(), host.jobs.len(), "no two rows have the same names");
    // "other" is the first of the eight.
    assert_eq!(jobs.len(), 16 * 8 + 1);
    let processes: u32 = host.jobs.iter().map(|job| job.processes).sum();
    assert_eq!(processes, 400, "each process is in one row");
}
