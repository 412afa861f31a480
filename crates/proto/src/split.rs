//! The division of a message among the rails.

use super::{MAX_RAILS, RailSet};

/// The denominator of a share.
pub const SHARE_ONE: u16 = 1024;
/// Each part begins at a multiple of this number of bytes from the start of the buffer.
pub const SPLIT_ALIGN: usize = 128;

/// What each rail carries of the messages, in proportion to the others.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    of: [u16; MAX_RAILS],
    /// The rails with a weight above 0.
    rails: RailSet,
    sum: usize,
}

impl Weights {
    /// Returns the weights of the `available` rails. If none of them has a weight, the lowest one
    /// carries all. There are no rails only if none is available.
    #[inline]
    pub fn new(of: &[u16], available: RailSet) -> Self {
        let (mut weights, mut lowest) = (Self { of: [0; MAX_RAILS], rails: RailSet::EMPTY, sum: 0 }, None);
        for rail in available.iter().take_while(|rail| *rail < of.len()) {
            lowest = lowest.or(Some(rail));
            weights.add(rail, of[rail]);
        }
        if let (true, Some(rail)) = (weights.sum == 0, lowest) {
            weights.add(rail, 1);
        }
        weights
    }

    fn add(&mut self, rail: usize, weight: u16) {
        if weight > 0 {
            self.of[rail] = weight;
            self.sum += usize::from(weight);
            self.rails.insert(rail);
        }
    }

    /// Returns the rails with a weight.
    #[inline]
    pub fn rails(&self) -> RailSet {
        self.rails
    }

    /// Returns the rail whose `load`, with `more` added, is the least in proportion to its weight. Of
    /// equal ones it is the lowest.
    pub fn least(&self, more: u64, load: impl Fn(usize) -> u64) -> Option<usize> {
        let loads = self.rails.iter().map(|rail| (rail, load(rail) + more));
        // a / weight of a <= b / weight of b
        let lighter = |a: (usize, u64), b: (usize, u64)| {
            if a.1 * u64::from(self.of[b.0]) <= b.1 * u64::from(self.of[a.0]) { a } else { b }
        };
        loads.reduce(lighter).map(|(rail, _)| rail)
    }
}

/// The bytes of each rail. The parts lie in the buffer from the highest rail to the lowest: the
/// lowest rail has the remainder, and every other part is a multiple of [`SPLIT_ALIGN`]. An adapter
/// writes a part that begins inside a cache line with one more packet and two partial writes.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    /// Undefined for other rails.
    bytes: [usize; MAX_RAILS],
    /// The bytes of all rails.
    size: usize,
    rails: RailSet,
}

/// The part of one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the rail.
    pub rail: usize,
    /// Offset in the buffer.
    pub offset: usize,
    /// Bytes; zero only if the message is empty.
    pub len: usize,
}

impl Split {
    /// A placeholder without rails.
    pub const NONE: Self = Self { bytes: [0; MAX_RAILS], size: 0, rails: RailSet::EMPTY };

    /// Divides a message between two rails: `share`/1024 of it goes to SUP (rail 1), 1024 or more
    /// is all. Rails missing from `available` carry nothing. `None` if neither is available.
    #[cfg(test)]
    pub(crate) fn by_share(size: usize, share: u16, available: RailSet) -> Option<Self> {
        let sup = share.min(SHARE_ONE);
        Self::by_weights(size, &[SHARE_ONE - sup, sup], available)
    }

    /// Divides a message as [`cut`](Self::cut) does, by the weights of the `available` rails. `None`
    /// if no rail is available.
    #[cfg(test)]
    pub(crate) fn by_weights(size: usize, weights: &[u16], available: RailSet) -> Option<Self> {
        let (mut split, weights) = (Self::NONE, Weights::new(weights, available));
        split.cut(size, &weights);
        (!weights.rails.is_empty()).then_some(split)
    }

