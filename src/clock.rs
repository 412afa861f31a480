//! The clock that measures goodput.

use nix::time::{ClockId, clock_gettime};

/// Returns the time of CLOCK_MONOTONIC in ns, without a system call where the kernel offers that.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()));
    (time.0 as u64).wrapping_mul(1_000_000_000).wrapping_add(time.1 as u64)
}
