//! The shares of a connection's rails, and the parts of one message. Integers only, no clock. Times
//! are in nanoseconds, goodput is in bytes per second.

use nccl_net_mpib_agent_iface::shares::{ONE, approach, is_near, proportion};

use super::goodput::MEASURED;
use crate::proto::{MAX_RAILS, rails};

/// Shares within this part of what the ports report confirm it.
const CONFIRMS: u64 = 16;
/// A change of each share by less than this part is not followed.
const DEAD_ZONE: u64 = 32;

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
    /// `reported` are the speeds of the ports.
    pub(super) fn follow(
        &mut self,
        rates: &[u64; MAX_RAILS],
        reported: &[u16; MAX_RAILS],
        mask: u8,
        now: u64,
    ) {
        let seed = proportion(&reported.map(u64::from), mask);
        let mut goal = proportion(rates, mask);
        if is_near(&goal, &seed, CONFIRMS, mask) {
            goal = seed;
        }
        self.seed(&goal, mask);
        let elapsed = now.saturating_sub(self.at);
        self.at = now;
        if !is_near(&goal, &self.now, DEAD_ZONE, mask) || goal == seed {
            approach(&mut self.now, &goal, elapsed, mask);
        }
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
pub(super) mod tests {
    use nccl_net_mpib_agent_iface::shares::{DOUBLING, LEAST};
    use proptest::prelude::*;

    use super::*;
    use crate::proto::Split;

    const MS: u64 = 1_000_000;

    pub(in crate::policy) fn of<const N: usize>(numbers: [u64; N]) -> [u64; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    pub(in crate::policy) fn weights<const N: usize>(numbers: [u16; N]) -> [u16; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    fn mask(n: usize) -> u8 {
        ((1u16 << n) - 1) as u8
    }

    fn per_1024(shares: &Shares, n: usize) -> Vec<u16> {
        (0..n).map(|rail| shares.per_1024(rail, mask(n))).collect()
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
        shares.follow(&of([292, 103]), &reported, 3, 20 * MS);
        assert_eq!(per_1024(&shares, 2), [768, 256]);
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
