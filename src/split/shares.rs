//! The goodput of rails, the shares that follow it, and the parts of one message. Integers only, no
//! clock. Times are in nanoseconds, goodput is in bytes per second.

use nccl_net_mpib_agent_iface::shares::{DOUBLING, ONE, approach, is_near, proportion};

use mpib_proto::{MAX_RAILS, RailSet};

/// Parts from this size on are measured, and messages from this size on are divided by the
/// measurement at the time of the send.
pub(super) const MEASURED: usize = 64 << 10;
/// The time constant of the average is this time, or that of so many measurements if they take longer.
const MEMORY: u64 = 8_000_000;
const MEASUREMENTS: u64 = 4;
/// A rail that is not loaded is assumed to have one part in so many more than before.
const RAISE: u64 = 32;
const SECOND: u64 = 1_000_000_000;
/// A rail is measured again after this time at the latest.
const LONGEST_UNMEASURED: u64 = 10 * SECOND;
/// Shares within this part of what the ports report confirm it.
const CONFIRMS: u64 = 16;
/// A change of each share by less than this part is not followed.
const DEAD_ZONE: u64 = 32;

/// The goodput of a rail: a moving average over time. A long part counts for more than a short one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Goodput {
    /// In bytes per second; 0 if nothing was measured.
    pub(super) rate: u64,
    /// When the last part completed, or since when nothing was measured.
    pub(super) at: u64,
}

impl Goodput {
    /// Adds `bytes` bytes that took `time` and have completed `now`.
    pub(super) fn add(&mut self, bytes: u64, time: u64, now: u64) {
        self.at = now;
        let memory = match self.rate {
            // The next measurement has the time since this one.
            0 if time == 0 => return,
            0 => 0,
            rate => MEMORY.max(part_of(MEASUREMENTS * bytes, SECOND, rate)),
        };
        let over = memory.saturating_add(time);
        self.rate = part_of(self.rate, memory, over).saturating_add(part_of(bytes, SECOND, over)).max(1);
    }

    /// Takes in `bytes` bytes that took `time` on a rail that was idle before and after them. The time
    /// has latency in it, so the rail has more than this goodput. How much more is seen when it is
    /// loaded: a little more is assumed each time.
    pub(super) fn raise(&mut self, bytes: u64, time: u64, now: u64) {
        let least = part_of(bytes, SECOND, time);
        let more = self.rate.saturating_add(self.rate / RAISE);
        self.rate = self.rate.max(more.min(least.saturating_mul(2))).max(least);
        self.at = now;
    }

    /// Returns whether the rail is to be measured again: after 10 ms, and if it was measured before,
    /// after 64 times the duration of the smallest part that is measured, or after 10 s: a process that
    /// was stopped meanwhile has measured next to nothing.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let waits = now.saturating_sub(self.at);
        let parts = (64 * MEASURED as u64 * SECOND).checked_div(self.rate).unwrap_or(0);
        waits > DOUBLING && waits > parts.min(LONGEST_UNMEASURED)
    }
}

