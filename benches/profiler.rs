//! What NCCL's profiler costs: small messages over software devices without a rate limit, through
//! the newest table, with init's callback and without, and with profilers that do more and more.
//!
//! `cargo bench -p nccl-net-mpib --bench profiler` times all of them alternately. With `--count N
//! KIND` after `--`, KIND from 0 on in the order of the table, it moves N messages within
//! `counted_messages`: for tools that count a function's instructions (`docs/internals/performance.md`).

mod util;

use std::ffi::c_int;
use std::ptr::without_provenance_mut;
use std::time::{Duration, Instant};

use mpib_tests::set;
use mpib_tests::table::{Ptr, set_profiler, set_profiler_handles};
use nccl_net_abi as abi;
use util::{Lane, ROUND, ROUNDS, SIZE, argument, count, mean, measure};

/// A profiler that pauses. Without any the plugin soon asks seldom, which a process that has one
/// does not show.
unsafe extern "C" fn leaves(_: *mut Ptr, _: c_int, _: Ptr, _: i64, _: Ptr) -> abi::ncclResult_t {
    abi::ncclSuccess
}

/// A profiler that takes each event, in no time.
unsafe extern "C" fn takes(event: *mut Ptr, kind: c_int, _: Ptr, _: i64, _: Ptr) -> abi::ncclResult_t {
    if kind == 0 {
        // SAFETY: the plugin's place for an event.
        unsafe { *event = without_provenance_mut(1) };
    }
    abi::ncclSuccess
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// No callback: tables up to v9.
    Absent,
    /// A callback, and no handles: NCCL's bootstrap.
    NoHandles,
    /// Handles, and events that are not taken.
    Leaves,
    /// Each event is taken and ended.
    Takes,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Absent, "no callback"),
    (Kind::NoHandles, "callback, no handles"),
    (Kind::Leaves, "handles, none taken"),
    (Kind::Takes, "every event taken"),
];

/// The kinds of the connections, in the order in which they are made: each kind has each place
/// within four.
const PLACES: usize = 16;

fn kind(place: usize) -> Kind {
    KINDS[(place + place / KINDS.len()) % KINDS.len()].0
}

fn lane(kind: Kind) -> Lane {
    set_profiler(match kind {
        Kind::Absent => None,
        Kind::NoHandles | Kind::Leaves => Some(leaves),
        Kind::Takes => Some(takes),
    });
    Lane::new()
}

/// The handles that belong to a connection's turn.
fn handles(kind: Kind) {
    let given = matches!(kind, Kind::Leaves | Kind::Takes);
    set_profiler_handles(given.then_some([without_provenance_mut(8); 8]));
}

fn main() {
    for (name, value) in mpib_tests::mpib("0", &[("SOFTVERBS_FABRIC", "bench-profiler")]) {
        set(name, Some(value));
    }
    if let Some(n) = argument("--count", 1) {
        let kind = KINDS[argument("--count", 2).expect("--count MESSAGES KIND")].0;
        handles(kind);
        return count(&lane(kind), n);
    }
    let lanes: Vec<Lane> = (0..PLACES).map(|place| lane(kind(place))).collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        lanes.iter().for_each(|lane| lane.run(ROUND, 1));
    }
    println!(
        "{SIZE} bytes, both ends in one thread, {} connections of each kind, the least of {ROUNDS} rounds:",
        PLACES / KINDS.len()
    );
    println!("{:>10}  {:<20}  {:>18}  {:>6}", "in flight", "", "a message", "ratio");
    for depth in [1, 32] {
        let times = measure(&lanes, depth, |place| handles(kind(place)));
        let of = |wanted: Kind| -> (f64, f64) {
            let times = times.iter().enumerate().filter(|(place, _)| kind(*place) == wanted);
            mean(&times.map(|(_, time)| *time).collect::<Vec<_>>())
        };
        let (base, _) = of(Kind::Absent);
        for (kind, name) in KINDS {
            let (time, spread) = of(kind);
            println!("{depth:>10}  {name:<20}  {time:>8.1} ±{spread:>5.1} ns  {:>6.4}", time / base);
        }
    }
}
