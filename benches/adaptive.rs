//! How well shares follow what rails can carry, and how soon, over software rails whose ports all
//! report the same speed. `docs/internals/performance.md` defines the figures.
//!
//! `scripts/bench-adaptive.sh` writes the output to `docs/guide/adaptive-figures.md`. The rates are
//! multiples of `UNIT` MB/s (100), which two cores can copy. `ROUNDS` (5), `CHANGES` (40) and
//! `TIME` (60, seconds of equal rails) make it shorter or longer.

use std::time::{Duration, Instant};

use mpib_tests::pair::{Buffer, Pair, connect, init};
use mpib_tests::process::MERGE;
use mpib_tests::set;
use mpib_tests::table::{Ptr, newest as newest_table};
use mpib_tests::vdevices::{carried, newest, rails, speeds};

const MIB: usize = 1 << 20;
/// Messages in flight.
const DEPTH: usize = 8;
/// A rail's rate changes this long after the last change.
const PHASE: Duration = Duration::from_millis(500);
/// Throughput is the completed bytes of this time.
const WINDOW: Duration = Duration::from_millis(20);
/// It is back if so many windows in a row have it.
const WINDOWS: u32 = 5;
/// The part of the best throughput that counts as back.
const BACK: f64 = 0.95;

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

/// A connection over the first rails.
struct Stream {
    pair: Pair,
    from: Buffer,
    to: Buffer,
    size: usize,
}

/// The messages in flight of a connection.
#[derive(Default)]
struct Flow {
    receives: Vec<Ptr>,
    sends: Vec<Ptr>,
    /// When each message was sent.
    done: Vec<Instant>,
}

impl Flow {
    /// Tests all requests, and keeps messages in flight as long as there are `more`. Returns whether
    /// any is in flight.
    fn step(&mut self, stream: &Stream, now: Instant, more: bool) -> bool {
        self.receives.retain(|request| !is_done(*request));
        let before = self.sends.len();
        self.sends.retain(|request| !is_done(*request));
        self.done.resize(self.done.len() + before - self.sends.len(), now);
        while more && self.receives.len() < DEPTH && self.sends.len() < DEPTH {
            let Stream { pair, from, to, size } = stream;
            self.receives.push(pair.irecv(&[(to.addr(), *size, 1, to.mr)]));
            self.sends.push(pair.isend(from.addr(), *size, 1, from.mr));
        }
        !self.receives.is_empty() || !self.sends.is_empty()
    }
}

impl Stream {
    fn new(rails: usize, size: usize, split: &str) -> Self {
        let members: Vec<i32> = (0..rails as i32).collect();
        Self::over(&members, size, split)
    }

    /// Over these rails.
    fn over(members: &[i32], size: usize, split: &str) -> Self {
        set("MPIB_SPLIT", Some(split));
        let ctx = init(newest_table());
        let pair = connect(newest_table(), ctx, newest().fuse(members));
        Self::of(pair, size)
    }

    fn of(pair: Pair, size: usize) -> Self {
        let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
        Self { pair, from, to, size }
    }

    /// Keeps messages in flight, in this thread, until `goes_on` returns `false`. Returns when each of
    /// them was sent.
    fn run(&self, mut goes_on: impl FnMut(Instant) -> bool) -> Vec<Instant> {
        let (mut flow, mut more) = (Flow::default(), true);
        loop {
            let now = Instant::now();
            more = more && goes_on(now);
            if !flow.step(self, now, more) && !more {
                return flow.done;
            }
        }
    }

    fn close(self) {
        self.from.dereg();
        self.to.dereg();
        self.pair.close();
    }
}

fn is_done(request: Ptr) -> bool {
    newest_table().test(request).1
}

/// Returns the bytes per second between the first and the last completion since `from`.
fn throughput(done: &[Instant], from: Instant, size: usize) -> f64 {
    let counted: Vec<_> = done.iter().filter(|at| **at >= from).collect();
    match counted[..] {
        [first, .., last] => ((counted.len() - 1) * size) as f64 / last.duration_since(*first).as_secs_f64(),
        _ => 0.0,
    }
}

