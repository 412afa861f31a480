//! A connection under load, and how soon its throughput is back after a change of a rail.

use std::time::{Duration, Instant};

use mpib_tests::pair::{Buffer, Pair, connect, init};
use mpib_tests::set;
use mpib_tests::table::{Ptr, newest as newest_table};
use mpib_tests::vdevices::newest;

use crate::{MIB, number, set_rates};

/// Messages in flight.
pub(crate) const DEPTH: usize = 8;
/// A rail's rate changes this long after the last change.
const PHASE: Duration = Duration::from_millis(500);
/// Throughput is the completed bytes of this time.
const WINDOW: Duration = Duration::from_millis(20);
/// It is back if so many windows in a row have it.
const WINDOWS: u32 = 5;
/// The part of the best throughput that counts as back.
const BACK: f64 = 0.95;

/// A connection over the first rails.
pub(crate) struct Stream {
    pair: Pair,
    from: Buffer,
    to: Buffer,
    size: usize,
}

/// The messages in flight of a connection.
#[derive(Default)]
pub(crate) struct Flow {
    receives: Vec<Ptr>,
    sends: Vec<Ptr>,
    /// When each message was sent.
    pub(crate) done: Vec<Instant>,
}

impl Flow {
    /// Tests all requests, and keeps messages in flight as long as there are `more`. Returns whether
    /// any is in flight.
    pub(crate) fn step(&mut self, stream: &Stream, now: Instant, more: bool) -> bool {
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
    pub(crate) fn new(rails: usize, size: usize, split: &str) -> Self {
        let members: Vec<i32> = (0..rails as i32).collect();
        Self::over(&members, size, split)
    }

    /// Over these rails.
    pub(crate) fn over(members: &[i32], size: usize, split: &str) -> Self {
        set("MPIB_SPLIT", Some(split));
        let ctx = init(newest_table());
        let pair = connect(newest_table(), ctx, newest().fuse(members));
        Self::of(pair, size)
    }

    pub(crate) fn of(pair: Pair, size: usize) -> Self {
        let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
        Self { pair, from, to, size }
    }

    /// Keeps messages in flight, in this thread, until `goes_on` returns `false`. Returns when each of
    /// them was sent.
    pub(crate) fn run(&self, mut goes_on: impl FnMut(Instant) -> bool) -> Vec<Instant> {
        let (mut flow, mut more) = (Flow::default(), true);
        loop {
            let now = Instant::now();
            more = more && goes_on(now);
            if !flow.step(self, now, more) && !more {
                return flow.done;
            }
        }
    }

    pub(crate) fn close(self) {
        self.from.dereg();
        self.to.dereg();
        self.pair.close();
    }
}

fn is_done(request: Ptr) -> bool {
    newest_table().test(request).1
}

/// Returns the bytes per second between the first and the last completion since `from`.
pub(crate) fn throughput(done: &[Instant], from: Instant, size: usize) -> f64 {
    let counted: Vec<_> = done.iter().filter(|at| **at >= from).collect();
    match counted[..] {
        [first, .., last] => ((counted.len() - 1) * size) as f64 / last.duration_since(*first).as_secs_f64(),
        _ => 0.0,
    }
}

/// Returns the nearest-rank quantile.
pub(crate) fn quantile(numbers: &mut [f64], q: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[((q * numbers.len() as f64).ceil() as usize).clamp(1, numbers.len()) - 1]
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

pub(crate) fn changes(who: &str, stream: Stream) {
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
