//! `mpib perf` as a user starts it, on a foreign plugin: a small one in C over TCP
//! (`fake-plugin/fake.c`), which can have one fault.

use std::{
    io::{BufRead, Read},
    process::Command,
};

use crate::fake::{MPIB, QUICK, fake, json, listener, perf, text};

/// Runs with a fault; returns the exit code and stderr.
fn with_fault(fault: &str, args: &[&str]) -> (i32, String) {
    let output = perf(args).env("FAKE_FAULT", fault).output().unwrap();
    (output.status.code().expect("mpib itself never dies of a signal"), text(&output.stderr))
}

/// Asserts that the fault ends the run with this exit code and these words.
#[track_caller]
fn fails(fault: &str, args: &[&str], code: i32, words: &[&str]) {
    let (found, said) = with_fault(fault, args);
    assert_eq!(found, code, "{fault}: {said}");
    for word in words {
        assert!(said.contains(word), "{fault}: {word:?} is not in: {said}");
    }
}

#[test]
fn moves_and_checks_every_size_through_every_table_of_a_foreign_plugin() {
    let output = perf(&["--abi", "all", "--sizes", "0,1,7,8,4095,1M", "--iterations", "50", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(report["ok"], true);
    let tables = report["tables"].as_array().unwrap();
    assert_eq!(tables.iter().map(|t| &t["abi"]).collect::<Vec<_>>(), [11, 8]);
    for table in tables {
        assert_eq!(table["net"], "fake");
        assert_eq!(table["device"]["name"], "fake0");
        let sizes: Vec<_> =
            table["results"].as_array().unwrap().iter().map(|r| r["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [0, 1, 7, 8, 4095, 1 << 20]);
        for result in table["results"].as_array().unwrap() {
            assert_eq!(result["messages"], 50);
            assert_eq!(result["checked"], true);
            assert_eq!(result["bytes"].as_u64(), result["size"].as_u64().map(|s| s * 50));
            assert!(result["time_ns"]["median"].as_u64() <= result["time_ns"]["p99"].as_u64());
        }
    }
}

#[test]
fn groups_and_both_directions() {
    let args =
        ["--bidirectional", "--receives", "3", "--depth", "32", "--iterations", "300", "--sizes", "64,100K"];
    let output = perf(&args).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for result in json(&output)["tables"][0]["results"].as_array().unwrap() {
        assert_eq!(result["messages"], 600, "300 each way");
    }
}

/// v8 gets no hint; this plugin would refuse it.
#[test]
fn optional_receives_are_checked_like_everything() {
    let args = ["--optional", "--abi", "all", "--iterations", "100", "--sizes", "0,8,4K"];
    let output = perf(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1 optional receive a group"), "{}", text(&output.stdout));
    let optional = ["--optional", "--iterations", "100", "--sizes", "1000"];
    fails("corrupt", &optional, 5, &["message 20 of 1000 B: byte 500 is 0x"]);
    fails(
        "hint",
        &optional,
        4,
        &["irecv returned ncclSuccess and left NCCL's hint for optional receives (0x1)"],
    );
    fails("", &["--optional", "--receives", "2"], 2, &["cannot be used with"]);
}

#[test]
fn half_round_trips_are_checked_like_everything() {
    let output =
        perf(&["--ping-pong", "--iterations", "50", "--sizes", "0,8,4K", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for result in json(&output)["tables"][0]["results"].as_array().unwrap() {
        assert_eq!(result["messages"], 100, "50 each way");
        assert_eq!(result["checked"], true);
        assert!(result["time_ns"]["median"].as_u64().unwrap() > 0);
    }
    let round_trips = ["--ping-pong", "--iterations", "100", "--sizes", "1000"];
    fails("corrupt", &round_trips, 5, &["message 20 of 1000 B: byte 500 is 0x"]);
    fails("size", &round_trips, 5, &["message 20: test returned a size of 999 bytes"]);
    let stalled = ["--ping-pong", "--timeout", "5", "--iterations", "100", "--sizes", "1000"];
    fails("stall", &stalled, 6, &["in a round trip the other end's message does not arrive"]);
    fails("", &["--ping-pong", "--bidirectional"], 2, &["cannot be used with"]);
}

#[test]
fn further_connections_are_made_and_closed() {
    for at_once in [1, 3] {
        further_connections_at_once(at_once);
    }
}

fn further_connections_at_once(at_once: u32) {
    let at_once_arg = at_once.to_string();
    let args = ["--connections", "5", "--at-once", &at_once_arg, "--json"];
    let output = perf(&args).args(QUICK).output().unwrap();
    let report = json(&output);
    assert_eq!(report["ok"], true, "{}", text(&output.stderr));
    let made = &report["tables"][0]["connections"];
    assert_eq!((&made["count"], &made["at_once"]), (&5.into(), &at_once.into()));
    for what in ["per_second", "open_close"] {
        assert!(made[what].as_f64().unwrap() > 0.0, "{what}");
    }
    for end in ["memory", "peer_memory"] {
        // A comm of the fake plugin is one block of some kilobytes.
        let memory = made[end]["resident"].as_f64().unwrap();
        assert!(memory > 1024.0 && memory < f64::from(64 << 20), "{end}: {memory}");
    }
    let table = text(&perf(&["--connections", "5"]).args(QUICK).output().unwrap().stdout);
    let lines: Vec<_> = table.lines().collect();
    assert!(
        lines[1].starts_with("5 connections, 1 at a time: ") && lines[2].trim_start().starts_with("size"),
        "{table}"
    );
}

#[test]
fn the_table_is_for_people() {
    let output = perf(QUICK).output().unwrap();
    let table = text(&output.stdout);
    assert!(table.starts_with("v11: fake, device \"fake0\" of 10 Gb/s; one direction"), "{table}");
    assert!(table.contains("1000 B"), "{table}");
}

#[test]
fn the_devices_can_be_chosen() {
    let chosen = perf(&["--device", "1", "--peer-device", "0", "--json"]).args(QUICK).output().unwrap();
    assert_eq!(json(&chosen)["tables"][0]["device"]["name"], "fake1");
    fails("", &["--device", "2"], 3, &["--device 2: the plugin has 2, numbered from 0"]);
    fails("devices", QUICK, 3, &["the plugin has no devices"]);
    fails("gpu-only", QUICK, 2, &["device 0 (\"fake0\") does not support host memory"]);
}

const HIDDEN: &[&str] = &["--table", "fakeTransport", "--abi", "v11"];

#[test]
fn a_table_that_is_not_exported_is_found_by_its_symbol() {
    let output = perf(HIDDEN).args(QUICK).arg("--json").output().unwrap();
    let report = json(&output);
    assert_eq!(report["ok"], true, "{}", text(&output.stderr));
    assert_eq!(report["tables"][0]["net"], "hidden");
    assert_eq!(report["tables"][0]["results"][0]["messages"], 100);
}

#[test]
fn a_symbol_that_is_no_table_of_the_version_is_refused() {
    fails("", &["--table", "fakeTransport"], 2, &["--table fakeTransport needs --abi with the one version"]);
    fails("", &["--table", "fakeTransport", "--abi", "v11,v8"], 2, &["the one version"]);
    let words = ["fakeTransport has 176 bytes, a table of v10 has 160; a table of v12 or v11 has this size"];
    fails("", &["--table", "fakeTransport", "--abi", "v10"], 3, &words);
    fails("", &["--table", "absent", "--abi", "v11"], 3, &["its symbol table has no data symbol absent"]);
    // A function is not a table.
    fails("", &["--table", "merge", "--abi", "v11"], 3, &["has no data symbol merge"]);
}

#[test]
fn a_stripped_file_has_no_hidden_tables() {
    let dir = tempfile::tempdir().unwrap();
    let stripped = dir.path().join("stripped.so");
    let done = Command::new("strip").arg(fake()).arg("-o").arg(&stripped).status().expect("binutils");
    assert!(done.success());
    let output = Command::new(MPIB).args(["perf", "--plugin"]).arg(&stripped).args(HIDDEN).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("it is stripped"), "{}", text(&output.stderr));
}

#[test]
fn devices_can_be_merged() {
    let merged = perf(HIDDEN).args(QUICK).args(["--merge", "0,1", "--json"]).output().unwrap();
    assert_eq!(json(&merged)["tables"][0]["device"]["name"], "fake0+fake1", "{}", text(&merged.stderr));
    fails("", &[HIDDEN, &["--merge", "0,2"]].concat(), 3, &["--merge 2: the plugin has 2, numbered from 0"]);
    fails("", &["--merge", "0,1"], 3, &["the table has no makeVDevice (NULL)"]);
    fails("", &["--merge", "0,1", "--abi", "v8"], 2, &["v8 has no makeVDevice; use a table of v9 or later"]);
    fails("", &[HIDDEN, &["--merge", "0,1,0,1,0"]].concat(), 2, &["v11 takes at most 4"]);
}

#[test]
fn a_wrong_byte_is_named() {
    fails("corrupt", QUICK, 5, &["receiver: message 20 of 1000 B: byte 500 is 0x", "(1 wrong in all)"]);
}

#[test]
fn a_missing_byte_is_named() {
    fails("truncate", QUICK, 5, &["message 20 of 1000 B: byte 999", "nothing was written to it"]);
}

#[test]
fn another_messages_data_is_named() {
    fails("stale", QUICK, 5, &["message 20 of 1000 B: byte 0", "it is message 19's data from offset 0"]);
}

#[test]
fn a_byte_behind_the_end_is_named() {
    fails("overrun", QUICK, 5, &["message 20 of 1000 B: the plugin wrote 0 bytes behind the message's end"]);
}

#[test]
fn a_wrong_size_is_named() {
    fails("size", QUICK, 5, &["message 20: test returned a size of 999 bytes", "but 1000 were sent"]);
}

#[test]
fn wrong_bytes_pass_where_nobody_looks() {
    let (code, said) = with_fault("corrupt", &[QUICK, &["--no-check"]].concat());
    assert_eq!(code, 0, "{said}");
}

#[test]
fn an_error_of_a_call_comes_with_the_plugins_own_words() {
    fails(
        "error",
        QUICK,
        4,
        &[
            "receiver: the plugin's test returned 6 (ncclRemoteError); its last warning: rail sup is down, 1 of 2 left (50.00%)",
        ],
    );
    fails(
        "init",
        QUICK,
        4,
        &["init returned 3 (ncclInternalError); its last warning: no device of 3 is 99.5% right"],
    );
}

/// Long enough for a busy machine.
const SOON: &[&str] = &["--timeout", "5", "--iterations", "100", "--sizes", "1000"];

#[test]
fn receives_that_stall_are_listed() {
    let words =
        ["v11: ", "nothing completed for", "of 100 receives of 1000 B are done; ", "are in flight, message"];
    fails("stall", SOON, 6, &words);
}

#[test]
fn sends_that_stall_are_listed() {
    // Only the sender's end can report this. The receiver's failure, which follows from it, must
    // not hide it.
    fails("isend-null", SOON, 6, &["sends of 1000 B are done", "isend accepts no more (NULL request)"]);
}

#[test]
fn a_connection_that_is_not_made_is_named() {
    fails("connect", SOON, 6, &["connect has returned no comm", "accept has returned no comm"]);
}

#[test]
fn a_call_that_hangs_is_named_and_killed() {
    fails("hang", SOON, 6, &["receiver: the plugin's test did not return for", "the process was killed"]);
}

#[test]
fn a_process_that_does_not_end_is_named_and_killed() {
    fails("exit-hang", SOON, 6, &["an exit handler or destructor of the plugin hangs"]);
}

#[test]
fn a_crash_is_named_with_its_signal_and_place() {
    fails(
        "crash",
        QUICK,
        7,
        &["sender: the worker process died of signal 6 (SIGABRT", "in the plugin's isend"],
    );
    fails("exit", QUICK, 7, &["sender: the worker process exited with status 0, in the plugin's isend"]);
    fails("exit-crash", QUICK, 7, &["died of signal 6", "after its run, in the plugin's exit handlers"]);
}

#[test]
fn a_failure_is_in_the_json_too() {
    let output = perf(&["--json"]).args(QUICK).env("FAKE_FAULT", "corrupt").output().unwrap();
    let report = json(&output);
    assert_eq!(report["ok"], false);
    assert_eq!(report["error"]["kind"], "data");
    assert_eq!(report["error"]["exit_code"], 5);
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn what_a_plugin_lacks_is_said_before_anything_runs() {
    fails("", &["--abi", "v9"], 3, &["exports no table v9; found v11, v8"]);
    fails("", &["--receives", "5"], 2, &["supports 4 receives in an irecv, but 5 are requested"]);
    fails(
        "",
        &["--sizes", "1G"],
        2,
        &["supports messages of at most 268435456 bytes, but 1073741824 are requested"],
    );
    let missing = Command::new(MPIB).args(["perf", "--plugin", "/nonexistent.so"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("/nonexistent.so: No such file"), "{}", text(&missing.stderr));
}

#[test]
fn two_machines_agree_and_both_report() {
    let (there, _said, address) = listener(&["--listen", "127.0.0.1:0", "--json"], "");
    let here =
        perf(&["--connect", &address, "--abi", "8,11", "--sizes", "8,1M", "--iterations", "20", "--json"]);
    let here = { here }.output().unwrap();
    let there = there.wait_with_output().unwrap();
    assert!(here.status.success(), "{}", text(&here.stderr));
    assert!(there.status.success());
    let (mut here, mut there) = (json(&here), json(&there));
    assert_eq!(here["tables"].as_array().unwrap().len(), 2);
    assert_eq!(here["mode"].take(), "connect");
    assert_eq!(there["mode"].take(), "listen");
    assert_eq!(here, there, "the two ends report the same");
}

#[test]
fn a_stranger_at_the_port_costs_nothing() {
    let (there, mut said, address) = listener(&["--listen", "127.0.0.1:0", "--json"], "");
    let mut stranger = std::net::TcpStream::connect(&address).unwrap();
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("refused") && line.contains("still listening"), "{line}");
    let here = perf(&["--connect", &address]).args(QUICK).output().unwrap();
    assert!(here.status.success(), "{}", text(&here.stderr));
    assert!(there.wait_with_output().unwrap().status.success());
}

#[test]
fn a_failure_on_one_machine_is_reported_on_the_other() {
    let (mut there, mut said, address) = listener(&["--listen", "127.0.0.1:0"], "corrupt");
    let here = perf(&["--connect", &address]).args(QUICK).output().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(there.wait().unwrap().code(), Some(5), "{rest}");
    assert!(rest.contains("receiver: message 20"), "{rest}");
    let here_said = text(&here.stderr);
    assert_eq!(here.status.code(), Some(8), "{here_said}");
    assert!(here_said.contains("sender: the receiver failed: message 20 of 1000 B"), "{here_said}");
}

/// Returns the worker processes that a process has started and that already run their own program.
fn workers(parent: u32) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let line = |pid: &u32| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    let pids = children.split_whitespace().filter_map(|p| p.parse().ok());
    pids.filter(|pid| line(pid).contains("perf-worker")).collect()
}

#[test]
fn killed_itself_it_leaves_no_worker_behind() {
    let mut child = perf(&["--timeout", "3600"]).args(QUICK).env("FAKE_FAULT", "hang").spawn().unwrap();
    let workers = loop {
        let workers = workers(child.id());
        if workers.len() == 2 {
            break workers;
        }
        assert!(child.try_wait().unwrap().is_none(), "ended by itself");
        std::thread::yield_now();
    };
    // SIGKILL: the process cannot clean up.
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in workers {
        assert!(dead_or_dying(pid), "worker {pid} is left behind");
    }
}

/// Returns whether a process has ended or has SIGKILL pending, which no process survives. The
/// kernel sends the parent's death signal before anybody can wait for the parent: no polling is
/// needed.
fn dead_or_dying(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let pending = |name: &str| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let killed = (pending("SigPnd:") | pending("ShdPnd:")) & 1 << (SIGKILL - 1) != 0;
    killed || field("State:").is_none_or(|state| state.starts_with(['Z', 'X']))
}

const SIGKILL: u32 = 9;
