//! Rails that die under a connection: it goes on over the others, and every byte arrives once.

mod begins;
mod busy;
mod closes;
mod failback;
mod failing_calls;
mod fatal;
mod kinds;
mod links;
mod one_sided;
mod outages;
mod points;
mod random;
mod recovery;
mod refusals;
mod replugged;
mod responders;
mod rest;
mod second;
mod shown;
mod silence;
mod statuses;
mod traffic;
mod verdict;

use mpib_tests::vdevices::rails;
use mpib_tests::{SPLIT_ALL, with_and_without_srq};

const MIB: usize = 1 << 20;

/// Runs `body` on rails r0, r1, … that give up on a peer after a few milliseconds.
fn on_rails(test: &str, n: usize, more: &[(&str, &str)], body: impl FnOnce()) {
    let devices = rails(n, 1);
    let mut env = vec![
        ("SOFTVERBS_DEVICES", devices.as_str()),
        ("NCCL_IB_TIMEOUT", "10"),
        ("NCCL_IB_RETRY_CNT", "2"),
        SPLIT_ALL,
    ];
    env.extend_from_slice(more);
    with_and_without_srq(test, &env, body);
}