    /// Divides a message in place in proportion to the weights, rounded down to [`SPLIT_ALIGN`]. The
    /// first rail with a weight has the remainder, which is the end of the buffer.
    #[inline(always)]
    pub fn cut(&mut self, size: usize, weights: &Weights) {
        let Some(first) = weights.rails.lowest() else { return };
        self.whole(size, first);
        let mut rest = size;
        // Each other part would be rounded down to 0.
        let others =
            if size < SPLIT_ALIGN { RailSet::EMPTY } else { weights.rails.without(RailSet::of(first)) };
        for rail in others.iter() {
            let (weight, sum) = (usize::from(weights.of[rail]), weights.sum);
            // size * weight / sum without overflow.
            let exact = match size.checked_mul(weight) {
                Some(product) => product / sum,
                None => size / sum * weight + size % sum * weight / sum,
            };
            let part = exact - exact % SPLIT_ALIGN;
            self.bytes[rail] = part;
            // It stays above 0: the other parts are rounded down, and its own weight is not 0.
            rest -= part;
            if part > 0 {
                self.rails.insert(rail);
            }
        }
        self.bytes[first] = rest;
    }

    /// Puts a whole message on one rail, below [`MAX_RAILS`].
    #[inline(always)]
    pub const fn whole(&mut self, size: usize, rail: usize) {
        self.rails = RailSet::of(rail);
        self.size = size;
        self.bytes[rail] = size;
    }

    /// Returns the bytes of the message.
    #[inline]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the rails that carry a part; none only in [`NONE`](Self::NONE). An empty message has
    /// one rail with no bytes.
    #[inline]
    pub const fn rails(&self) -> RailSet {
        self.rails
    }

    /// Returns the bytes on `rail`; 0 on a rail that carries no part.
    #[inline]
    pub fn bytes(&self, rail: usize) -> usize {
        if rail < MAX_RAILS && self.rails.contains(rail) { self.bytes[rail] } else { 0 }
    }

