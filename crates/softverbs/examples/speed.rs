//! Measures the speed between two processes: `cargo run --release -p softverbs --example speed`.
//!
//! Prints medians: the rate of 1 MiB writes, the time to post and complete a 64-byte write, and
//! half the round-trip time of 64-byte writes.
#![allow(missing_docs, reason = "a program")]
extern crate softverbs as _;

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::*;

const BIG: usize = 1 << 20;
const ROUNDS: u64 = 20_000;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => peer(),
        _ => measure(),
    }
}

fn end() -> End {
    End::new(Opts { depth: 64, len: 2 * BIG, inline: 64, ..Opts::default() })
}

fn text(address: &Address) -> String {
    let gid: Vec<String> = address.gid.iter().map(u8::to_string).collect();
    format!("{} {} {} {}", address.qpn, address.addr, address.rkey, gid.join(" "))
}

fn parse(line: &str) -> Address {
    let n: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut gid = [0; 16];
    for (byte, value) in gid.iter_mut().zip(&n[3..]) {
        *byte = *value as u8;
    }
    Address { qpn: n[0] as u32, addr: n[1], rkey: n[2] as u32, gid }
}

/// Returns the number that the peer writes: the last eight bytes of a message, which are written
/// last.
fn cell(end: &End) -> &AtomicU64 {
    // SAFETY: the buffer is long enough, is aligned because of its size, and lives as long as
    // `end`.
    unsafe { &*end.buf.as_ptr().add(56).cast::<AtomicU64>() }
}

fn await_number(end: &End, number: u64) {
    while cell(end).load(Ordering::Acquire) != number {
        std::hint::spin_loop();
    }
}

/// Writes the number in a message of 64 bytes with inline data.
fn write_number(end: &End, to: &Address, number: u64, last: bool) {
    let message = [number; 8];
    let addr = message.as_ptr().expose_provenance() as u64;
    let mut sges = [sys::ibv_sge { addr, length: 64, lkey: 0 }];
    let flags = INLINE | if last { SIGNALED } else { 0 };
    assert_eq!(end.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(to, 0).flags(flags)), 0);
    if last {
        assert_eq!(end.poll_send().status, 0);
    }
}

fn peer() {
    let end = end();
    println!("{}", text(&end.address()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent");
    let to = parse(&line);
    end.connect(&to);
    println!("ready");
    for round in 1..=ROUNDS {
        await_number(&end, round);
        write_number(&end, &to, round, round % 32 == 0);
    }
    line.clear();
    std::io::stdin().read_line(&mut line).expect("the parent");
}

/// Returns the median of `n` runs in seconds. Other programs disturb the median less than the mean.
fn median(n: u64, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..n)
        .map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure() {
    setup();
    let mut command = Command::new(std::env::current_exe().expect("our path"));
    command.arg("peer").env("SOFTVERBS_FABRIC", fabric());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("readable");
    let to = parse(&line());
    let end = end();
    let stdin = child.stdin.as_mut().expect("piped");
    writeln!(stdin, "{}", text(&end.address())).expect("the child");
    assert_eq!(line(), "ready");
    end.connect(&to);

    let mut number = 0;
    let trip = median(ROUNDS, || {
        number += 1;
        write_number(&end, &to, number, number % 32 == 0);
        await_number(&end, number);
    });
    let post = median(ROUNDS, || write_number(&end, &to, 0, true));
    let big = median(2000, || {
        let mut sges = [end.sge(0, BIG)];
        assert_eq!(end.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, BIG as u64)), 0);
        assert_eq!(end.poll_send().status, 0);
    });
    let rate = BIG as f64 / big / 1e9;
    let (post, half) = (post * 1e6, trip / 2.0 * 1e6);
    println!(
        "medians: 1 MiB writes {rate:.1} GB/s; 64 B: {post:.2} us to post and complete, {half:.2} us half a round trip"
    );
    drop(child.stdin.take());
    child.wait().expect("ended");
}
