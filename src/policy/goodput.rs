//! The arithmetic of the measured split: goodput, shares, and the parts of one message. Integers
//! only, no clock. Times are in nanoseconds, goodput is in bytes per second.

use crate::proto::{MAX_RAILS, rails};

/// Parts from this size on are measured, and messages from this size on are divided by the
/// measurement at the time of the send.
pub const MEASURED: usize = 64 << 10;

/// The sum of all shares.
const ONE: u64 = 1 << 30;
/// The least share of a rail: a rail that becomes faster is seen.
const LEAST: u64 = ONE / 64;
/// The time within which a share at most doubles or halves.
const DOUBLING: u64 = 10_000_000;
/// Shares within this part of what the ports report confirm it.
const CONFIRMS: u64 = 16;
/// A change of each share by less than this part is not followed.
const DEAD_ZONE: u64 = 32;
/// The time constant of the average.
const MEMORY: u64 = 4_000_000;
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

    /// Returns whether the rail is to be measured again. It is due after 10 ms, and after 64 times
    /// the duration of the smallest part that is measured.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let part = MEASURED as u64 * SECOND / self.rate.max(1 << 16);
        now.saturating_sub(self.at) > DOUBLING.max(64 * part)
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

/// The shares of a connection's rails in its large messages. They follow the goodput.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shares {
    /// In parts of [`ONE`]. 0 for a rail that has no share yet.
    now: [u64; MAX_RAILS],
    /// When they were last followed.
    at: u64,
}

impl Shares {
    /// Forgets the share of a rail. The next [`follow`](Self::follow) starts anew with the rail's
    /// part of the goodput.
    pub(super) fn forget(&mut self, rail: usize) {
        self.now[rail] = 0;
    }

    /// Moves the shares of the rails in `mask` towards their goodput `rates`, all above 0.
    /// `reported` are the speeds of the ports. Returns whether any share has changed.
    pub(super) fn follow(
        &mut self,
        rates: &[u64; MAX_RAILS],
        reported: &[u16; MAX_RAILS],
        mask: u8,
        now: u64,
    ) -> bool {
        let before = self.now;
        let seed = proportion(&reported.map(u64::from), mask);
        let mut goal = proportion(rates, mask);
        if is_near(&goal, &seed, CONFIRMS, mask) {
            goal = seed;
        }
        self.seed(&goal, mask);
        let elapsed = now.saturating_sub(self.at);
        self.at = now;
        if !is_near(&goal, &self.now, DEAD_ZONE, mask) || goal == seed {
            self.approach(&goal, elapsed, mask);
        }
        self.now != before
    }

    /// Gives rails without a share their goal, and the others what is left, in their proportion.
    fn seed(&mut self, goal: &[u64; MAX_RAILS], mask: u8) {
        let new = rails(mask).filter(|r| self.now[*r] == 0).fold(0, |new, r| new | 1 << r);
        let taken: u64 = rails(new).map(|r| goal[r]).sum();
        let old: u64 = rails(mask & !new).map(|r| self.now[r]).sum();
        for rail in rails(mask) {
            self.now[rail] = match new >> rail & 1 {
                1 => goal[rail],
                _ => (self.now[rail] * (ONE - taken) / old).max(1),
            };
        }
    }

    /// Moves all shares by the same part of their way. No share more than doubles or halves in
    /// [`DOUBLING`].
    fn approach(&mut self, goal: &[u64; MAX_RAILS], elapsed: u64, mask: u8) {
        // Of a share of ONE: 2^x is at least 1 + x ln 2.
        let grows =
            if elapsed >= DOUBLING { ONE } else { elapsed * 693 / 1000 * (ONE >> 10) / (DOUBLING >> 10) };
        let shrinks = grows * ONE / (ONE + grows);
        let part = |rail: usize| {
            let (from, to) = (self.now[rail], goal[rail]);
            let most = from * if to > from { grows } else { shrinks } / ONE;
            let way = to.abs_diff(from);
            if way <= most { ONE } else { most * ONE / way }
        };
        let part = rails(mask).map(part).min().unwrap_or(0);
        for rail in rails(mask) {
            let (from, to) = (self.now[rail], goal[rail]);
            let way = to.abs_diff(from) * part / ONE;
            self.now[rail] = if to > from { from + way } else { from - way };
        }
    }

