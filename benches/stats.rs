//! What counting costs: small messages over software devices without a rate limit, through the
//! newest table, with `MPIB_STATS=1` and with `MPIB_STATS=0`.
//!
//! `cargo bench -p nccl-net-mpib` times both alternately. With `--count N 0` or `--count N 1` after
//! `--` it moves N messages in one of the two ways within `counted_messages`: for tools that count
//! a function's instructions (`docs/internals/stats-page.md`).

mod util;

use std::time::{Duration, Instant};

use mpib_tests::set;
use util::{Lane, ROUND, ROUNDS, SIZE, argument, count, mean, measure};

/// Which connections count, in the order in which they are made: where a connection's memory lies
/// and when its turn comes make a difference of more than one percent, so both kinds have places of
/// all sorts.
const COUNTS: [bool; 16] = {
    let mut counts = [false; 16];
    let mut i = 0usize;
    while i < counts.len() {
        counts[i] = i.count_ones() % 2 == 1;
        i += 1;
    }
    counts
};

/// A connection, with or without counters.
fn lane(stats: bool) -> Lane {
    set("MPIB_STATS", Some(if stats { "1" } else { "0" }));
    Lane::new()
}

fn main() {
    for (name, value) in mpib_tests::mpib("512", &[("SOFTVERBS_FABRIC", "bench-stats")]) {
        set(name, Some(value));
    }
    if let Some(n) = argument("--count", 1) {
        let stats = argument("--count", 2).expect("--count MESSAGES 0|1");
        return count(&lane(stats != 0), n);
    }
    let lanes = COUNTS.map(lane);
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
        let times = measure(&lanes, depth, |_| ());
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
