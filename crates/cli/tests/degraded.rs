//! Connections that run without a rail: the first line of each program, and the metric.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::agent_walk::Agent;
use crate::job::{link, transfer};
use crate::transfer::{perf, perf_with_faults, said, stats, until, workers};

/// Returns the state of a process in words.
fn text(pid: u32) -> String {
    let (code, text) = said(&stats(&[&pid.to_string(), "--json"]));
    assert_eq!(code, 0, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["verdict"]["text"].as_str().unwrap().to_owned()
}

/// Returns the reasons and ports for which the process has degraded connections, with their number.
fn metrics(pid: u32) -> Vec<String> {
    let (code, text) = said(&stats(&[&pid.to_string(), "--metrics"]));
    assert_eq!(code, 0, "{text}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("mpib_connections_degraded"));
    lines.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
}

fn is_all_up(pid: u32) {
    until("all rails", || (text(pid) == "1 connection, all rails up").then_some(()));
    assert_eq!(metrics(pid), [""; 0]);
}

/// Waits until the one connection of the process lacks its rail on this device for this reason.
fn lacks(pid: u32, device: &str, reason: &str) {
    let begin = format!("1 of 1 connection is degraded: 1 lacks {device}:1");
    let mut last = String::new();
    until(&format!("{device} to be missing ({reason})"), || {
        last = text(pid);
        (last.starts_with(&begin) && last.contains(&format!("({reason})"))).then_some(())
    });
    assert_eq!(metrics(pid), [format!("{{device=\"{device}\",port=\"1\",reason=\"{reason}\"}} 1")]);
}

//= stats.md: the first line says which connections run without a rail, and why
//= top.md: the first line is that of the statistics
#[test]
fn a_rail_that_dies_under_load_is_in_the_first_line_until_it_returns() {
    let perf = perf("degraded-dies");
    let both = workers(&perf);
    both.iter().for_each(|pid| is_all_up(*pid));
    link("degraded-dies", "sup", "down");
    both.iter().for_each(|pid| lacks(*pid, "sup", "port"));
    let pid = both[0].to_string();
    let mut top = Command::new(env!("CARGO_BIN_EXE_mpib"));
    let top = top.args(["top", &pid, "--once", "--interval", "0.1"]).stdin(Stdio::null()).output().unwrap();
    for shown in [top, stats(&[&pid])] {
        let (_, text) = said(&shown);
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("1 of 1 connection is degraded: 1 lacks sup:1 for "), "{text}");
        assert!(!first.contains('\x1b') && first.ends_with("(port)"), "{text}");
    }
    // As on a terminal.
    let red = Command::new(env!("CARGO_BIN_EXE_mpib")).args(["--color", "always", "stats", &pid]).output();
    assert!(said(&red.unwrap()).1.starts_with("\x1b[31m1 of 1 connection"), "it is red");
    link("degraded-dies", "sup", "up");
    both.iter().for_each(|pid| is_all_up(*pid));
}

//= stats.md: a rail counts as missing that has not worked since the connection was made
#[test]
fn a_rail_that_is_dead_from_the_start_counts() {
    let perf = perf_with_faults("degraded-silent", "sup:silence=both");
    workers(&perf).iter().for_each(|pid| lacks(*pid, "sup", "connect"));
    drop(perf);
    let perf = perf_with_faults("degraded-down", "sup:link=down");
    let both = workers(&perf);
    both.iter().for_each(|pid| lacks(*pid, "sup", "port"));
    link("degraded-down", "sup", "up");
    both.iter().for_each(|pid| is_all_up(*pid));
}

//= stats.md: a rail on a drained port counts with that reason, unless the connection has no other
#[test]
fn a_drained_rail_counts_with_that_reason() {
    let folder = tempfile::tempdir().unwrap();
    let devices = ["out", "up"].map(|name| format!("deg{name}{}", std::process::id()));
    let [sout, sup] = &devices;
    let policy = "policy = \"static\"\ndefault_share = 341\n";
    let agent = Agent::start(folder.path(), policy);
    let rails = format!("{sout}:addr=10.9.0.1/24,rate=100MB;{sup}:addr=10.9.1.1/24,rate=50MB");
    let perf = transfer("degraded-drained", &rails, &devices, folder.path());
    let [sender, receiver] = workers(&perf);
    is_all_up(sender);
    agent.reload(&format!("{policy}drain = [\"{sup}:1\"]\n"));
    lacks(sender, sup, "drained");
    // What arrives is the other host's choice.
    is_all_up(receiver);
    agent.reload(&format!("{policy}drain = [\"{sup}:1\", \"{sout}:1\"]\n"));
    is_all_up(sender);
    agent.reload(policy);
    is_all_up(sender);
}