    /// Returns the shares as weights, 0 for a rail without a share.
    pub(super) fn weights(&self) -> [u16; MAX_RAILS] {
        scaled(&self.now)
    }

    /// Returns the share of a rail in parts per 1024 of the rails in `mask`.
    pub(super) fn per_1024(&self, rail: usize, mask: u8) -> u16 {
        let sum: u64 = rails(mask).map(|r| self.now[r]).sum();
        (self.now[rail] * 1024).checked_div(sum).unwrap_or(0) as u16
    }

    /// Divides a message of `size` bytes among the rails of `mask`. All rails end together if their
    /// rates are in proportion to their shares. `in_flight` are the bytes that each rail carries
    /// already. A rail has between half of its share and twice its share. If there is room, the rail
    /// `due` has enough to be measured. Returns weights, all above 0.
    pub(super) fn divide(
        &self,
        size: usize,
        in_flight: &[u64; MAX_RAILS],
        mask: u8,
        due: Option<usize>,
    ) -> [u16; MAX_RAILS] {
        let size = size as u64;
        let shares = proportion(&self.now, mask);
        let mut bytes = level(size, &shares, in_flight, mask);
        for rail in rails(mask) {
            let share = part_of(size, shares[rail], ONE);
            bytes[rail] = bytes[rail].clamp(share / 2, share * 2).max(1);
        }
        if let Some(due) = due.filter(|due| bytes[*due] < MEASURED as u64 && size >= 2 * MEASURED as u64) {
            let others: u64 = rails(mask & !(1 << due)).map(|r| bytes[r]).sum();
            for rail in rails(mask & !(1 << due)) {
                bytes[rail] = part_of(size - MEASURED as u64, bytes[rail], others).max(1);
            }
            // Enough, however the parts are rounded: weights have 15 bits or more, and parts are
            // multiples of 128.
            bytes[due] = MEASURED as u64 + size / 8192 + 256;
        }
        scaled(&bytes)
    }
}

