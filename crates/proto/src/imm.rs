//! The 32-bit immediate of an RDMA write: slot, rails of the message, size.

use super::{MAX_RAILS, SLOTS};

/// Bytes of the large unit of sizes.
const UNIT: usize = 128;

/// The layout of a connection's immediates. Up to two rails: slot `[7:0]`, mask `[9:8]`, `size_q`
/// `[31:10]`. With n > 2 rails the mask has n bits and `size_q` the remaining ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImmLayout {
    // Both are used for every message.
    /// The mask of all rails.
    all: u32,
    /// Bits below `size_q`.
    low_bits: u32,
    /// The bits that every message on one rail has in common if its size is in the small unit: mask,
    /// unit, and the bits of the slot that are always 0.
    fixed: u32,
}

/// A message size in an immediate: exact, or a reference to the completion record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SizeQ(Option<usize>);

impl SizeQ {
    /// The sentinel: the size is in the completion record.
    pub const RECORD: Self = Self(None);

    /// Returns the exact size; `None` if it is in the completion record.
    #[inline]
    pub const fn bytes(self) -> Option<usize> {
        self.0
    }
}

/// A decoded immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Imm {
    /// The receive slot.
    pub slot: u8,
    /// The rails that carry exactly one immediate each for this slot; never zero.
    pub mask: u8,
    /// The size of the message.
    pub size: SizeQ,
}

/// The immediate of a part that is sent again: its mask is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replay {
    /// The receive slot.
    pub slot: u8,
    /// The part: the rail that was to carry it.
    pub part: u8,
    /// The epoch of the verdict that requested it, modulo 2 to the power of 13.
    pub(crate) epoch: u16,
}

/// The immediate of a sender's probe: slot 0, whose queue pair is the first one, and no mask.
pub const PROBE_IMM: u32 = 0;

/// Bits of a part.
const PART_BITS: u32 = 3;
/// Bits of an epoch: as many as the layout of the most rails has room for.
const EPOCH_BITS: u32 = 13;

impl Replay {
    /// Returns the part as sent again in an epoch.
    pub const fn new(slot: u8, part: u8, epoch: u32) -> Self {
        Self { slot, part, epoch: epoch as u16 & ((1 << EPOCH_BITS) - 1) }
    }
}

impl ImmLayout {
    /// Returns the layout for a number of rails; `None` unless it is 1..=[`MAX_RAILS`].
    pub const fn new(rails: u8) -> Option<Self> {
        if rails < 1 || rails as usize > MAX_RAILS {
            return None;
        }
        let rails = rails as u32;
        let low_bits = 8 + if rails <= 2 { 2 } else { rails };
        Some(Self { all: (1 << rails) - 1, low_bits, fixed: ((1 << low_bits) - SLOTS as u32) | (1 << 31) })
    }

    /// Returns the mask of all rails of the connection.
    #[inline]
    pub const fn all_rails(self) -> u8 {
        self.all as u8
    }

    /// Returns the number of bits of the count, without the unit bit.
    #[inline]
    const fn count_bits(self) -> u32 {
        31 - self.low_bits
    }

    const fn sentinel(self) -> u32 {
        u32::MAX >> self.low_bits
    }

    /// Returns `size_q` for a size. The small unit is used whenever it suffices: each size has one
    /// encoding.
    #[inline]
    const fn quantised(self, bytes: usize) -> Option<u32> {
        let limit = 1usize << self.count_bits();
        if bytes < limit {
            return Some(bytes as u32);
        }
        let units = bytes / UNIT;
        // A count of all ones is the sentinel.
        if bytes.is_multiple_of(UNIT) && units < limit - 1 { Some(limit as u32 | units as u32) } else { None }
    }

    /// Returns the size in this layout: exact, or [`SizeQ::RECORD`].
    #[inline]
    pub const fn size(self, bytes: usize) -> SizeQ {
        if self.quantised(bytes).is_some() { SizeQ(Some(bytes)) } else { SizeQ::RECORD }
    }

    /// Returns the bits of a size in an immediate; `None` if it is in the completion record.
    #[inline(always)]
    pub const fn size_bits(self, bytes: usize) -> Option<u32> {
        match self.quantised(bytes) {
            Some(size_q) => Some(size_q << self.low_bits),
            None => None,
        }
    }

