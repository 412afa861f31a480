//! How a measured share moves.

use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::SHARE_ONE;

/// Each rail keeps at least this part, in parts per 1024: a rail without data cannot be measured.
pub const LEAST: u16 = SHARE_ONE / 64;
/// A share moves at most by a factor of 2 in this time.
const DOUBLING: Duration = Duration::from_millis(10);
/// Smaller changes, in parts per 1024, are noise.
const NOISE: u16 = 10;

/// The goodput of a flow's two rails, smoothed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Goodput {
    /// Bytes per second of SOUT; 0: not known.
    pub sout: u64,
    /// Bytes per second of SUP; 0: not known.
    pub sup: u64,
}

impl Goodput {
    /// Adds a measurement. What is `None` was not measured this time.
    pub fn update(&mut self, sout: Option<u64>, sup: Option<u64>) {
        for (old, new) in [(&mut self.sout, sout), (&mut self.sup, sup)] {
            *old = match (*old, new) {
                (_, None) => *old,
                (0, Some(new)) => new,
                // A quarter of the old value steadies the share without hiding a change for long.
                (old, Some(new)) => (old + 3 * new) / 4,
            };
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
    let one = u128::from(SHARE_ONE);
    let target = u128::from(sup) * one / (u128::from(sup) + u128::from(sout));
    let target = u16::try_from(target).unwrap_or(SHARE_ONE).clamp(LEAST, SHARE_ONE - LEAST);
    let now = now.clamp(LEAST, SHARE_ONE - LEAST);
    let doublings = (elapsed.as_micros() / DOUBLING.as_micros()).min(10) as u32;
    // Either rail's part grows at most by this factor.
    let most = |part: u16| u16::try_from(u32::from(part) << doublings).unwrap_or(u16::MAX).min(SHARE_ONE);
    let next = target.clamp(SHARE_ONE - most(SHARE_ONE - now), most(now));
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
            goodput.update(Some(rates.0), (*share > 0).then_some(rates.1));
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

    //= agent.md: two equal rails keep half each
    #[test]
    fn noise_does_not_move_two_equal_rails() {
        let (mut share, mut goodput) = (512, Goodput::default());
        for step in 0..1200_u64 {
            // 3 % up and down, against each other.
            let noise = (step * 7919 % 61) << 20;
            goodput.update(Some((1 << 31) + noise), Some((1 << 31) + (60 << 20) - noise));
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
        assert_eq!(next_share(512, Goodput { sout: 1, sup: 0 }, STEP), None);
        assert_eq!(next_share(0, much, Duration::ZERO), None, "no time, no move");
    }
}
