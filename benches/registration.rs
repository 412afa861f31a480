//! Compares the cost of a new registration with the cost of one that an existing registration
//! serves. Uses the newest table and a software device. The software device pins no memory, so new
//! registrations on a real adapter cost more. `cargo bench -p nccl-net-mpib --bench registration`
//! (`docs/internals/performance.md`).

use std::time::Instant;

use mpib_tests::code::Success;
use mpib_tests::memory::Pages;
use mpib_tests::pair::{HOST, Pair};
use mpib_tests::set;
use mpib_tests::table::{Ptr, newest};

/// Rounds of a measurement. The shortest one counts, because disturbances only lengthen a round.
const ROUNDS: usize = 200;
/// Registrations in a round.
const ROUND: usize = 50;

/// Nanoseconds of one regMr and deregMr.
fn measure(comm: Ptr, addr: usize, len: usize) -> f64 {
    let table = newest();
    let round = || {
        let start = Instant::now();
        for _ in 0..ROUND {
            let (rc, mr) = table.reg_mr(comm, addr, len, HOST);
            assert_eq!(rc, Success);
            assert_eq!(table.dereg_mr(comm, mr), Success);
        }
        start.elapsed().as_secs_f64() * 1e9 / ROUND as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let device = "soft0:addr=10.1.0.1/16";
    for (name, value) in [("SOFTVERBS_FABRIC", "bench-registration"), ("SOFTVERBS_DEVICES", device)] {
        set(name, Some(value));
    }
    let (table, pair) = (newest(), Pair::new(newest()));
    println!("{:>10}  {:>12}  {:>12}  {:>6}", "bytes", "made", "served", "ratio");
    for len in [1 << 16, 1 << 22, 1 << 28] {
        let memory = Pages::new(len);
        let made = measure(pair.send, memory.addr(), len);
        let (rc, whole) = table.reg_mr(pair.recv, memory.addr(), len, HOST);
        assert_eq!(rc, Success);
        let served = measure(pair.send, memory.addr() + len / 2, len / 4);
        assert_eq!(table.dereg_mr(pair.recv, whole), Success);
        println!("{len:>10}  {made:>9.0} ns  {served:>9.0} ns  {:>6.3}", served / made);
    }
    pair.close();
}
