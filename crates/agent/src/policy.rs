//! How a measured share moves.

use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::SHARE_ONE;
use nccl_net_mpib_agent_iface::shares::{self, DOUBLING, ONE, approach, proportion};

/// The least share of a rail, in parts per 1024.
const LEAST: u16 = (shares::LEAST * SHARE_ONE as u64 / ONE) as u16;
/// Smaller changes, in parts per 1024, are noise.
const NOISE: u16 = 6;
/// The mask of SOUT and SUP.
const BOTH: u8 = 0b11;

/// While one rail is full and the other one is not, the latter is taken to carry more by this part of
/// its goodput at each step. It may, and a rail that is not full cannot be measured exactly.
const PROBE: u64 = 16;

/// The goodput of a flow's two rails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Goodput {
    /// Bytes per second of SOUT; 0: not known.
    pub sout: u64,
    /// Bytes per second of SUP; 0: not known.
    pub sup: u64,
}

impl Goodput {
    /// Takes a measurement. What is `None` was not measured this time. `is_full`: whether a rail had
    /// more to carry than it could. A rail that was not, while the other one was, shows its latency
    /// beside its rate: its measurement is less than what it can carry.
    pub fn update(&mut self, measured: [Option<u64>; 2], is_full: [bool; 2]) {
        for (rail, old) in [&mut self.sout, &mut self.sup].into_iter().enumerate() {
            let Some(new) = measured[rail] else { continue };
            let is_less = is_full[1 - rail] && !is_full[rail];
            *old = if is_less { new.max(old.saturating_add(*old / PROBE)) } else { new };
        }
    }
}

/// Returns the share of SUP after `elapsed`, from `now` towards the one with which both parts of a
/// transfer end together. `None` if that is not known, or not far from `now`.
pub fn next_share(now: u16, goodput: Goodput, elapsed: Duration) -> Option<u16> {
    let Goodput { sout, sup } = goodput;
    if sout == 0 || sup == 0 {
        return None;
    }
    let goal = proportion(&[sout, sup], BOTH);
    let unit = ONE / u64::from(SHARE_ONE);
    let now = now.clamp(LEAST, SHARE_ONE - LEAST);
    let mut shares = [SHARE_ONE - now, now].map(|share| u64::from(share) * unit);
    // From the least share to the greatest one takes six doublings.
    let mut left = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).min(10 * DOUBLING);
    while left > 0 {
        approach(&mut shares, &goal, left, BOTH);
        left = left.saturating_sub(DOUBLING);
    }
    let next = u16::try_from((shares[1] + unit / 2) / unit).unwrap_or(SHARE_ONE);
    (next.abs_diff(now) >= NOISE).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    /// What rails of these rates carry of messages that are cut with `share`: each in bytes per
    /// second of the time in which it is busy.
    fn run(share: &mut u16, goodput: &mut Goodput, rates: (u64, u64), steps: usize) {
        for _ in 0..steps {
            goodput.update([Some(rates.0), (*share > 0).then_some(rates.1)], [true; 2]);
            *share = next_share(*share, *goodput, STEP).unwrap_or(*share);
        }
    }

    //= agent.md: the policy measured follows the goodput of both rails
    #[test]
    fn a_share_settles_where_both_parts_end_together() {
        for (rates, best) in [((4, 2), 341), ((4, 1), 204), ((1, 4), 819), ((1, 1000), 1008), ((1000, 1), 16)]
        {
            let (mut share, mut goodput) = (512, Goodput::default());
            run(&mut share, &mut goodput, (rates.0 << 30, rates.1 << 30), 4);
            assert!(share.abs_diff(best) <= NOISE, "{rates:?}: {share}, expected {best}");
        }
    }

    //= agent.md: a rail whose rate changes has its new share within 200 ms
    #[test]
    fn a_rail_that_becomes_slower_or_faster_is_followed_within_four_steps() {
        let (mut share, mut goodput) = (512, Goodput::default());
        for (rates, best) in [((4, 4), 512), ((4, 2), 341), ((4, 4), 512), ((4, 8), 682)] {
            run(&mut share, &mut goodput, (rates.0 << 30, rates.1 << 30), 4);
            assert!(share.abs_diff(best) <= 20, "{rates:?}: {share}, expected {best}");
        }
    }

    /// A rail that always waits for the other one shows its latency: here it needs as long again.
    //= agent.md: a rail that is never full gets more until it is
    #[test]
    fn latency_does_not_keep_a_rail_from_its_share() {
        let (mut share, mut goodput) = (341_u16, Goodput::default());
        for _ in 0..25 {
            let parts = [SHARE_ONE - share, share].map(u64::from);
            // Both rails have one rate. The one with less to do is not full, unless it is nearly so.
            let is_full = parts.map(|part| part + 8 > u64::from(SHARE_ONE) - part);
            let rate = |i: usize| (parts[i] << 20) / (parts[i] + if is_full[i] { 0 } else { 500 });
            goodput.update([Some(rate(0)), Some(rate(1))], is_full);
            share = next_share(share, goodput, STEP).unwrap_or(share);
        }
        assert!(share.abs_diff(512) <= 16, "{share}");
    }

    //= agent.md: two equal rails keep half each
    #[test]
    fn noise_does_not_move_two_equal_rails() {
        let (mut share, mut goodput) = (512, Goodput::default());
        for step in 0..1200_u64 {
            // 3 % up and down, against each other.
            let noise = (step * 7919 % 61) << 20;
            goodput.update([Some((1 << 31) + noise), Some((1 << 31) + (60 << 20) - noise)], [true; 2]);
            share = next_share(share, goodput, STEP).unwrap_or(share);
            assert!(share.abs_diff(512) <= 20, "step {step}: {share}");
        }
    }

    #[test]
    fn a_share_at_most_doubles_in_ten_milliseconds() {
        let much = Goodput { sout: 1, sup: 1 << 40 };
        assert_eq!(next_share(100, much, Duration::from_millis(10)), Some(200));
        assert_eq!(next_share(100, much, Duration::from_millis(20)), Some(400));
        let little = Goodput { sout: 1 << 40, sup: 1 };
        assert_eq!(
            next_share(924, little, Duration::from_millis(10)),
            Some(824),
            "the other rail's part doubles"
        );
        assert_eq!(next_share(512, little, Duration::from_millis(10)), Some(256), "or halves");
        assert_eq!(next_share(512, Goodput { sout: 1, sup: 0 }, STEP), None);
        assert_eq!(next_share(0, much, Duration::ZERO), None, "no time, no move");
    }
}