    /// Returns the parts in the order of the rails. Each part ends where the previous one begins,
    /// and the first one ends with the buffer.
    #[inline]
    pub fn parts(&self) -> impl Iterator<Item = Part> + Clone {
        let mut begin = self.size;
        self.rails.iter().map(move |rail| {
            let len = self.bytes[rail];
            begin -= len;
            Part { rail, offset: begin, len }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;
    const BOTH: RailSet = RailSet::first(2);

    #[test]
    fn one_mebibyte_at_each_quarter() {
        for (share, sup, mask) in
            [(0, 0, 1), (256, 262_144, 3), (512, 524_288, 3), (768, 786_432, 3), (1024, MIB, 2)]
        {
            let split = Split::by_share(MIB, share, BOTH).unwrap();
            assert_eq!(
                (split.bytes(0), split.bytes(1), split.rails().bits()),
                (MIB - sup, sup, mask),
                "share {share}"
            );
        }
    }

    //= protocol.md: zero bytes: rail 0, or the only rail
    #[test]
    fn empty_transfers_take_rail_0_or_the_one_that_exists() {
        for (share, available, mask) in [(512, 3, 1), (0, 3, 1), (1024, 2, 2), (0, 2, 2), (1024, 1, 1)] {
            let split = Split::by_share(0, share, RailSet::from_bits(available)).unwrap();
            assert_eq!(split.rails().bits(), mask, "share {share}, available {available:#b}");
            assert_eq!(split.parts().map(|p| p.len).collect::<Vec<_>>(), [0]);
        }
    }

    #[test]
    fn small_transfers_stay_on_the_first_rail() {
        assert_eq!(Split::by_share(255, 512, BOTH).unwrap().rails().bits(), 1);
        assert_eq!(Split::by_share(256, 512, BOTH).unwrap().bytes(1), 128);
        assert_eq!(Split::by_share(1, 1024, BOTH).unwrap().rails().bits(), 2);
    }

    #[test]
    fn no_rail_is_no_split() {
        assert!(Split::by_share(1, 512, RailSet::EMPTY).is_none());
        assert!(Split::by_share(1, 512, RailSet::of(2)).is_none());
        assert!(Split::by_weights(1, &[], RailSet::first(8)).is_none());
    }

    #[test]
    fn three_rails_share_by_weight() {
        let split = Split::by_weights(1 << 20, &[2, 1, 1], RailSet::first(3)).unwrap();
        assert_eq!([split.bytes(0), split.bytes(1), split.bytes(2)], [1 << 19, 1 << 18, 1 << 18]);
        // Without the middle rail the others have its part, in their proportion.
        let split = Split::by_weights(3 << 20, &[2, 1, 1], RailSet::from_bits(0b101)).unwrap();
        assert_eq!([split.bytes(0), split.bytes(1), split.bytes(2)], [2 << 20, 0, 1 << 20]);
    }

    proptest! {
        /// The previous content does not matter.
        #[test]
        fn a_cut_is_the_same_in_any_place(
            size in prop_oneof![0usize..1000, 0usize..1 << 32], weights: [u16; 3], available in 0u8..8,
            before: usize, rails: u8,
        ) {
            let available = RailSet::from_bits(available);
            let mut used = Split::by_weights(before, &[1; MAX_RAILS], RailSet::from_bits(rails | 1)).unwrap();
            if let Some(fresh) = Split::by_weights(size, &weights, available) {
                used.cut(size, &Weights::new(&weights, available));
                prop_assert_eq!(used.rails(), fresh.rails());
                prop_assert!((0..9).all(|rail| used.bytes(rail) == fresh.bytes(rail)));
                prop_assert!(used.parts().eq(fresh.parts()));
            }
        }

        //= protocol.md: split: parts cover the transfer once, in multiples of 128 bytes
        //= protocol.md: split: every part begins at a multiple of 128 bytes
        //= adapters.md: A8: every part begins on 128 bytes
        #[test]
        fn parts_cover_the_transfer_once(
            size in prop_oneof![0usize..1000, 0usize..1 << 32, any::<usize>()],
            weights in prop::collection::vec(prop_oneof![Just(0u16), 0u16..=1024, any::<u16>()], 0..=10),
            available: u8,
        ) {
            let usable = weights.len().min(MAX_RAILS);
            let present: Vec<usize> = (0..usable).filter(|r| available >> r & 1 == 1).collect();
            let Some(split) = Split::by_weights(size, &weights, RailSet::from_bits(available)) else {
                prop_assert!(present.is_empty());
                return Ok(());
            };
            let weighted: Vec<usize> = present.iter().copied().filter(|&r| weights[r] > 0).collect();
            let carriers = if weighted.is_empty() { &present[..1] } else { &weighted[..] };
            let total: u128 = weighted.iter().map(|&r| u128::from(weights[r])).sum();
            let mut end = size;
            let mut mask = 0;
            for part in split.parts() {
                prop_assert!(carriers.contains(&part.rail));
                prop_assert_eq!(part.offset + part.len, end);
                prop_assert_eq!(part.offset % 128, 0);
                prop_assert_eq!(part.len, split.bytes(part.rail));
                prop_assert!(part.len > 0 || size == 0 && part.rail == carriers[0]);
                end = part.offset;
                mask |= 1 << part.rail;
            }
            prop_assert_eq!(end, 0);
            prop_assert_eq!(mask, split.rails().bits());
            for &rail in &carriers[1..] {
                let exact = size as u128 * u128::from(weights[rail]) / total;
                prop_assert_eq!(split.bytes(rail) as u128, exact - exact % 128);
            }
        }

        /// The agent's rule: `size * share >> 10`, rounded down to 128.
        //= protocol.md: split: parts cover the transfer once, in multiples of 128 bytes
        #[test]
        fn the_share_is_parts_per_1024(size in prop_oneof![0usize..5000, 0usize..1 << 40], share in 0u16..=1100) {
            let split = Split::by_share(size, share, BOTH).unwrap();
            let sup = if share >= 1024 { size } else { ((size as u64 * u64::from(share)) >> 10) as usize & !127 };
            prop_assert_eq!((split.bytes(0), split.bytes(1)), (size - sup, sup));
        }

        #[test]
        fn a_lone_rail_carries_all(size: usize, share in 0u16..=1024, rail in 0usize..2) {
            let split = Split::by_share(size, share, RailSet::of(rail)).unwrap();
            prop_assert_eq!((split.bytes(rail), split.rails().bits()), (size, 1 << rail));
        }
    }
}