/// Fills in the rails that were not measured: in proportion to the speeds that the ports report,
/// on the scale of the measured ones.
fn fill(measured: &mut [u64; MAX_RAILS], reported: &[u64; MAX_RAILS], rails: RailSet) {
    let known: RailSet = rails.iter().filter(|r| measured[*r] > 0).collect();
    let rates: u64 = known.iter().map(|r| measured[r]).fold(0, u64::saturating_add);
    let speeds: u64 = known.iter().map(|r| reported[r]).sum();
    for rail in rails.without(known).iter() {
        let rate = if speeds == 0 { reported[rail] << 16 } else { part_of(rates, reported[rail], speeds) };
        measured[rail] = rate.max(1);
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
    /// Forgets the share of a rail. The next [`follow`](Self::follow) begins with the rail's part of
    /// the goodput.
    pub(super) fn forget(&mut self, rail: usize) {
        self.now[rail] = 0;
    }

    /// Moves the shares of `rails` towards their goodput `rates`, 0 where it was not measured.
    /// `reported` are the speeds of the ports. The shares of `rails` then add up to [`ONE`].
    pub(super) fn follow(
        &mut self,
        mut rates: [u64; MAX_RAILS],
        reported: &[u16; MAX_RAILS],
        rails: RailSet,
        now: u64,
    ) {
        let reported = reported.map(u64::from);
        fill(&mut rates, &reported, rails);
        let seed = proportion(&reported, rails.bits());
        let mut goal = proportion(&rates, rails.bits());
        if is_near(&goal, &seed, CONFIRMS, rails.bits()) {
            goal = seed;
        }
        self.seed(&goal, rails);
        let elapsed = now.saturating_sub(self.at);
        self.at = now;
        if !is_near(&goal, &self.now, DEAD_ZONE, rails.bits()) || goal == seed {
            approach(&mut self.now, &goal, elapsed, rails.bits());
        }
    }

    /// Gives rails without a share their goal, and the others what is left, in their proportion.
    fn seed(&mut self, goal: &[u64; MAX_RAILS], rails: RailSet) {
        let new: RailSet = rails.iter().filter(|r| self.now[*r] == 0).collect();
        let taken: u64 = new.iter().map(|r| goal[r]).sum();
        let old: u64 = rails.without(new).iter().map(|r| self.now[r]).sum();
        for rail in rails.iter() {
            self.now[rail] =
                if new.contains(rail) { goal[rail] } else { (self.now[rail] * (ONE - taken) / old).max(1) };
        }
    }

    /// Returns the shares as weights, 0 for a rail without a share.
    pub(super) fn weights(&self) -> [u16; MAX_RAILS] {
        scaled(&self.now)
    }

    /// Returns the share of a rail in parts per 1024 of those of `rails`.
    pub(super) fn per_1024(&self, rail: usize, rails: RailSet) -> u16 {
        let sum: u64 = rails.iter().map(|r| self.now[r]).sum();
        (self.now[rail] * 1024).checked_div(sum).unwrap_or(0) as u16
    }

    /// Divides a message of `size` bytes among the rails that were last followed. All rails end
    /// together if their rates are in proportion to their shares. `in_flight` are the bytes that
    /// each rail carries already. A rail has between half of its share and twice its share. If there
    /// is room, the rail `due` has enough to be measured. Returns weights, all above 0.
    pub(super) fn divide(
        &self,
        size: usize,
        in_flight: impl Fn(usize) -> u64,
        rails: RailSet,
        due: Option<usize>,
    ) -> [u16; MAX_RAILS] {
        let size = size as u64;
        let mut bytes = level(size, &self.now, in_flight, rails);
        for rail in rails.iter() {
            let share = part_of(size, self.now[rail], ONE);
            bytes[rail] = bytes[rail].clamp(share / 2, share * 2).max(1);
        }
        if let Some(due) = due.filter(|due| bytes[*due] < MEASURED as u64 && size >= 2 * MEASURED as u64) {
            let rest = rails.without(RailSet::of(due));
            let others: u64 = rest.iter().map(|r| bytes[r]).sum();
            for rail in rest.iter() {
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
fn level(
    size: u64,
    shares: &[u64; MAX_RAILS],
    in_flight: impl Fn(usize) -> u64,
    mut open: RailSet,
) -> [u64; MAX_RAILS] {
    loop {
        let width: u64 = open.iter().map(|r| shares[r]).sum();
        let held = open.iter().fold(size, |sum, r| sum.saturating_add(in_flight(r)));
        let (mut bytes, mut full) = ([0; MAX_RAILS], RailSet::EMPTY);
        for rail in open.iter() {
            match part_of(held, shares[rail], width).checked_sub(in_flight(rail)) {
                Some(room) => bytes[rail] = room,
                None => full.insert(rail),
            }
        }
        if full.is_empty() {
            return bytes;
        }
        open = open.without(full);
    }
}

/// Returns `whole * part / of`. Most products fit into 64 bits, whose division is far shorter.
fn part_of(whole: u64, part: u64, of: u64) -> u64 {
    let of = of.max(1);
    match whole.checked_mul(part) {
        Some(product) => product / of,
        None => u64::try_from(u128::from(whole) * u128::from(part) / u128::from(of)).unwrap_or(u64::MAX),
    }
}

/// Halves all numbers until they fit into 16 bits. None but 0 becomes 0.
fn scaled(numbers: &[u64; MAX_RAILS]) -> [u16; MAX_RAILS] {
    let largest = numbers.iter().fold(0, |bits, n| bits | n);
    let halvings = (u64::BITS - largest.leading_zeros()).saturating_sub(u16::BITS);
    numbers.map(|n| ((n >> halvings) as u16).max(u16::from(n > 0)))
}

#[cfg(test)]
mod tests {
    use mpib_proto::{Split, Weights};
    use nccl_net_mpib_agent_iface::shares::{DOUBLING, LEAST};
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const GB: u64 = 1_000_000_000;

    /// Divides a message as the splitter does.
    fn cut(size: usize, weights: &[u16], available: RailSet) -> Split {
        let mut split = Split::NONE;
        split.cut(size, &Weights::new(weights, available));
        split
    }

    fn of<const N: usize>(numbers: [u64; N]) -> [u64; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    fn weights<const N: usize>(numbers: [u16; N]) -> [u16; MAX_RAILS] {
        std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0))
    }

    fn per_1024(shares: &Shares, n: usize) -> Vec<u16> {
        (0..n).map(|rail| shares.per_1024(rail, RailSet::first(n))).collect()
    }

    #[test]
    fn goodput_is_an_average_over_time() {
        let mut rail = Goodput::default();
        rail.add(1 << 20, 0, 5);
        assert_eq!(rail.rate, 0, "two completions at once show no rate yet");
        rail.add(1_000_000, MS, 10 * MS);
        assert_eq!((rail.rate, rail.at), (GB, 10 * MS));
        // What takes as long as the memory counts as much as all before it.
        rail.add(1_000_000, 8 * MS, 18 * MS);
        assert_eq!(rail.rate, (GB + GB / 8) / 2);
        // The memory is that of four long measurements, at least.
        let mut long = Goodput { rate: GB, at: 0 };
        long.add(100_000_000, 50 * MS, 50 * MS);
        assert!(long.rate.abs_diff(10 * GB / 9) < 10, "{long:?}");
        // Small parts alone on a rail never show that it has less.
        let mut alone = Goodput::default();
        alone.raise(10_000, 10_000, MS);
        assert_eq!((alone.rate, alone.at), (GB, MS));
        alone.raise(6_000, 10_000, 2 * MS);
        assert_eq!((alone.rate, alone.at), (GB + GB / 32, 2 * MS));
        (0..100).for_each(|_| alone.raise(6_000, 10_000, 3 * MS));
        assert_eq!(alone.rate, GB * 12 / 10, "twice what is seen at most");
        alone.raise(1_000, 10_000, 4 * MS);
        assert_eq!((alone.rate, alone.at), (GB * 12 / 10, 4 * MS));
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
        for (rate, wait) in
            [(50 * GB, 10 * MS), (4 * GB, 10 * MS), (GB / 10, 41_943_040), (1000, 10 * GB), (0, 10 * MS)]
        {
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
        .map(|(a, b, c)| (of(a), of(b), of(c)))
        {
            fill(&mut measured, &reported, RailSet::first(3));
            assert_eq!(measured, filled);
        }
    }

    /// Shares that have had all the time that they need.
    fn settled<const N: usize>(rates: [u64; N], reported: [u16; N]) -> Shares {
        let mut shares = Shares::default();
        for step in 1..1000 {
            shares.follow(of(rates), &weights(reported), RailSet::first(N), step * 10 * MS);
        }
        shares
    }

    #[test]
    fn shares_begin_as_the_ports_report_and_follow_the_goodput() {
        let mut shares = Shares::default();
        let reported = weights([300, 100]);
        shares.follow(of([300, 100]), &reported, RailSet::first(2), MS);
        assert_eq!(per_1024(&shares, 2), [768, 256]);
        // Nearly what is reported.
        shares.follow(of([292, 103]), &reported, RailSet::first(2), 20 * MS);
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
            shares.follow(of([970 + noise, 1030 - noise]), &weights([5, 5]), RailSet::first(2), step * MS);
            assert_eq!(per_1024(&shares, 2), [512, 512], "step {step}");
        }
    }

    #[test]
    fn a_rail_that_returns_starts_with_its_part() {
        let mut shares = settled([400, 200, 200], [1; 3]);
        shares.follow(of([400, 0, 200]), &weights([1; 3]), RailSet::from_bits(0b101), 10_001 * MS);
        shares.forget(1);
        shares.follow(of([400, 200, 200]), &weights([1; 3]), RailSet::first(3), 10_002 * MS);
        assert_eq!(shares.per_1024(1, RailSet::first(3)), 256);
    }

    #[test]
    fn rails_with_less_in_flight_get_more() {
        let shares = settled([400, 100], [1, 1]);
        let parts = |in_flight: [u64; 2], due| {
            let weights = shares.divide(10 << 20, |rail| of(in_flight)[rail], RailSet::first(2), due);
            let split = cut(10 << 20, &weights, RailSet::first(2));
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
            let all = RailSet::first(n);
            shares.follow(steps[0].0, &reported, all, now);
            let mut past = vec![(now, shares.now)];
            for (rates, pause) in steps {
                now += pause;
                shares.follow(rates, &reported, all, now);
                let sum: u64 = all.iter().map(|r| shares.now[r]).sum();
                prop_assert!(ONE.abs_diff(sum) < 1 << 12, "{} of {ONE}", sum);
                prop_assert!(all.iter().all(|r| shares.now[r] + (1 << 12) >= LEAST));
                for (_, before) in past.iter().filter(|(at, _)| now - at <= DOUBLING) {
                    for r in all.iter() {
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
            let (mut shares, all) = (Shares::default(), RailSet::first(n));
            shares.follow(rates, &[1; MAX_RAILS], all, MS);
            let due = due.filter(|due| *due < n);
            let weights = shares.divide(size, |rail| in_flight[rail], all, due);
            let split = cut(size, &weights, all);
            prop_assert_eq!(split.parts().map(|part| part.len).sum::<usize>(), size);
            if let Some(due) = due.filter(|_| size >= 2 * MEASURED) {
                prop_assert!(split.bytes(due) >= MEASURED, "{} of {size}", split.bytes(due));
            }
        }
    }
}
