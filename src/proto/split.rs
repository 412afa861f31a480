//! The division of a transfer among the rails.

use super::{MAX_RAILS, rails};

/// The denominator of a share.
pub const SHARE_ONE: u16 = 1024;
/// Each part begins at a multiple of this number of bytes from the start of the buffer.
pub const SPLIT_ALIGN: usize = 128;

/// The bytes of each rail. The parts lie in the buffer from the highest rail to the lowest: the
/// lowest rail has the remainder, and every other part is a multiple of [`SPLIT_ALIGN`]. An adapter
/// writes a part that begins inside a cache line with one more packet and two partial writes.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    /// Undefined for rails that are not in the mask.
    bytes: [usize; MAX_RAILS],
    /// The bytes of all rails.
    size: usize,
    mask: u8,
}

/// The part of one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the rail.
    pub rail: usize,
    /// Offset in the buffer.
    pub offset: usize,
    /// Bytes; zero only if the transfer is empty.
    pub len: usize,
}

impl Split {
    /// A placeholder without rails.
    pub const NONE: Self = Self { bytes: [0; MAX_RAILS], size: 0, mask: 0 };

    /// Divides a transfer between two rails: `share`/1024 of it goes to SUP (rail 1), 1024 or more
    /// is all. Rails missing from `available` carry nothing. `None` if neither is available.
    #[inline]
    pub const fn by_share(size: usize, share: u16, available: u8) -> Option<Self> {
        let sup = if share > SHARE_ONE { SHARE_ONE } else { share };
        Self::by_weights(size, &[SHARE_ONE - sup, sup], available)
    }

    /// Divides a transfer among up to [`MAX_RAILS`] rails in proportion to `weights`, rounded down
    /// to [`SPLIT_ALIGN`]. The first rail with a weight has the remainder, which is the end of the
    /// buffer. If no available rail has a weight, the lowest available one carries all. `None` if
    /// no rail is available.
    #[inline]
    pub const fn by_weights(size: usize, weights: &[u16], available: u8) -> Option<Self> {
        let mut split = Self::NONE;
        if split.cut(size, weights, available) { Some(split) } else { None }
    }

    /// Divides a transfer as [`by_weights`](Self::by_weights) does, in place; `false` if no rail is
    /// available.
    #[inline]
    pub const fn cut(&mut self, size: usize, weights: &[u16], available: u8) -> bool {
        let n = if weights.len() < MAX_RAILS { weights.len() } else { MAX_RAILS };
        let (mut sum, mut first, mut lowest) = (0usize, MAX_RAILS, MAX_RAILS);
        let mut rail = n;
        while rail > 0 {
            rail -= 1;
            if available >> rail & 1 == 1 {
                lowest = rail;
                if weights[rail] > 0 {
                    first = rail;
                    sum += weights[rail] as usize;
                }
            }
        }
        if lowest == MAX_RAILS {
            return false;
        }
        if first == MAX_RAILS {
            first = lowest;
        }
        self.whole(size, first);
        if size < SPLIT_ALIGN {
            // Each other part would be rounded down to 0.
            return true;
        }
        rail = first + 1;
        while rail < n {
            if available >> rail & 1 == 1 && weights[rail] > 0 {
                let weight = weights[rail] as usize;
                // size * weight / sum without overflow: size = q * sum + r.
                let exact = size / sum * weight + size % sum * weight / sum;
                let part = exact - exact % SPLIT_ALIGN;
                self.bytes[rail] = part;
                // It stays above 0: the other parts are rounded down, and its own weight is not 0.
                self.bytes[first] -= part;
                self.mask |= ((part > 0) as u8) << rail;
            }
            rail += 1;
        }
        true
    }

    /// Divides a transfer between two rails that are both available, as
    /// [`by_share`](Self::by_share) does, in place.
    #[inline]
    pub const fn cut_by_share(&mut self, size: usize, share: u16) {
        let exact = (size as u128 * share as u128 / SHARE_ONE as u128) as usize;
        let sup = if share >= SHARE_ONE { size } else { exact - exact % SPLIT_ALIGN };
        self.mask = (sup < size || size == 0) as u8 | ((sup > 0) as u8) << 1;
        self.size = size;
        self.bytes[0] = size - sup;
        self.bytes[1] = sup;
    }

    /// Puts a whole transfer on one rail, below [`MAX_RAILS`].
    #[inline]
    pub const fn whole(&mut self, size: usize, rail: usize) {
        self.mask = 1 << rail;
        self.size = size;
        self.bytes[rail] = size;
    }

    /// Returns the rails that carry a part; never empty. An empty transfer has one rail with no
    /// bytes.
    #[inline]
    pub const fn mask(&self) -> u8 {
        self.mask
    }

    /// Returns the bytes on `rail`; 0 on a rail that is not in the mask.
    #[inline]
    pub fn bytes(&self, rail: usize) -> usize {
        let carries = rail < MAX_RAILS && self.mask >> rail & 1 == 1;
        if carries { self.bytes[rail] } else { 0 }
    }

