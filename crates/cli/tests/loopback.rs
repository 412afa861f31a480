//! `mpib perf` on the example plugin of crate nccl-net-versions, which moves data over TCP between
//! two processes.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

const MPIB: &str = env!("CARGO_BIN_EXE_mpib");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn perf(args: &[&str]) -> Output {
    let mut command = Command::new(MPIB);
    command
        .args(["perf", "--json", "--plugin"])
        .arg(crate::loopback_example::path(Path::new(MPIB)))
        .args(args);
    command.stdin(Stdio::null()).output().expect("mpib")
}

/// Runs through every table and checks the report: `messages` of each size, every byte compared.
fn moves_through_every_table(args: &[&str], sizes: &[u64], messages: u64) {
    let output = perf(&[args, &["--abi", "all"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["ok"], true);
    let tables = report["tables"].as_array().expect("tables");
    assert_eq!(tables.iter().map(|t| &t["abi"]).collect::<Vec<_>>(), [12, 11, 10, 9, 8, 7, 6]);
    for table in tables {
        assert_eq!(table["net"], "Loopback");
        assert_eq!(table["device"]["name"], "lo0");
        let results = table["results"].as_array().expect("results");
        assert_eq!(results.iter().map(|r| r["size"].as_u64().expect("bytes")).collect::<Vec<_>>(), sizes);
        for result in results {
            assert_eq!(result["checked"], true);
            assert_eq!(result["messages"], messages);
        }
    }
}

#[test]
fn the_example_moves_every_size_through_every_table() {
    // 5 MB in flight exceed the socket's buffers: a message takes several calls of test.
    let args = ["--sizes", "0,1,7,8,4095,300K", "--iterations", "16", "--depth", "16"];
    moves_through_every_table(&args, &[0, 1, 7, 8, 4095, 300 << 10], 16);
}

#[test]
fn the_example_moves_data_in_both_directions() {
    let args = ["--bidirectional", "--sizes", "8,100K", "--iterations", "64"];
    moves_through_every_table(&args, &[8, 100 << 10], 128);
}

#[test]
fn the_example_reports_one_receive_per_group() {
    let output = perf(&["--receives", "2", "--sizes", "8"]);
    assert_eq!(output.status.code(), Some(2));
    let report = text(&output.stdout) + &text(&output.stderr);
    assert!(report.contains("supports 1 receives in an irecv"), "{report}");
}