    /// Returns the immediate in host byte order. `mask` must be non-zero and within the
    /// connection's rails, or the peer refuses the word. A `size` of a wider layout becomes the
    /// sentinel.
    #[inline]
    pub const fn encode(self, slot: u8, mask: u8, size: SizeQ) -> u32 {
        let size_q = match size.0 {
            Some(bytes) => match self.quantised(bytes) {
                Some(q) => q,
                None => self.sentinel(),
            },
            None => self.sentinel(),
        };
        Self::encode_bits(slot, mask & self.all as u8, size_q << self.low_bits)
    }

    /// Returns the largest size below which every size is exact.
    pub const fn exact_below(self) -> usize {
        1 << self.count_bits()
    }

    /// Like [`encode`](Self::encode), for a size below [`exact_below`](Self::exact_below).
    #[inline]
    pub const fn encode_exact(self, slot: u8, mask: u8, bytes: u32) -> u32 {
        Self::encode_bits(slot, mask, bytes << self.low_bits)
    }

    /// Returns the immediate with these [bits of a size](Self::size_bits).
    #[inline(always)]
    pub const fn encode_bits(slot: u8, mask: u8, size: u32) -> u32 {
        slot as u32 | (mask as u32) << 8 | size
    }

    /// Decodes the immediate of a message that is whole on `rail`: its slot, and its size in the
    /// small unit. `None` for all others.
    #[inline(always)]
    pub const fn decode_whole(self, word: u32, rail: usize) -> Option<(u8, usize)> {
        let size = word.wrapping_shr(self.low_bits) as usize;
        if word & self.fixed == 1u32.wrapping_shl(8 + rail as u32) { Some((word as u8, size)) } else { None }
    }

    /// Returns the immediate of a part that is sent again.
    pub const fn encode_replay(self, replay: Replay) -> u32 {
        let Replay { slot, part, epoch } = replay;
        slot as u32 | (part as u32 | (epoch as u32) << PART_BITS) << self.low_bits
    }

    /// Decodes the immediate of a part that is sent again. `None` for words that no sender makes,
    /// and for all that have a mask.
    pub const fn decode_replay(self, word: u32) -> Option<Replay> {
        let (slot, rest) = (word as u8, word >> self.low_bits);
        let (part, epoch) = (rest & ((1 << PART_BITS) - 1), rest >> PART_BITS);
        let mask = (word & ((1 << self.low_bits) - 1)) >> 8;
        if mask != 0 || slot as usize >= SLOTS || self.all >> part & 1 == 0 || epoch >> EPOCH_BITS != 0 {
            return None;
        }
        Some(Replay { slot, part: part as u8, epoch: epoch as u16 })
    }

