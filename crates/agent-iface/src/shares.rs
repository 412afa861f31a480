//! How shares follow the goodput of rails: the law of the plugin's measured split and of the
//! agent's policy `measured`. Integers only, no clock. Times are in nanoseconds.
//!
//! Rails are the places of an array. `mask` has the bit of each rail in use.

/// The sum of all shares.
pub const ONE: u64 = 1 << 30;
/// The least share of a rail: a rail that becomes faster is seen.
pub const LEAST: u64 = ONE / 64;
/// The time within which a share at most doubles or halves.
pub const DOUBLING: u64 = 10_000_000;

/// Returns the rails of a mask in ascending order.
fn rails(mut mask: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let rail = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (rail < u8::BITS).then_some(rail as usize)
    })
}

/// Returns the shares in proportion to `weights`, none below [`LEAST`]. Their sum is [`ONE`], but
/// for rounding.
pub fn proportion<const N: usize>(weights: &[u64; N], mask: u8) -> [u64; N] {
    let (mut shares, mut least) = ([0; N], 0u8);
    loop {
        let rest = ONE - LEAST * u64::from(least.count_ones());
        let sum: u128 = rails(mask & !least).map(|r| u128::from(weights[r])).sum();
        let share = |rail: usize| (u128::from(rest) * u128::from(weights[rail]) / sum.max(1)) as u64;
        let low = rails(mask & !least).filter(|r| share(*r) < LEAST).fold(0, |low, r| low | 1 << r);
        if low == 0 {
            rails(mask & !least).for_each(|rail| shares[rail] = share(rail));
            rails(least).for_each(|rail| shares[rail] = LEAST);
            return shares;
        }
        least |= low;
    }
}

/// Moves all shares by the same part of their way to the goal. No share more than doubles or halves
/// in [`DOUBLING`], and one call moves no further than that.
pub fn approach<const N: usize>(now: &mut [u64; N], goal: &[u64; N], elapsed: u64, mask: u8) {
    // Of a share of ONE: 2^x is at least 1 + x ln 2.
    let grows = if elapsed >= DOUBLING { ONE } else { elapsed * 693 / 1000 * (ONE >> 10) / (DOUBLING >> 10) };
    let shrinks = grows * ONE / (ONE + grows);
    let part = |rail: usize| {
        let (from, to) = (now[rail], goal[rail]);
        let most = from * if to > from { grows } else { shrinks } / ONE;
        let way = to.abs_diff(from);
        if way <= most { ONE } else { most * ONE / way }
    };
    let part = rails(mask).map(part).min().unwrap_or(0);
    for rail in rails(mask) {
        let (from, to) = (now[rail], goal[rail]);
        let way = to.abs_diff(from) * part / ONE;
        now[rail] = if to > from { from + way } else { from - way };
    }
}

/// Returns whether each of `a` differs from `b` by at most one part in `parts`.
pub fn is_near<const N: usize>(a: &[u64; N], b: &[u64; N], parts: u64, mask: u8) -> bool {
    rails(mask).all(|rail| a[rail].abs_diff(b[rail]) <= b[rail] / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_1024<const N: usize>(shares: [u64; N]) -> [u64; N] {
        shares.map(|share| (share * 1024 + ONE / 2) / ONE)
    }

    #[test]
    fn shares_are_in_proportion_and_none_is_below_the_least() {
        assert_eq!(per_1024(proportion(&[4, 2], 0b11)), [683, 341]);
        assert_eq!(per_1024(proportion(&[1, 1, 2], 0b101)), [341, 0, 683]);
        assert_eq!(per_1024(proportion(&[1 << 40, 1], 0b11)), [1008, 16]);
        assert_eq!(per_1024(proportion(&[0, 0, 5], 0b111)), [16, 16, 992]);
    }

    #[test]
    fn a_share_at_most_doubles_or_halves_in_the_time_of_doubling() {
        let goal = proportion(&[1, 1000], 0b11);
        let moved = |from: [u64; 2], elapsed| {
            let mut now = from.map(|share: u64| share * ONE / 1024);
            approach(&mut now, &goal, elapsed, 0b11);
            per_1024(now)
        };
        assert_eq!(moved([924, 100], DOUBLING), [824, 200], "the second doubles");
        assert_eq!(moved([512, 512], DOUBLING), [256, 768], "the first halves");
        assert_eq!(moved([17, 1007], DOUBLING), [16, 1008], "the goal");
        assert_eq!(moved([512, 512], 0), [512, 512]);
        assert_eq!(moved([512, 512], 5 * DOUBLING), [256, 768], "no further in one call");
    }
}
