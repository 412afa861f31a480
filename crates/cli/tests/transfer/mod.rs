//! A transfer between two processes, for programs that show it.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::built::{artifact, mpib};

/// Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what}: nothing within {LIMIT:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A child that ends with the test.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn stats(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mpib")).arg("stats").args(args).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn said(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

pub(crate) fn fabric_of(test: &str) -> String {
    format!("stats-test-{}-{test}", std::process::id())
}

/// Starts an endless `mpib perf` on rails whose rates are three to one.
pub(crate) fn perf(test: &str) -> Ended {
    perf_with(test, &[])
}

/// Starts it with faults from the beginning (`SOFTVERBS_FAULTS`).
pub(crate) fn perf_with_faults(test: &str, faults: &str) -> Ended {
    perf_with(test, &[("SOFTVERBS_FAULTS", faults)])
}

/// Starts it with these variables.
pub(crate) fn perf_with(test: &str, env: &[(&str, &str)]) -> Ended {
    let mut command = mpib(&fabric_of(test), "sout:addr=10.9.0.1/24;sup:addr=10.9.1.1/24");
    command.args(["perf", "--sizes", "64K", "--time", "600", "--no-check", "--plugin"]);
    command.arg(artifact("libnccl-net-mpib.so"));
    command
        .env("MPIB_HCA_SOUT", "sout")
        .env("MPIB_HCA_SUP", "sup")
        .env("MPIB_SUP_SHARE", "256")
        .envs(env.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ended(command.spawn().unwrap())
}

/// Returns its two workers, the sending one first, once data moves.
pub(crate) fn workers(perf: &Ended) -> [u32; 2] {
    until("two workers that move data", || {
        let pid = perf.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let mut found: Vec<(String, u32)> = Vec::new();
        for child in children.split_whitespace() {
            let pid = child.parse().unwrap();
            let output = stats(&[child, "--json"]);
            let document: Value = serde_json::from_slice(&output.stdout).ok()?;
            let connection = &document["processes"][0]["connections"][0];
            if connection["messages"].as_u64()? > 100 {
                found.push((connection["direction"].as_str()?.to_owned(), pid));
            }
        }
        found.sort_by(|a, b| b.0.cmp(&a.0));
        <[u32; 2]>::try_from(found.iter().map(|f| f.1).collect::<Vec<_>>()).ok()
    })
}
