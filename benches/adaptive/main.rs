//! How well shares follow what rails can carry, and how soon, over software rails whose ports all
//! report the same speed. `docs/internals/performance.md` defines the figures.
//!
//! `scripts/bench-adaptive.sh` writes the output to `docs/guide/adaptive-figures.md`. The rates are
//! multiples of `UNIT` MB/s (100), which two cores can copy. `ROUNDS` (5), `CHANGES` (40), `TIME`
//! (60, seconds of equal rails) and `LOAD` (20, seconds of the agent's load) make it shorter or
//! longer. `ONLY` names some of the parts.

mod agent;
mod stream;

use std::time::{Duration, Instant};

use mpib_tests::process::MERGE;
use mpib_tests::set;
use mpib_tests::vdevices::{carried, rails, speeds};
use stream::{DEPTH, Flow, Stream, changes, quantile, throughput};

const MIB: usize = 1 << 20;
/// What is measured, in this order.
const PARTS: &str = "unequal small beside changes equal jobs agent load";
/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Sets the rates of the first rails in units. Returns their sum in bytes per second.
fn set_rates(of: &[u64]) -> f64 {
    let unit = number("UNIT", 100) * 1_000_000;
    for (i, rate) in of.iter().enumerate() {
        softverbs::set_rate(&format!("r{i}"), rate * unit).expect("a rate");
    }
    (of.iter().sum::<u64>() * unit) as f64
}

/// The part of the rails' sum that messages of a size reach, the median of all rounds.
fn of_the_sum(rates: &[u64], size: usize, split: &str) -> f64 {
    let sum = set_rates(rates);
    // The queue of messages in flight is exchanged once, or more often.
    let queue = Duration::from_secs_f64(1.5 * (DEPTH * size) as f64 / sum);
    let settle = queue.max(Duration::from_millis(500));
    let round = |_| {
        let stream = Stream::new(rates.len(), size, split);
        let from = Instant::now() + settle;
        let end = from + queue.max(Duration::from_secs(1));
        let done = stream.run(|now| now < end);
        stream.close();
        100.0 * throughput(&done, from, size) / sum
    };
    quantile(&mut (0..number("ROUNDS", 5)).map(round).collect::<Vec<_>>(), 0.5)
}

fn unequal_rails() {
    println!(
        "| rails, size | by measurement, % of the sum | by the speeds that ports report, % of the sum |"
    );
    println!("|---|---:|---:|");
    for rates in [&[4, 2][..], &[4, 1], &[4, 3, 2, 1], &[3, 3]] {
        for size in [MIB, 16 * MIB, 64 * MIB] {
            let name = rates.iter().map(u64::to_string).collect::<Vec<_>>().join("+");
            let [measured, speed] = ["measured", "speed"].map(|split| of_the_sum(rates, size, split));
            println!("| {name}, {} MiB | {measured:.1} | {speed:.1} |", size / MIB);
        }
    }
}

fn equal_rails() {
    let seconds = number("TIME", 60);
    set_rates(&[3, 3]);
    let (stream, mut shares) = (Stream::new(2, MIB, "measured"), Vec::new());
    let (mut before, mut due) = (carried(2), Instant::now() + Duration::from_secs(1));
    stream.run(|now| {
        if now >= due {
            let after = carried(2);
            let bytes = [0, 1].map(|rail| after[rail].bytes - before[rail].bytes);
            shares.push(100.0 * bytes[0] as f64 / (bytes[0] + bytes[1]) as f64);
            (before, due) = (after, now + Duration::from_secs(1));
        }
        (shares.len() as u64) < seconds
    });
    stream.close();
    println!("\n| two equal rails, {seconds} s | share of the first rail in each second, % |");
    println!("|---|---:|");
    for (name, q) in [("least", 0.0), ("median", 0.5), ("greatest", 1.0)] {
        println!("| {name} | {:.2} |", quantile(&mut shares, q));
    }
}