    /// Returns the parts in the order of the rails. Each part ends where the previous one begins,
    /// and the first one ends with the buffer.
    #[inline]
    pub fn parts(&self) -> impl Iterator<Item = Part> + Clone {
        let mut begin = self.size;
        rails(self.mask).map(move |rail| {
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

    #[test]
    fn one_mebibyte_at_each_quarter() {
        for (share, sup, mask) in
            [(0, 0, 1), (256, 262_144, 3), (512, 524_288, 3), (768, 786_432, 3), (1024, MIB, 2)]
        {
            let split = Split::by_share(MIB, share, 3).unwrap();
            assert_eq!(
                (split.bytes(0), split.bytes(1), split.mask()),
                (MIB - sup, sup, mask),
                "share {share}"
            );
        }
    }

    //= protocol.md: zero bytes: rail 0, or the only rail
    #[test]
    fn empty_transfers_take_rail_0_or_the_one_that_exists() {
        for (share, available, mask) in [(512, 3, 1), (0, 3, 1), (1024, 2, 2), (0, 2, 2), (1024, 1, 1)] {
            let split = Split::by_share(0, share, available).unwrap();
            assert_eq!(split.mask(), mask, "share {share}, available {available:#b}");
            assert_eq!(split.parts().map(|p| p.len).collect::<Vec<_>>(), [0]);
        }
    }

    #[test]
    fn small_transfers_stay_on_the_first_rail() {
        assert_eq!(Split::by_share(255, 512, 3).unwrap().mask(), 1);
        assert_eq!(Split::by_share(256, 512, 3).unwrap().bytes(1), 128);
        assert_eq!(Split::by_share(1, 1024, 3).unwrap().mask(), 2);
    }

    #[test]
    fn no_rail_is_no_split() {
        assert!(Split::by_share(1, 512, 0).is_none());
        assert!(Split::by_share(1, 512, 0b100).is_none());
        assert!(Split::by_weights(1, &[], 0xff).is_none());
    }

    #[test]
    fn three_rails_share_by_weight() {
        let split = Split::by_weights(1 << 20, &[2, 1, 1], 0b111).unwrap();
        assert_eq!([split.bytes(0), split.bytes(1), split.bytes(2)], [1 << 19, 1 << 18, 1 << 18]);
        // Without the middle rail the others have its part, in their proportion.
        let split = Split::by_weights(3 << 20, &[2, 1, 1], 0b101).unwrap();
        assert_eq!([split.bytes(0), split.bytes(1), split.bytes(2)], [2 << 20, 0, 1 << 20]);
    }

    proptest! {
        /// The previous content does not matter.
        #[test]
        fn a_cut_is_the_same_in_any_place(
            size in prop_oneof![0usize..1000, 0usize..1 << 32], weights: [u16; 3], available in 0u8..8,
            before: usize, rails: u8,
        ) {
            let mut used = Split::by_weights(before, &[1; MAX_RAILS], rails | 1).unwrap();
            let done = used.cut(size, &weights, available);
            let fresh = Split::by_weights(size, &weights, available);
            prop_assert_eq!(done, fresh.is_some());
            if let Some(fresh) = fresh {
                prop_assert_eq!(used.mask(), fresh.mask());
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
            let Some(split) = Split::by_weights(size, &weights, available) else {
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
            prop_assert_eq!(mask, split.mask());
            for &rail in &carriers[1..] {
                let exact = size as u128 * u128::from(weights[rail]) / total;
                prop_assert_eq!(split.bytes(rail) as u128, exact - exact % 128);
            }
        }

        /// The agent's rule: `size * share >> 10`, rounded down to 128.
        //= protocol.md: split: parts cover the transfer once, in multiples of 128 bytes
        #[test]
        fn the_share_is_parts_per_1024(size in prop_oneof![0usize..5000, 0usize..1 << 40], share in 0u16..=1100) {
            let split = Split::by_share(size, share, 3).unwrap();
            let mut in_place = Split::by_weights(7, &[1; 8], 0xff).unwrap();
            in_place.cut_by_share(size, share);
            // An empty transfer has no share.
            if size > 0 {
                prop_assert_eq!(in_place.mask(), split.mask());
            }
            prop_assert!((0..9).all(|rail| in_place.bytes(rail) == split.bytes(rail)));
            let sup = if share >= 1024 { size } else { ((size as u64 * u64::from(share)) >> 10) as usize & !127 };
            prop_assert_eq!((split.bytes(0), split.bytes(1)), (size - sup, sup));
        }

        #[test]
        fn a_lone_rail_carries_all(size: usize, share in 0u16..=1024, rail in 0usize..2) {
            let split = Split::by_share(size, share, 1 << rail).unwrap();
            prop_assert_eq!((split.bytes(rail), split.mask()), (size, 1 << rail));
        }
    }
}
