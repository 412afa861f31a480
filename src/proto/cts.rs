//! The clear-to-send entry that a receiver writes into the sender's FIFO: one cache line per receive.

use super::{MAX_RAILS, MAX_RECVS};

/// Size of an entry.
pub const CTS_BYTES: usize = 64;
/// Where the running number stands: last, so that it arrives with or after the rest of its line.
pub const CTS_SEQ_OFFSET: usize = 56;

/// `addr` @0, `size` @8, `rkeys` @16, `tag` @48, `count` @52, `index` @53, two zero bytes, `seq` @56; little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cts {
    /// Where the data goes.
    pub addr: u64,
    /// Room in bytes.
    pub size: u64,
    /// Remote key per rail of the receiver.
    pub rkeys: [u32; MAX_RAILS],
    /// Which sender's message is meant.
    pub tag: i32,
    /// Receives in the group, 1..=[`MAX_RECVS`].
    pub count: u8,
    /// This one's place in the group.
    pub index: u8,
    /// Running number of the group.
    pub seq: u64,
}

/// Why an entry is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CtsError {
    /// Not 1..=8 receives.
    #[error("a CTS entry names a group of {0} receives: expected 1 to 8")]
    Count(u8),
    /// Outside of its group.
    #[error("a CTS entry is number {index} of a group of {count}")]
    Index {
        /// Place.
        index: u8,
        /// Receives in the group.
        count: u8,
    },
    /// The two bytes that must be zero.
    #[error("a CTS entry has {0:#06x} where zeroes must stand")]
    Padding(u16),
}

impl Cts {
    /// As it stands in the sender's FIFO.
    pub fn encode(&self) -> [u8; CTS_BYTES] {
        let mut out = [0; CTS_BYTES];
        out[0..8].copy_from_slice(&self.addr.to_le_bytes());
        out[8..16].copy_from_slice(&self.size.to_le_bytes());
        for (place, rkey) in out[16..48].chunks_exact_mut(4).zip(self.rkeys) {
            place.copy_from_slice(&rkey.to_le_bytes());
        }
        out[48..52].copy_from_slice(&self.tag.to_le_bytes());
        out[52] = self.count;
        out[53] = self.index;
        out[CTS_SEQ_OFFSET..].copy_from_slice(&self.seq.to_le_bytes());
        out
    }

    /// Refuses what [`Self::encode`] never makes of a valid group.
    pub fn decode(bytes: &[u8; CTS_BYTES]) -> Result<Self, CtsError> {
        // Read for each message: word by word, not byte by byte.
        let (words, _) = bytes.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let last = word(6);
        let mut rkeys = [0; MAX_RAILS];
        for (i, pair) in rkeys.chunks_exact_mut(2).enumerate() {
            let keys = word(2 + i);
            (pair[0], pair[1]) = (keys as u32, (keys >> 32) as u32);
        }
        let cts = Self {
            addr: word(0),
            size: word(1),
            rkeys,
            tag: last as u32 as i32,
            count: (last >> 32) as u8,
            index: (last >> 40) as u8,
            seq: word(7),
        };
        let padding = (last >> 48) as u16;
        if cts.count == 0 || cts.count as usize > MAX_RECVS {
            Err(CtsError::Count(cts.count))
        } else if cts.index >= cts.count {
            Err(CtsError::Index { index: cts.index, count: cts.count })
        } else if padding != 0 {
            Err(CtsError::Padding(padding))
        } else {
            Ok(cts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
