//! Shared by the benchmarks of small messages: measures several kinds of connections alternately.

use std::time::Instant;

use mpib_tests::pair::{Buffer, Pair, connect, init, until};
use mpib_tests::table::{Ptr, newest};

/// Messages in a round: short enough that a disturbed round is one of many.
pub(crate) const ROUND: usize = 500;
/// Rounds of each connection.
pub(crate) const ROUNDS: usize = 500;
/// Bytes of a message.
pub(crate) const SIZE: usize = 8;

/// A connection of a separate plugin context.
pub(crate) struct Lane {
    pair: Pair,
    from: Buffer,
    to: Buffer,
}

impl Lane {
    pub(crate) fn new() -> Self {
        let table = newest();
        let pair = connect(table, init(table), 0);
        let (from, to) = (pair.send_buffer(vec![1; SIZE]), pair.recv_buffer(SIZE));
        Self { pair, from, to }
    }

    /// Transfers `n` messages with `depth` of them in flight.
    pub(crate) fn run(&self, n: usize, depth: usize) {
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

/// Returns the time of a message over each connection in nanoseconds, from the shortest round,
/// because disturbances only lengthen a round. Calls `before` with the connection's index before
/// each of its rounds.
pub(crate) fn measure(lanes: &[Lane], depth: usize, before: impl Fn(usize)) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; lanes.len()];
    for _ in 0..ROUNDS {
        for (i, (lane, least)) in lanes.iter().zip(&mut least).enumerate() {
            before(i);
            let start = Instant::now();
            lane.run(ROUND, depth);
            *least = least.min(start.elapsed().as_secs_f64() * 1e9 / ROUND as f64);
        }
    }
    least
}

/// Mean, and half of what lies between the least and the greatest.
pub(crate) fn mean(values: &[f64]) -> (f64, f64) {
    let (low, high) =
        values.iter().fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), v| (l.min(*v), h.max(*v)));
    (values.iter().sum::<f64>() / values.len() as f64, (high - low) / 2.0)
}

/// The number at this place after an argument of the command line.
pub(crate) fn argument(name: &str, place: usize) -> Option<usize> {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + place)?.parse().ok()
}

/// Tools that count instructions find it by this name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn counted_messages(lane: &Lane, n: usize) {
    lane.run(n, 1);
}

/// `--count N`: moves N messages within `counted_messages`.
pub(crate) fn count(lane: &Lane, n: usize) {
    lane.run(ROUND, 1);
    counted_messages(lane, n);
}
