//! The clear-to-send (CTS) entry that a receiver writes into the sender's FIFO: one cache line per
//! receive.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{MAX_RAILS, MAX_RECVS};

/// Size of an entry: a cache line, which an adapter writes in one piece.
pub const CTS_BYTES: usize = 64;
/// Words of an entry. The sequence number is the last one: it arrives with or after the rest of its
/// line.
pub const CTS_WORDS: usize = CTS_BYTES / 8;

/// `addr` @0, `size` @8, `rkeys` @16, `tag` @48, `count` @52, `index` @53, two zero bytes, `seq`
/// @56; little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cts {
    /// Address of the receive buffer.
    pub addr: u64,
    /// Size of the receive buffer in bytes.
    pub size: u64,
    /// Remote key of the buffer on each rail of the connection.
    pub rkeys: [u32; MAX_RAILS],
    /// Tag of the receive, which selects the send.
    pub tag: i32,
    /// Receives in the group, 1..=[`MAX_RECVS`].
    pub count: u8,
    /// Index of the receive in the group.
    pub index: u8,
    /// Sequence number of the group.
    pub seq: u64,
}

/// The reason why an entry is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CtsError {
    /// The group does not have 1 to 8 receives.
    #[error("a CTS entry names a group of {0} receives: expected 1 to 8")]
    Count(u8),
    /// The index is outside of the group.
    #[error("a CTS entry is number {index} of a group of {count}")]
    Index {
        /// Index of the receive.
        index: u8,
        /// Receives in the group.
        count: u8,
    },
    /// The two reserved bytes are not zero.
    #[error("a CTS entry has {0:#06x} in its reserved bytes: expected zeroes")]
    Padding(u16),
}

impl Cts {
    /// Index of the first word with keys. Each has those of two rails.
    pub const KEYS: usize = 2;

    /// Returns the entry as words. Each word is stored in little-endian order.
    #[inline]
    pub fn words(&self) -> [u64; CTS_WORDS] {
        let keys = |i: usize| u64::from(self.rkeys[2 * i]) | u64::from(self.rkeys[2 * i + 1]) << 32;
        let head = Head { tag: self.tag, count: self.count, index: self.index }.word();
        [self.addr, self.size, keys(0), keys(1), keys(2), keys(3), head, self.seq]
    }

    /// Returns the bytes of the entry in the sender's FIFO.
    pub fn encode(&self) -> [u8; CTS_BYTES] {
        let mut out = [0; CTS_BYTES];
        for (place, word) in out.chunks_exact_mut(8).zip(self.words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Decodes an entry, and refuses bytes that [`Self::encode`] never returns for a valid group.
    pub fn decode(bytes: &[u8; CTS_BYTES]) -> Result<Self, CtsError> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let head = Head::of(word(6))?;
        let mut rkeys = [0; MAX_RAILS];
        for (i, pair) in rkeys.chunks_exact_mut(2).enumerate() {
            let keys = word(2 + i);
            (pair[0], pair[1]) = (keys as u32, (keys >> 32) as u32);
        }
        let Head { tag, count, index } = head;
        Ok(Self { addr: word(0), size: word(1), rkeys, tag, count, index, seq: word(7) })
    }
}

/// Returns a checksum of the keys of a group's entries: that of the entries before this one was
/// `before`, 0 for the first.
pub fn checksum_of_keys(before: u32, entry: &[AtomicU64; CTS_WORDS]) -> u32 {
    let keys = entry[Cts::KEYS..Cts::KEYS + MAX_RAILS / 2].iter();
    let words = keys.map(|word| u64::from_le(word.load(Ordering::Relaxed)));
    let halves = words.flat_map(|word| [word as u32, (word >> 32) as u32]);
    // Each step is a bijection of the sum before: one other key is another checksum.
    halves.fold(before, |sum, key| (sum ^ key).wrapping_mul(0x9e37_79b1).rotate_left(15))
}

/// The word before the sequence number, which differs among the entries of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// See [`Cts::tag`].
    pub tag: i32,
    /// See [`Cts::count`].
    pub count: u8,
    /// See [`Cts::index`].
    pub index: u8,
}

impl Head {
    /// Returns the word.
    #[inline]
    pub const fn word(self) -> u64 {
        self.tag as u32 as u64 | (self.count as u64) << 32 | (self.index as u64) << 40
    }

    /// Decodes a word, and refuses those that no entry of a valid group has.
    #[inline]
    pub const fn of(word: u64) -> Result<Self, CtsError> {
        let (count, index, padding) = ((word >> 32) as u8, (word >> 40) as u8, (word >> 48) as u16);
        if count == 0 || count as usize > MAX_RECVS {
            Err(CtsError::Count(count))
        } else if index >= count {
            Err(CtsError::Index { index, count })
        } else if padding != 0 {
            Err(CtsError::Padding(padding))
        } else {
            Ok(Self { tag: word as i32, count, index })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    //= protocol.md: CTS entry: every field at its offset; errors name what was found
    #[test]
    fn every_field_stands_at_its_offset() {
        let cts =
            Cts { addr: 1, size: 2, rkeys: [3, 4, 5, 6, 7, 8, 9, 10], tag: -1, count: 8, index: 7, seq: 11 };
        let bytes = cts.encode();
        for (offset, byte) in
            [(0, 1), (8, 2), (16, 3), (20, 4), (44, 10), (52, 8), (53, 7), (54, 0), (55, 0), (56, 11)]
        {
            assert_eq!(bytes[offset], byte, "offset {offset}");
        }
        assert_eq!(bytes[48..52], [0xff; 4]);
    }

    //= protocol.md: CTS entry: every field at its offset; errors name what was found
    #[test]
    fn a_refusal_names_what_was_found() {
        let cts = Cts { addr: 1, size: 2, rkeys: [0; 8], tag: 0, count: 2, index: 1, seq: 1 };
        let refusal = |change: fn(&mut Cts)| {
            let mut cts = cts;
            change(&mut cts);
            Cts::decode(&cts.encode()).unwrap_err()
        };
        assert_eq!(refusal(|c| c.count = 0), CtsError::Count(0));
        assert_eq!(refusal(|c| c.count = 9), CtsError::Count(9));
        assert_eq!(refusal(|c| c.index = 2), CtsError::Index { index: 2, count: 2 });
        let mut bytes = cts.encode();
        bytes[55] = 0x12;
        assert_eq!(Cts::decode(&bytes), Err(CtsError::Padding(0x1200)));
    }

    proptest! {
        #[test]
        fn decode_accepts_exactly_what_encode_makes(
            addr: u64, size: u64, rkeys: [u32; 8], tag: i32, seq: u64,
            count in 0u8..=10, index in 0u8..=10, padding in prop_oneof![4 => Just(0u16), 1 => any::<u16>(), 1 => (0u32..16).prop_map(|bit| 1u16 << bit)],
        ) {
            let cts = Cts { addr, size, rkeys, tag, count, index, seq };
            let mut bytes = cts.encode();
            bytes[54..56].copy_from_slice(&padding.to_le_bytes());
            let valid = (1..=8).contains(&count) && index < count && padding == 0;
            prop_assert_eq!(Cts::decode(&bytes).ok(), valid.then_some(cts));
        }
    }
}
