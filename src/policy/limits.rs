//! The sizes below which a transfer is not split.

use super::weights::slower_end;
use crate::config::Config;

/// The default of `MPIB_SPLIT_MIN` on fast rails.
const SPLIT_MIN: u32 = 64 << 10;
/// Mb/s of the slowest rail that is fast in that sense.
const SPLIT_MIN_SPEED: u32 = 100_000;

/// The sizes below which a transfer is not split.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// `MPIB_BDP_THRESHOLD`: transfers of at most this many bytes have no share for SUP. Applies to
    /// hints between islands.
    pub sout_only: u32,
    /// Transfers below this many bytes go whole on one rail.
    pub split_min: u32,
}

impl Limits {
    /// Returns the limits of a connection by its settings. `speeds` are the speeds of both ends of
    /// each rail in Mb/s.
    pub fn new(config: &Config, speeds: &[(u32, u32)]) -> Self {
        let split_min = config.split_min.unwrap_or_else(|| split_min(speeds));
        Self { sout_only: config.bdp_threshold, split_min }
    }
}

/// Returns the default of `MPIB_SPLIT_MIN`. A further part costs a work request and a completion,
/// which take about the same time on each rail; so what must be saved is a time, not a size. A
/// message of [`SPLIT_MIN`] bytes takes 5 µs at [`SPLIT_MIN_SPEED`].
fn split_min(speeds: &[(u32, u32)]) -> u32 {
    let fastest = speeds.iter().map(slower_end).max().unwrap_or(0);
    // 0 is unknown.
    let speed = if fastest == 0 { SPLIT_MIN_SPEED } else { fastest.min(SPLIT_MIN_SPEED) };
    (u64::from(SPLIT_MIN) * u64::from(speed) / u64::from(SPLIT_MIN_SPEED)) as u32
}