    /// Decodes an immediate. `None` for words that no sender makes: an empty mask, a rail that the
    /// connection does not have, a slot that does not exist, a size in the wrong unit.
    #[inline]
    pub const fn decode(self, word: u32) -> Option<Imm> {
        let slot = word as u8;
        let mask = (word & ((1 << self.low_bits) - 1)) >> 8;
        // No rail, or one outside of the connection: the mask is in the lowest bits.
        if mask.wrapping_sub(1) >= self.all || slot as usize >= SLOTS {
            return None;
        }
        let mask = mask as u8;
        let size_q = word >> self.low_bits;
        // The unit bit is the highest bit.
        if word >> 31 == 0 {
            return Some(Imm { slot, mask, size: SizeQ(Some(size_q as usize)) });
        }
        let limit = 1u32 << self.count_bits();
        if size_q == self.sentinel() {
            return Some(Imm { slot, mask, size: SizeQ::RECORD });
        }
        let bytes = (size_q - limit) as usize * UNIT;
        if bytes < limit as usize {
            return None;
        }
        Some(Imm { slot, mask, size: SizeQ(Some(bytes)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout() -> impl Strategy<Value = ImmLayout> {
        (1u8..=8).prop_map(|n| ImmLayout::new(n).unwrap())
    }

    /// Sizes around each limit of each layout.
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![
            0usize..300,
            (14u32..=31, -2i64..=2).prop_map(|(bit, d)| ((1i64 << bit) + d) as usize),
            (14u32..=31, -2i64..=2).prop_map(|(bit, d)| (((1i64 << bit) + d * 128) as usize) & !127),
            any::<usize>(),
        ]
    }

    #[test]
    fn rails_are_one_to_eight() {
        assert_eq!(ImmLayout::new(0), None);
        assert_eq!(ImmLayout::new(9), None);
        for (rails, all) in [(1, 1), (2, 3), (3, 7), (8, 255)] {
            assert_eq!(ImmLayout::new(rails).unwrap().all_rails(), all);
        }
    }

    //= protocol.md: immediate: documented bits; each word is one message or refused
    #[test]
    fn two_rails_have_the_documented_bits() {
        for rails in [1, 2] {
            let l = ImmLayout::new(rails).unwrap();
            assert_eq!(l.encode(0xab, 1, l.size(5)), 0xab | 1 << 8 | 5 << 10);
            assert_eq!(l.encode(0, 1, SizeQ::RECORD), 1 << 8 | 0x3f_ffff << 10);
            // 4 MiB exceeds the byte unit (2 MiB) and uses units of 128.
            assert_eq!(l.encode(1, 1, l.size(4 << 20)), 1 | 1 << 8 | (1 << 21 | 32768) << 10);
        }
        let l = ImmLayout::new(2).unwrap();
        assert_eq!(l.encode(255, 3, l.size(0)), 255 | 3 << 8);
    }

    //= protocol.md: immediate: a size is exact or in the completion record
    #[test]
    fn two_rails_express_these_sizes() {
        let l = ImmLayout::new(2).unwrap();
        let mib = 1 << 20;
        for exact in [0, 1, 129, 2 * mib - 1, 2 * mib, 2 * mib + 128, 256 * mib - 256] {
            assert_eq!(l.size(exact).bytes(), Some(exact));
        }
        for absent in [2 * mib + 1, 2 * mib + 64, 256 * mib - 128, 256 * mib, usize::MAX, usize::MAX & !127] {
            assert_eq!(l.size(absent), SizeQ::RECORD, "{absent}");
        }
    }

    /// Around each limit of each layout: a size in an immediate is exact, and every size that fits
    /// is in the immediate.
    //= protocol.md: immediate: a size is exact or in the completion record
    #[test]
    fn edges_of_every_layout() {
        for rails in 1..=8u8 {
            let l = ImmLayout::new(rails).unwrap();
            let limit = 1usize << (23 - if rails <= 2 { 2 } else { rails });
            for (edge, step) in [(limit, 1), (limit, 128), ((limit - 1) * 128, 1), ((limit - 1) * 128, 128)] {
                for bytes in [edge - step, edge, edge + step] {
                    let exact = bytes < limit || bytes % 128 == 0 && bytes < (limit - 1) * 128;
                    assert_eq!(l.size(bytes).bytes(), exact.then_some(bytes), "{rails} rails, {bytes} bytes");
                    let imm = Imm { slot: 9, mask: 1, size: l.size(bytes) };
                    assert_eq!(l.decode(l.encode(9, 1, imm.size)), Some(imm), "{rails} rails, {bytes} bytes");
                }
            }
        }
    }

    /// A size that the small unit can express is refused in the large unit.
    //= protocol.md: immediate: documented bits; each word is one message or refused
    #[test]
    fn each_size_has_one_word() {
        for rails in 1..=8u8 {
            let l = ImmLayout::new(rails).unwrap();
            let bits = 23 - u32::from(rails.max(2));
            let (large, first) = (1u32 << bits, 1u32 << bits >> 7);
            let word = |units: u32| 1 << 8 | (large | units) << (8 + u32::from(rails.max(2)));
            for units in [0, 1, first - 1] {
                assert_eq!(l.decode(word(units)), None, "{rails} rails, {units} units");
            }
            for units in [first, first + 1, large - 2] {
                let size = l.decode(word(units)).unwrap().size;
                assert_eq!(size.bytes(), Some(units as usize * 128), "{rails} rails, {units} units");
            }
            assert_eq!(l.decode(word(large - 1)).unwrap().size, SizeQ::RECORD);
        }
    }

    proptest! {
        //= protocol.md: immediate: documented bits; each word is one message or refused
        #[test]
        fn decode_undoes_encode(l in layout(), slot in 0..SLOTS as u8, mask: u8, bytes in size()) {
            let word = l.encode(slot, mask, l.size(bytes));
            // Rails outside of the connection do not alter other fields.
            let mask = mask & l.all_rails();
            let want = Imm { slot, mask, size: l.size(bytes) };
            prop_assert_eq!(l.decode(word), (mask != 0).then_some(want));
            // A size is exact or absent.
            prop_assert!(l.size(bytes).bytes().is_none_or(|b| b == bytes));
        }

        /// Nearly valid words: small and extreme size_q, any mask, and the whole range.
        //= protocol.md: immediate: documented bits; each word is one message or refused
        #[test]
        fn decode_accepts_exactly_what_encode_makes(
            l in layout(),
            word in prop_oneof![any::<u32>(), (any::<u16>(), 0u32..70000).prop_map(|(low, q)| u32::from(low) | !q << 16),
                (any::<u16>(), any::<bool>(), 0u32..20000).prop_map(|(low, top, q)| u32::from(low) | u32::from(top) << 31 | q << 10)],
        ) {
            match l.decode(word) {
                Some(imm) => prop_assert_eq!(l.encode(imm.slot, imm.mask, imm.size), word),
                None => {
                    let rails = l.all_rails().count_ones();
                    let mask_bits = rails.max(2);
                    let mask = word >> 8 & ((1 << mask_bits) - 1);
                    let q = word >> (8 + mask_bits);
                    let half = 1u32 << (23 - mask_bits);
                    let wrong_unit = q >= half && (q - half) < half / 128;
                    let wrong_slot = word as u8 as usize >= SLOTS;
                    prop_assert!(mask == 0 || mask >> rails != 0 || wrong_unit || wrong_slot);
                }
            }
        }

        /// The short way decodes what the general one does, and only messages on the rail.
        #[test]
        fn decode_whole_is_decode_for_one_rail(
            l in layout(), rail in 0usize..8, slot: u8, mask: u8, bytes in 0usize..1 << 24, noise: u32,
        ) {
            let rail = rail % l.all_rails().count_ones() as usize;
            let sent = l.encode(slot, mask, l.size(bytes));
            for word in [sent, l.encode(slot % SLOTS as u8, 1 << rail, l.size(bytes)), noise] {
                let small = |imm: &Imm| imm.mask == 1 << rail && word >> 31 == 0;
                let expected = l.decode(word).filter(small).map(|imm| (imm.slot, imm.size.bytes().unwrap()));
                prop_assert_eq!(l.decode_whole(word, rail), expected, "{:#x}", word);
            }
            if bytes < l.exact_below() && mask & l.all_rails() == mask {
                prop_assert_eq!(l.encode_exact(slot, mask, bytes as u32), sent);
            }
        }

        /// A word is a message, a part that is sent again, or neither; never both.
        //= protocol.md: immediate: documented bits; each word is one message or refused
        //= protocol.md: immediate: a part that is sent again has one word, with its epoch
        #[test]
        fn a_part_sent_again_has_one_word(
            l in layout(), slot in 0..SLOTS as u8, part in 0u8..8, epoch: u32, noise: u32,
        ) {
            let part = part % l.all_rails().count_ones() as u8;
            let replay = Replay::new(slot, part, epoch);
            prop_assert_eq!(l.decode_replay(l.encode_replay(replay)), Some(replay));
            for word in [l.encode_replay(replay), noise, noise & !0xff00] {
                let again = l.decode_replay(word);
                prop_assert!(again.is_none() || l.decode(word).is_none(), "{:#x}", word);
                prop_assert!(again.is_none_or(|replay| l.encode_replay(replay) == word), "{:#x}", word);
            }
        }

        #[test]
        fn a_size_of_another_layout_becomes_the_sentinel(bytes in size()) {
            let (wide, narrow) = (ImmLayout::new(2).unwrap(), ImmLayout::new(8).unwrap());
            let imm = narrow.decode(narrow.encode(0, 1, wide.size(bytes))).unwrap();
            prop_assert!(imm.size.bytes().is_none_or(|b| b == bytes));
        }
    }
}
