//! The goodput of a rail as one connection measures it. Integers only, no clock. Times are in
//! nanoseconds, goodput is in bytes per second.

use nccl_net_mpib_agent_iface::shares::DOUBLING;

use crate::proto::{MAX_RAILS, rails};

/// Parts from this size on are measured, and messages from this size on are divided by the
/// measurement at the time of the send.
pub const MEASURED: usize = 64 << 10;

/// The time constant of the average.
const MEMORY: u64 = 8_000_000;
const SECOND: u64 = 1_000_000_000;

/// The goodput of a rail: a moving average over time. A long part counts for more than a short one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Goodput {
    /// In bytes per second; 0 if nothing was measured.
    pub(super) rate: u64,
    /// When the last part completed, or since when nothing was measured.
    pub(super) at: u64,
}

impl Goodput {
    /// Adds a part of `bytes` bytes that took `time` and completed `now`.
    pub(super) fn add(&mut self, bytes: usize, time: u64, now: u64) {
        self.at = now;
        let volume = bytes as u128 * u128::from(SECOND);
        let (known, over) = match self.rate {
            // The next part has the time since this one.
            0 if time == 0 => return,
            0 => (0, u128::from(time)),
            rate => (u128::from(rate) * u128::from(MEMORY), u128::from(MEMORY) + u128::from(time)),
        };
        self.rate = u64::try_from((known + volume) / over).unwrap_or(u64::MAX).max(1);
    }

    /// Returns whether the rail is to be measured again: after 10 ms, and if it was measured before,
    /// after 64 times the duration of the smallest part that is measured.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let part = (MEASURED as u64 * SECOND).checked_div(self.rate).unwrap_or(0);
        now.saturating_sub(self.at) > DOUBLING.max(part.saturating_mul(64))
    }
}

/// Fills in the rails that were not measured: in proportion to the speeds that the ports report,
/// on the scale of the measured ones.
pub(super) fn fill(measured: &mut [u64; MAX_RAILS], reported: &[u16; MAX_RAILS], mask: u8) {
    let known = rails(mask).filter(|r| measured[*r] > 0).fold(0u8, |known, r| known | 1 << r);
    let rates: u128 = rails(known).map(|r| u128::from(measured[r])).sum();
    let speeds: u128 = rails(known).map(|r| u128::from(reported[r])).sum();
    for rail in rails(mask & !known) {
        let speed = u128::from(reported[rail]);
        let rate = (speed * rates).checked_div(speeds).unwrap_or(speed << 16);
        measured[rail] = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::shares::tests::{of, weights};

    const MS: u64 = 1_000_000;
    const GB: u64 = 1_000_000_000;

    #[test]
    fn goodput_is_an_average_over_time() {
        let mut rail = Goodput::default();
        rail.add(1 << 20, 0, 5);
        assert_eq!(rail.rate, 0, "two completions at once show no rate yet");
        rail.add(1_000_000, MS, 10 * MS);
        assert_eq!((rail.rate, rail.at), (GB, 10 * MS));
        // A part of as long as the memory counts as much as all before it.
        rail.add(24_000_000, 8 * MS, 18 * MS);
        assert_eq!(rail.rate, 2 * GB);
        // Two parts that complete at once count like two in a row.
        let (mut apart, mut together) = (rail, rail);
        for _ in 0..640 {
            (0..2).for_each(|_| apart.add(50_000, MS / 10, 20 * MS));
            together.add(50_000, MS / 5, 20 * MS);
            together.add(50_000, 0, 20 * MS);
        }
        assert!(apart.rate.abs_diff(together.rate) < apart.rate / 32, "{apart:?} {together:?}");
        // The thread was stopped meanwhile: one long part, and others that completed with it.
        let mut stopped = apart;
        stopped.add(500_000, 8 * MS, 20 * MS);
        (0..7).for_each(|_| stopped.add(500_000, 0, 20 * MS));
        assert!(stopped.rate.abs_diff(apart.rate) < apart.rate / 2, "{stopped:?}");
        assert!(apart.rate.abs_diff(GB / 2) < GB / 1000, "{apart:?}");
    }

    #[test]
    fn a_rail_is_measured_again_after_10_ms_or_64_parts() {
        for (rate, wait) in [(50 * GB, 10 * MS), (4 * GB, 10 * MS), (GB / 10, 41_943_040), (0, 10 * MS)] {
            let rail = Goodput { rate, at: GB };
            assert!(!rail.is_due(GB + wait - 1000) && rail.is_due(GB + wait + 1000), "{rate}");
        }
    }

    #[test]
    fn what_was_not_measured_is_as_the_ports_report() {
        for (mut measured, reported, filled) in [
            ([8, 0, 0], [4, 2, 1], [8, 4, 2]),
            ([8, 4, 0], [4, 4, 2], [8, 4, 3]),
            ([8, 4, 2], [1, 1, 1], [8, 4, 2]),
            ([0, 0, 0], [4, 2, 1], [4 << 16, 2 << 16, 1 << 16]),
        ]
        .map(|(a, b, c)| (of(a), weights(b), of(c)))
        {
            fill(&mut measured, &reported, 0b111);
            assert_eq!(measured, filled);
        }
    }
}