/// Returns the nearest-rank quantile.
fn quantile(numbers: &mut [f64], q: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[((q * numbers.len() as f64).ceil() as usize).clamp(1, numbers.len()) - 1]
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

/// Returns how long after `change` the throughput is, and stays, nearly that of the rest of the
/// phase.
fn time_back(done: &[Instant], change: Instant, size: usize) -> f64 {
    let end = change + PHASE;
    let best = {
        let rest: Vec<_> = done.iter().copied().filter(|at| *at < end).collect();
        throughput(&rest, change + PHASE / 2, size)
    };
    let starts = done.iter().filter(|at| **at >= change && **at < end);
    let reaches = |from: Instant| {
        let count = done.iter().filter(|at| **at >= from && **at < from + WINDOW).count();
        (count * size) as f64 / WINDOW.as_secs_f64() >= BACK * best
    };
    let stays = |start: &&Instant| (0..WINDOWS).all(|n| reaches(**start + n * WINDOW));
    let back = starts.clone().find(stays).map_or(end, |at| *at);
    back.duration_since(change).as_secs_f64() * 1e3
}

fn changes(who: &str, stream: Stream) {
    println!("\n| a rail's rate changes, 512 KiB, {who} | halves | doubles |");
    println!("|---|---:|---:|");
    let steady = [4, 4];
    set_rates(&steady);
    let (mut at, all) = (Vec::new(), number("CHANGES", 40));
    let mut due = Instant::now() + PHASE;
    let done = stream.run(|now| {
        if now < due {
            return true;
        }
        if at.len() as u64 == all {
            return false;
        }
        set_rates(if at.len() % 2 == 0 { &[4, 2] } else { &steady });
        at.push(now);
        due = now + PHASE;
        true
    });
    stream.close();
    let times = |which: usize| -> Vec<f64> {
        at.iter().skip(which).step_by(2).map(|change| time_back(&done, *change, MIB / 2)).collect()
    };
    let mut both = [times(0), times(1)];
    println!("| changes | {} | {} |", both[0].len(), both[1].len());
    for (name, q) in [("median", 0.5), ("p99", 0.99)] {
        let [halves, doubles] = both.each_mut().map(|times| quantile(times, q));
        println!("| time back to 95 % of the best, {name}, ms | {halves:.1} | {doubles:.1} |");
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

/// Two connections of two rails each, with one rail in common.
fn two_jobs() {
    let sum = set_rates(&[4, 4, 4]);
    let jobs = [&[0, 1], &[1, 2]].map(|rails| Stream::over(rails, MIB, "measured"));
    let mut flows = [Flow::default(), Flow::default()];
    let from = Instant::now() + Duration::from_secs(1);
    let end = from + Duration::from_secs(number("ROUNDS", 5));
    loop {
        let now = Instant::now();
        let step = |(job, flow): (&Stream, &mut Flow)| flow.step(job, now, now < end);
        let busy = jobs.iter().zip(&mut flows).map(step).fold(false, |any, busy| any | busy);
        if !busy && now >= end {
            break;
        }
    }
    let rates = flows.each_ref().map(|flow| {
        let done: Vec<_> = flow.done.iter().copied().filter(|at| *at < end).collect();
        throughput(&done, from, MIB)
    });
    jobs.into_iter().for_each(Stream::close);
    let both: f64 = rates.iter().sum();
    println!("\n| two jobs of two rails each, one rail in common, 4+4+4 | % |");
    println!("|---|---:|");
    println!("| both, of the sum of the rails | {:.1} |", 100.0 * both / sum);
    for (name, rate) in ["first", "second"].into_iter().zip(rates) {
        println!("| the {name} job, of both | {:.1} |", 100.0 * rate / both);
    }
}

fn main() {
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
    unequal_rails();
    changes("by the plugin", Stream::new(2, MIB / 2, "measured"));
    equal_rails();
    two_jobs();
}
