//! What NCCL's profiler costs: small messages over software devices without a rate limit, through
//! the newest table, with init's callback and without, and with profilers that do more and more; and
//! the events that the plugin's own profiler gets besides.
//!
//! `cargo bench -p nccl-net-mpib --bench profiler` times all of them alternately. With `--count N
//! KIND` after `--`, KIND from 0 on in the order of both tables, it moves N messages within
//! `counted_messages`, or begins and ends N events within `counted_events`: for tools that count a
//! function's instructions (`docs/internals/performance.md`).

mod util;

use std::ffi::c_int;
use std::ptr::without_provenance_mut;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use mpib_tests::profiled::{ON, Profiled, callback, record_state, stop};
use mpib_tests::set;
use mpib_tests::table::{Ptr, set_profiler, set_profiler_handles};
use nccl_net_abi as abi;
use nix::time::{ClockId, clock_gettime};
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
    /// The plugin is the profiler, and records the messages of an operation.
    Records,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Absent, "no callback"),
    (Kind::NoHandles, "callback, no handles"),
    (Kind::Leaves, "handles, none taken"),
    (Kind::Takes, "every event taken"),
    (Kind::Records, "recorded by mpib"),
];

/// The kinds of the connections, in the order in which they are made: each kind has each place
/// within five.
const PLACES: usize = KINDS.len() * KINDS.len();

fn kind(place: usize) -> Kind {
    KINDS[(place + place / KINDS.len()) % KINDS.len()].0
}

fn lane(kind: Kind) -> Lane {
    set_profiler(match kind {
        Kind::Absent => None,
        Kind::NoHandles | Kind::Leaves => Some(leaves),
        Kind::Takes => Some(takes),
        Kind::Records => Some(callback),
    });
    Lane::new()
}

/// Events of an operation that is under way, on the plugin's own profiler.
struct Recorded {
    world: Profiled,
    operation: Ptr,
    part: Ptr,
    step: Ptr,
}

impl Recorded {
    fn new() -> Self {
        let world = Profiled::new().expect("the plugin is the profiler");
        let operation = world.operation(0);
        let part = world.part(operation, std::process::id());
        let step = world.step(part);
        Self { world, operation, part, step }
    }

    /// Gives a connection's turn the handles that belong to it.
    fn handles(&self, kind: Kind) {
        set_profiler_handles(match kind {
            Kind::Absent | Kind::NoHandles => None,
            Kind::Leaves | Kind::Takes => Some([without_provenance_mut(8); 8]),
            Kind::Records => Some([self.step; 8]),
        });
    }
}

type Event = (&'static str, fn(&Recorded));

/// What NCCL reports besides messages: an event that begins and ends, or a state.
const EVENTS: [Event; 4] = [
    ("operation", |it| stop(it.world.operation(1))),
    ("part of a channel", |it| stop(it.world.part(it.operation, std::process::id()))),
    ("step", |it| stop(it.world.step(it.part))),
    ("state of a step", |it| record_state(it.step)),
];

/// Tools that count instructions find it by this name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn counted_events(recorded: &Recorded, n: usize, kind: usize) {
    (0..n).for_each(|_| EVENTS[kind].1(recorded));
}

/// Returns the processor time of this thread.
fn busy() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).expect("the time of a thread")
}

/// Returns the processor time of each kind of events in nanoseconds, of a communicator whose events
/// this thread reports. Each kind begins in all threads at a time.
fn time_events(together: &Barrier) -> [f64; EVENTS.len()] {
    let recorded = Recorded::new();
    std::array::from_fn(|kind| {
        together.wait();
        let begun = busy();
        counted_events(&recorded, ROUND * ROUNDS, kind);
        (busy() - begun).as_secs_f64() * 1e9 / (ROUND * ROUNDS) as f64
    })
}

fn print_events() {
    println!("events, {} in each thread, a communicator each, processor time:", ROUND * ROUNDS);
    println!("{:>10}  {:<20}  {:>18}", "threads", "", "an event");
    for threads in [1, 8] {
        let together = Barrier::new(threads);
        let times: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| time_events(&together))).collect();
            running.into_iter().map(|thread| thread.join().expect("a thread that times")).collect()
        });
        for (kind, (name, _)) in EVENTS.iter().enumerate() {
            let (time, spread) = mean(&times.iter().map(|times| times[kind]).collect::<Vec<_>>());
            println!("{threads:>10}  {name:<20}  {time:>8.1} ±{spread:>5.1} ns");
        }
    }
}

fn main() {
    for (name, value) in mpib_tests::mpib("0", &[("SOFTVERBS_FABRIC", "bench-profiler"), ON]) {
        set(name, Some(value));
    }
    if let Some(n) = argument("--count", 1) {
        let place = argument("--count", 2).expect("--count MESSAGES KIND");
        let lane = lane(KINDS.get(place).map_or(Kind::Records, |(kind, _)| *kind));
        let recorded = Recorded::new();
        return match KINDS.get(place) {
            Some((kind, _)) => {
                recorded.handles(*kind);
                count(&lane, n);
            }
            None => counted_events(&recorded, n, place - KINDS.len()),
        };
    }
    let lanes: Vec<Lane> = (0..PLACES).map(|place| lane(kind(place))).collect();
    let recorded = Recorded::new();
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
        let times = measure(&lanes, depth, |place| recorded.handles(kind(place)));
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
    print_events();
}