/// Keeps all connections under load in this thread, and closes them. Returns the bytes per second of
/// each for `time`, from a second after the begin on.
fn together(jobs: Vec<Stream>, size: usize, time: Duration) -> Vec<f64> {
    let mut flows: Vec<Flow> = jobs.iter().map(|_| Flow::default()).collect();
    let from = Instant::now() + Duration::from_secs(1);
    let end = from + time;
    loop {
        let now = Instant::now();
        let step = |(job, flow): (&Stream, &mut Flow)| flow.step(job, now, now < end);
        let busy = jobs.iter().zip(&mut flows).map(step).fold(false, |any, busy| any | busy);
        if !busy && now >= end {
            break;
        }
    }
    jobs.into_iter().for_each(Stream::close);
    let done = |flow: &Flow| flow.done.iter().copied().filter(|at| *at < end).collect::<Vec<_>>();
    flows.iter().map(|flow| throughput(&done(flow), from, size)).collect()
}

/// Eight connections over two unequal rails, with small messages.
fn small_messages() {
    let sum = set_rates(&[3, 1]);
    println!(
        "\n| 3+1, 8 connections | by measurement, % of the sum | by the speeds that ports report, % of the sum |"
    );
    println!("|---|---:|---:|");
    for kib in [4, 16, 32] {
        let round = |split: &str| {
            let jobs = (0..8).map(|_| Stream::new(2, kib << 10, split)).collect();
            100.0 * together(jobs, kib << 10, Duration::from_secs(1)).iter().sum::<f64>() / sum
        };
        let mut found = [Vec::new(), Vec::new()];
        for _ in 0..number("ROUNDS", 5) {
            for (found, split) in found.iter_mut().zip(["measured", "speed"]) {
                found.push(round(split));
            }
        }
        let [measured, speed] = found.each_mut().map(|rounds| quantile(rounds, 0.5));
        println!("| {kib} KiB | {measured:.1} | {speed:.1} |");
    }
}

/// A connection over one rail beside one that has another rail, too.
fn beside() {
    let sum = set_rates(&[2, 2]);
    println!("\n| a connection of one rail beside one of two, 2+2 | median, % |");
    println!("|---|---:|");
    let mut parts = [Vec::new(), Vec::new()];
    for _ in 0..number("ROUNDS", 5) {
        let jobs = [&[0, 1][..], &[0]].map(|rails| Stream::over(rails, MIB / 2, "measured"));
        let found = together(jobs.into(), MIB / 2, Duration::from_secs(2));
        parts[0].push(100.0 * found.iter().sum::<f64>() / sum);
        parts[1].push(200.0 * found[1] / sum);
    }
    for (name, parts) in
        ["both, of the sum of the rails", "that of one rail, of a rail"].iter().zip(&mut parts)
    {
        println!("| {name} | {:.1} |", quantile(parts, 0.5));
    }
}

/// Two connections of two rails each, with one rail in common.
fn two_jobs() {
    let sum = set_rates(&[4, 4, 4]);
    let jobs = [&[0, 1], &[1, 2]].map(|rails| Stream::over(rails, MIB, "measured"));
    let rates = together(jobs.into(), MIB, Duration::from_secs(number("ROUNDS", 5)));
    let both: f64 = rates.iter().sum();
    println!("\n| two jobs of two rails each, one rail in common, 4+4+4 | % |");
    println!("|---|---:|");
    println!("| both, of the sum of the rails | {:.1} |", 100.0 * both / sum);
    for (name, rate) in ["first", "second"].into_iter().zip(rates) {
        println!("| the {name} job, of both | {:.1} |", 100.0 * rate / both);
    }
}

fn main() {
    if agent::plays_role() {
        return;
    }
    let env = [
        ("SOFTVERBS_FABRIC", format!("bench-adaptive-{}", std::process::id())),
        ("SOFTVERBS_DEVICES", rails(4, 1)),
        ("MPIB_RAIL_SPEED", speeds(&[100_000; 4])),
        (MERGE, "r0,r1,r2,r3".into()),
    ];
    for (name, value) in env {
        set(name, Some(value));
    }
    println!("<!-- Written by \"make bench-adaptive\". -->\n");
    let only = std::env::var("ONLY").unwrap_or_else(|_| PARTS.into());
    for part in only.split(' ') {
        match part {
            "unequal" => unequal_rails(),
            "small" => small_messages(),
            "beside" => beside(),
            "changes" => changes("by the plugin", Stream::new(2, MIB / 2, "measured")),
            "equal" => equal_rails(),
            "jobs" => two_jobs(),
            "agent" | "load" => agent::measure(part),
            _ => panic!("ONLY={only}: no part {part}, expected some of {PARTS}"),
        }
    }
}