/// Returns the shares in proportion to `weights`, none below [`LEAST`]. Their sum is [`ONE`], but
/// for rounding.
fn proportion(weights: &[u64; MAX_RAILS], mask: u8) -> [u64; MAX_RAILS] {
    let (mut shares, mut least) = ([0; MAX_RAILS], 0u8);
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

/// Fills the rails like vessels that are `shares` wide and hold `in_flight`, up to one level.
/// Returns what each takes of `size`.
fn level(size: u64, shares: &[u64; MAX_RAILS], in_flight: &[u64; MAX_RAILS], mask: u8) -> [u64; MAX_RAILS] {
    let mut open = mask;
    loop {
        let width: u64 = rails(open).map(|r| shares[r]).sum();
        let held = rails(open).fold(size, |sum, r| sum.saturating_add(in_flight[r]));
        let top = |rail: usize| part_of(held, shares[rail], width);
        let full = rails(open).filter(|r| top(*r) < in_flight[*r]).fold(0, |full, r| full | 1 << r);
        if full == 0 {
            let mut bytes = [0; MAX_RAILS];
            rails(open).for_each(|rail| bytes[rail] = top(rail) - in_flight[rail]);
            return bytes;
        }
        open &= !full;
    }
}

/// Returns whether each of `a` differs from `b` by at most one part in `parts`.
fn is_near(a: &[u64; MAX_RAILS], b: &[u64; MAX_RAILS], parts: u64, mask: u8) -> bool {
    rails(mask).all(|rail| a[rail].abs_diff(b[rail]) <= b[rail] / parts)
}

fn part_of(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
}

/// Halves all numbers until they fit into 16 bits. None but 0 becomes 0.
fn scaled(numbers: &[u64; MAX_RAILS]) -> [u16; MAX_RAILS] {
    let largest = numbers.iter().copied().max().unwrap_or(0);
    let halvings = (u64::BITS - largest.leading_zeros()).saturating_sub(u16::BITS);
    numbers.map(|n| ((n >> halvings) as u16).max(u16::from(n > 0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::Split;

    const MS: u64 = 1_000_000;
    const GB: u64 = 1_000_000_000;

    fn of<const N: usize>(numbers: [u64; N]) -> [u64; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    fn weights<const N: usize>(numbers: [u16; N]) -> [u16; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    fn mask(n: usize) -> u8 {
        ((1u16 << n) - 1) as u8
    }

    fn per_1024(shares: &Shares, n: usize) -> Vec<u16> {
        (0..n).map(|rail| shares.per_1024(rail, mask(n))).collect()
    }

    #[test]
    fn goodput_is_an_average_over_time() {
        let mut rail = Goodput::default();
        rail.add(1 << 20, 0, 5);
        assert_eq!(rail.rate, 0, "two completions at once show no rate yet");
        rail.add(1_000_000, MS, 10 * MS);
        assert_eq!((rail.rate, rail.at), (GB, 10 * MS));
        // A part of as long as the memory counts as much as all before it.
        rail.add(12_000_000, 4 * MS, 14 * MS);
        assert_eq!(rail.rate, 2 * GB);
        // Two parts that complete at once count like two in a row.
        let (mut apart, mut together) = (rail, rail);
        for _ in 0..640 {
            (0..2).for_each(|_| apart.add(50_000, MS / 10, 20 * MS));
            together.add(50_000, MS / 5, 20 * MS);
            together.add(50_000, 0, 20 * MS);
        }
        assert!(apart.rate.abs_diff(together.rate) < apart.rate / 32, "{apart:?} {together:?}");
        assert!(apart.rate.abs_diff(GB / 2) < GB / 1000, "{apart:?}");
    }

    #[test]
    fn a_rail_is_measured_again_after_10_ms_or_64_parts() {
        for (rate, wait) in [(50 * GB, 10 * MS), (4 * GB, 10 * MS), (GB / 10, 41_943_040), (0, 64 * GB)] {
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

    /// Shares that have had all the time that they need.
    fn settled<const N: usize>(rates: [u64; N], reported: [u16; N]) -> Shares {
        let mut shares = Shares::default();
        for step in 1..1000 {
            shares.follow(&of(rates), &weights(reported), mask(N), step * 10 * MS);
        }
        shares
    }

    #[test]
    fn shares_begin_as_the_ports_report_and_follow_the_goodput() {
        let mut shares = Shares::default();
        let reported = weights([300, 100]);
        shares.follow(&of([300, 100]), &reported, 3, MS);
        assert_eq!(per_1024(&shares, 2), [768, 256]);
        // Nearly what is reported.
        assert!(!shares.follow(&of([292, 103]), &reported, 3, 2 * MS));
        assert_eq!(per_1024(&settled([100, 100], [300, 100]), 2), [512, 512]);
        assert_eq!(per_1024(&settled([400, 100], [1, 1]), 2), [819, 204]);
        assert_eq!(per_1024(&settled([4000, 3000, 2000, 1000], [1; 4]), 4), [409, 307, 204, 102]);
        assert_eq!(per_1024(&settled([100_000, 1], [1, 1]), 2), [1008, 16], "1/64 at least");
    }

    /// Rails that are equal but for noise.
    #[test]
    fn equal_rails_keep_half_each() {
        let mut shares = Shares::default();
        for step in 1..10_000u64 {
            let noise = step * 7919 % 60;
            shares.follow(&of([970 + noise, 1030 - noise]), &weights([5, 5]), 3, step * MS);
            assert_eq!(per_1024(&shares, 2), [512, 512], "step {step}");
        }
    }

    #[test]
    fn a_rail_that_returns_starts_with_its_part() {
        let mut shares = settled([400, 200, 200], [1; 3]);
        shares.follow(&of([400, 0, 200]), &weights([1; 3]), 0b101, 10_001 * MS);
        shares.forget(1);
        shares.follow(&of([400, 200, 200]), &weights([1; 3]), 0b111, 10_002 * MS);
        assert_eq!(shares.per_1024(1, 0b111), 256);
    }

    #[test]
    fn rails_with_less_in_flight_get_more() {
        let shares = settled([400, 100], [1, 1]);
        let parts = |in_flight: [u64; 2], due| {
            let weights = shares.divide(10 << 20, &of(in_flight), 3, due);
            let split = Split::by_weights(10 << 20, &weights, 3).unwrap();
            [0, 1].map(|rail| (split.bytes(rail) + (512 << 10)) >> 20)
        };
        assert_eq!(parts([0, 0], None), [8, 2]);
        assert_eq!(parts([8 << 20, 2 << 20], None), [8, 2]);
        assert_eq!(parts([5 << 20, 0], None), [7, 3]);
        // Half of the share at least, and all of the other rail's.
        assert_eq!(parts([0, 100 << 20], None), [9, 1]);
        assert_eq!(parts([0, 0], Some(1)), [8, 2]);
    }

    proptest! {
        /// Shares have the sum of one, none below a 64th, and none more than doubles in 10 ms.
        #[test]
        fn shares_move_slowly_and_add_up(
            n in 2usize..=8,
            steps in prop::collection::vec((prop::array::uniform8(1u64..1 << 40), 0u64..12 * MS), 1..60),
            reported in prop::array::uniform8(1u16..),
        ) {
            let (mut shares, mut now) = (Shares::default(), MS);
            let all = mask(n);
            shares.follow(&steps[0].0, &reported, all, now);
            let mut past = vec![(now, shares.now)];
            for (rates, pause) in steps {
                now += pause;
                shares.follow(&rates, &reported, all, now);
                let sum: u64 = rails(all).map(|r| shares.now[r]).sum();
                prop_assert!(ONE.abs_diff(sum) < 1 << 12, "{} of {ONE}", sum);
                prop_assert!(rails(all).all(|r| shares.now[r] + (1 << 12) >= LEAST));
                for (_, before) in past.iter().filter(|(at, _)| now - at <= DOUBLING) {
                    for r in rails(all) {
                        let (low, high) = (before[r].min(shares.now[r]), before[r].max(shares.now[r]));
                        prop_assert!(high <= 2 * low + (1 << 12), "{high} and {low}");
                    }
                }
                past.push((now, shares.now));
            }
        }

        /// However the rates, the parts cover the message, and the rail to be measured has enough.
        #[test]
        fn any_division_is_a_split(
            n in 2usize..=8,
            rates in prop::array::uniform8(1u64..1 << 40),
            in_flight in prop::array::uniform8(0u64..1 << 40),
            size in MEASURED..1 << 32,
            due in prop::option::of(0usize..8),
        ) {
            let (mut shares, all) = (Shares::default(), mask(n));
            shares.follow(&rates, &[1; MAX_RAILS], all, MS);
            let due = due.filter(|due| *due < n);
            let weights = shares.divide(size, &in_flight, all, due);
            let split = Split::by_weights(size, &weights, all).unwrap();
            prop_assert_eq!(split.parts().map(|part| part.len).sum::<usize>(), size);
            if let Some(due) = due.filter(|_| size >= 2 * MEASURED) {
                prop_assert!(split.bytes(due) >= MEASURED, "{} of {size}", split.bytes(due));
            }
        }
    }
}
