//! This project's plugin and softverbs of "make build", driven by `mpib perf` between real
//! processes: every table, every byte, and the bytes of each rail.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::built::{artifact, mpib};
use serde_json::Value;

/// Returns a new fabric for each test.
fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("perf-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// Prepares `mpib perf` on a host of this fabric whose addresses end with `host`.
fn perf(fabric: &str, host: u8, args: &[&str]) -> Command {
    let devices = format!("sout:addr=10.9.0.{host}/24;sup:addr=10.9.1.{host}/24");
    let mut command = mpib(fabric, &devices);
    command.args(["perf", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    command.env("MPIB_HCA_SOUT", "sout").env("MPIB_HCA_SUP", "sup");
    command
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[test]
fn every_table_moves_every_size_in_groups_and_both_directions() {
    // Sizes around the unit of splitting, and below the size of a word.
    let args = ["--sizes", "0,1,127,128,129,4095,1M", "--iterations", "64"];
    let fabric = fabric();
    let run = |more: &[&str]| {
        let report = report(&perf(&fabric, 1, &[&args, more].concat()).output().unwrap());
        let tables = report["tables"].as_array().unwrap();
        for table in tables {
            assert_eq!(table["results"].as_array().unwrap().len(), 7, "v{}", table["abi"]);
        }
        tables.iter().map(|t| t["abi"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(&["--abi", "all", "--depth", "32"]), [12, 11, 10, 9, 8, 7, 6]);
    // One version for each way of passing sizes.
    assert_eq!(run(&["--abi", "12,9,6", "--receives", "4", "--bidirectional"]), [12, 9, 6]);
    run(&["--receives", "2", "--depth", "1"]);
    assert_eq!(run(&["--abi", "12,9,8", "--optional", "--bidirectional"]), [12, 9, 8]);
}

#[test]
fn every_rma_table_puts_signals_and_gets() {
    let fabric = fabric();
    let run = |args: &[&str]| {
        let report = report(&perf(&fabric, 1, &[args, &["--iterations", "64"]].concat()).output().unwrap());
        let tables = report["tables"].as_array().unwrap();
        tables.iter().map(|t| t["abi"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let sizes = ["--sizes", "0,1,129,4095,1M"];
    assert_eq!(run(&[&["--put", "--abi", "all"][..], &sizes].concat()), [16, 15, 14, 13]);
    assert_eq!(run(&[&["--get", "--abi", "all", "--depth", "32"][..], &sizes].concat()), [16, 15, 14, 13]);
    run(&[&["--put", "--ping-pong"][..], &sizes].concat());
    run(&[&["--put", "--bidirectional", "--depth", "32"][..], &sizes].concat());
    run(&[&["--get", "--bidirectional"][..], &sizes].concat());
    assert_eq!(run(&["--signal", "--ping-pong", "--abi", "v14,v16"]), [14, 16]);
}

#[test]
fn large_puts_use_both_rails() {
    let mut command = perf(&fabric(), 1, &["--put", "--sizes", "1M", "--iterations", "20"]);
    let report = report(&command.env("MPIB_SUP_SHARE", "512").output().unwrap());
    let rails = report["tables"][0]["results"][0]["rails"].as_array().expect("softverbs counts");
    // Half of the data, without what commands need.
    assert!(rails.iter().all(|rail| rail["bytes"].as_u64().unwrap() >= 10 << 20), "{rails:?}");
}

/// Returns the bytes that the sender's rails carried for 20 messages of 1 MiB.
fn shares(share: &str) -> (u64, u64) {
    let mut command = perf(&fabric(), 1, &["--sizes", "1M", "--iterations", "20"]);
    let report = report(&command.env("MPIB_SUP_SHARE", share).output().unwrap());
    let rails = report["tables"][0]["results"][0]["rails"].as_array().expect("softverbs counts").clone();
    let bytes = |name: &str| rails.iter().find(|r| r["name"] == name).unwrap()["bytes"].as_u64().unwrap();
    (bytes("sout"), bytes("sup"))
}

#[test]
fn each_rail_carries_its_share() {
    const ALL: u64 = 20 << 20;
    // A transfer is cut at multiples of 128 bytes; SOUT carries the rest.
    let of_each = (1 << 20) * 341 / 1024 / 128 * 128;
    assert_eq!(shares("341"), (ALL - 20 * of_each, 20 * of_each));
    assert_eq!(shares("0"), (ALL, 0));
    assert_eq!(shares("1024"), (0, ALL));
}

#[test]
fn two_hosts_with_addresses_of_their_own() {
    let fabric = fabric();
    let mut there = perf(&fabric, 2, &["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(there.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
    let args = ["--connect", address, "--abi", "v8,v12", "--sizes", "8,100K", "--iterations", "32"];
    let here = report(&perf(&fabric, 1, &args).output().unwrap());
    let there = report(&there.wait_with_output().unwrap());
    assert_eq!(here["tables"].as_array().unwrap().len(), 2);
    assert_eq!(here["tables"][0]["results"], there["tables"][0]["results"]);
}

#[test]
fn a_missing_device_is_named_by_the_plugin() {
    let mut command = perf(&fabric(), 1, &["--sizes", "8"]);
    let output = command.env("MPIB_HCA_SUP", "absent").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the plugin's init returned") && said.contains("absent"), "{said}");
}

#[test]
fn a_rail_that_fails_and_returns_is_measured_in_stages() {
    let args = ["--sizes", "256K", "--time", "0.05", "--fault", "sup:link=down"];
    let mut command = perf(&fabric(), 1, &args);
    let report = report(&command.env("MPIB_SUP_SHARE", "512").output().unwrap());
    let stages = report["tables"][0]["results"][0]["stages"].as_array().unwrap();
    let kinds: Vec<_> = stages.iter().map(|stage| stage["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["before", "fails", "without", "returns", "after"]);
    let carried = |stage: usize| {
        let rails = stages[stage]["rails"].as_array().unwrap();
        rails.iter().find(|rail| rail["name"] == "sup").unwrap()["bytes"].as_u64().unwrap()
    };
    // Half of a message at least, before and after.
    assert!([0, 4].iter().all(|stage| carried(*stage) >= 128 << 10), "{stages:?}");
    assert_eq!(carried(2), 0, "{stages:?}");
}
