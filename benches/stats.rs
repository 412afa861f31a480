//! What counting costs: small messages over software devices without a rate limit, through the newest table, with
//! `MPIB_STATS=1` and with `MPIB_STATS=0`.
//!
//! `cargo bench -p nccl-net-mpib` times both in turns. With `--count N 0` or `--count N 1` after `--` it moves N messages in one of the two
//! ways within `counted_messages`: for tools that count a function's instructions (`docs/stats.md`).

extern crate softverbs as _;

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::pair::{Buffer, Pair, connect, init, until};
use common::set;
use common::table::{Ptr, newest};

/// Messages in a round: short enough that a disturbed round is one of many.
const ROUND: usize = 500;
/// Rounds of each connection.
const ROUNDS: usize = 500;
/// Which connections count, in the order in which they are made: where a connection's memory lies and when its turn comes make a
/// difference of more than one percent, so both kinds have places of all sorts.
const COUNTS: [bool; 16] = {
    let mut counts = [false; 16];
    let mut i = 0usize;
    while i < counts.len() {
        counts[i] = i.count_ones() % 2 == 1;
        i += 1;
    }
    counts
};
/// Bytes of a message.
const SIZE: usize = 8;

/// A connection, with or without counters.
struct Lane {
    pair: Pair,
    from: Buffer,
    to: Buffer,
}

impl Lane {
    fn new(stats: bool) -> Self {
        set("MPIB_STATS", Some(if stats { "1" } else { "0" }));
        let table = newest();
        let pair = connect(table, init(table), 0);
        let (from, to) = (pair.send_buffer(vec![1; SIZE]), pair.recv_buffer(SIZE));
        Self { pair, from, to }
    }

    /// `n` messages, `depth` of them under way at a time.
    fn run(&self, n: usize, depth: usize) {
        let mut requests: [(Ptr, Ptr); 32] = Default::default();
        for _ in 0..n / depth {
            for (_, recv) in &mut requests[..depth] {
                *recv = self.pair.irecv(&[(self.to.addr(), SIZE, 1, self.to.mr)]);
            }
            for (send, _) in &mut requests[..depth] {
                *send = self.pair.isend(self.from.addr(), SIZE, 1, self.from.mr);
            }
            for (send, recv) in &requests[..depth] {
                for request in [*send, *recv] {
                    until("test", || newest().test(request).1.then_some(()));
                }
            }
        }
    }
}

/// The least time of a message over each connection, in nanoseconds: what disturbs a round only makes it longer.
fn measure(lanes: &[Lane], depth: usize) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; lanes.len()];
    for _ in 0..ROUNDS {
        for (lane, least) in lanes.iter().zip(&mut least) {
            let start = Instant::now();
            lane.run(ROUND, depth);
            *least = least.min(start.elapsed().as_secs_f64() * 1e9 / ROUND as f64);
        }
    }
    least
}

/// Mean, and half of what lies between the least and the greatest.
fn mean(values: &[f64]) -> (f64, f64) {
    let (low, high) =
        values.iter().fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), v| (l.min(*v), h.max(*v)));
    (values.iter().sum::<f64>() / values.len() as f64, (high - low) / 2.0)
}

/// Its name is what tools that count instructions are told.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn counted_messages(lane: &Lane, n: usize) {
    lane.run(n, 1);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    for (name, value) in common::mpib("512", &[("SOFTVERBS_FABRIC", "bench-stats")]) {
        set(name, Some(value));
    }
    if let Some(at) = args.iter().position(|arg| arg == "--count") {
        let number = |i: usize| args.get(at + i).and_then(|arg| arg.parse::<usize>().ok());
        let (Some(n), Some(stats)) = (number(1), number(2)) else { panic!("--count MESSAGES 0|1") };
        let lane = Lane::new(stats != 0);
        lane.run(ROUND, 1);
        return counted_messages(&lane, n);
    }
    let lanes = COUNTS.map(Lane::new);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        lanes.iter().for_each(|lane| lane.run(ROUND, 1));
    }
    println!(
        "{SIZE} bytes, both ends in one thread, {} connections of each kind, the least of {ROUNDS} rounds:",
        COUNTS.len() / 2
    );
    println!("{:>10}  {:>18}  {:>18}  {:>6}", "in flight", "counting", "not counting", "ratio");
    for depth in [1, 32] {
        let times = measure(&lanes, depth);
        let of = |kind: bool| -> Vec<f64> {
            times.iter().zip(COUNTS).filter(|(_, counts)| *counts == kind).map(|(time, _)| *time).collect()
        };
        let ((on, on_spread), (off, off_spread)) = (mean(&of(true)), mean(&of(false)));
        println!(
            "{depth:>10}  {on:>8.1} ±{on_spread:>5.1} ns  {off:>8.1} ±{off_spread:>5.1} ns  {:>6.4}",
            on / off
        );
    }
}
