//! The completion record: the exact sizes of the messages of a slot that do not fit into the
//! immediate.

use super::MAX_RECVS;
use super::wire::number;

/// Size of a record: one little-endian u64 per receive of the group.
pub const RECORD_BYTES: usize = 8 * MAX_RECVS;

/// The sizes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    len: usize,
    sizes: [usize; MAX_RECVS],
}

/// The reason why a record is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// More sizes than a record has room for: a mistake of this end.
    #[error("a record of {0} sizes: the most is 8")]
    Count(usize),
    /// A message is larger than its receive.
    #[error(
        "the completion record has {size} bytes for receive {index} of its group, which has room for {room}"
    )]
    TooLarge {
        /// Index of the receive in the group.
        index: usize,
        /// Size in the record.
        size: u64,
        /// Size of the receive buffer.
        room: usize,
    },
}

impl Record {
    /// Creates a record of up to [`MAX_RECVS`] sizes.
    pub fn new(sizes: &[usize]) -> Result<Self, RecordError> {
        let mut record = Self { len: sizes.len(), ..Self::default() };
        record.sizes.get_mut(..sizes.len()).ok_or(RecordError::Count(sizes.len()))?.copy_from_slice(sizes);
        Ok(record)
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.len]
    }

    /// Returns the bytes of the record in the receiver's memory. Unused sizes are zero.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        for (place, size) in out.chunks_exact_mut(8).zip(self.sizes()) {
            place.copy_from_slice(&(*size as u64).to_le_bytes());
        }
        out
    }

    /// Reads one size per receive, which may not exceed the buffer. The bytes behind them are
    /// ignored: they may belong to an earlier and larger group.
    pub fn decode(bytes: &[u8; RECORD_BYTES], rooms: &[usize]) -> Result<Self, RecordError> {
        let mut record = Self::new(rooms)?;
        for (index, (place, size)) in bytes.chunks_exact(8).zip(&mut record.sizes[..rooms.len()]).enumerate()
        {
            let found = number(place);
            let room = *size;
            *size = usize::try_from(found).ok().filter(|s| *s <= room).ok_or(RecordError::TooLarge {
                index,
                size: found,
                room,
            })?;
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_little_endian_in_order() {
        let bytes = Record::new(&[0x0102, 7]).unwrap().encode();
        assert_eq!(bytes[..16], [2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], [0; 48]);
    }

    #[test]
    fn nine_sizes_have_no_room() {
        assert_eq!(Record::new(&[0; 9]), Err(RecordError::Count(9)));
        assert_eq!(Record::decode(&[0; 64], &[0; 9]), Err(RecordError::Count(9)));
    }

    proptest! {
        //= protocol.md: record: no size exceeds its receive
        #[test]
        fn decode_undoes_encode_within_room(
            pairs in prop::collection::vec((prop_oneof![0usize..4, any::<usize>()], -1i8..=1), 0..=8),
            junk: u8,
        ) {
            let sizes: Vec<usize> = pairs.iter().map(|p| p.0).collect();
            let rooms: Vec<usize> = pairs.iter().map(|p| p.0.saturating_add_signed(isize::from(p.1))).collect();
            let record = Record::new(&sizes).unwrap();
            let mut bytes = record.encode();
            bytes[sizes.len() * 8..].fill(junk);
            let bad = (0..sizes.len()).find(|&i| sizes[i] > rooms[i]);
            match Record::decode(&bytes, &rooms) {
                Ok(read) => { prop_assert_eq!(bad, None); prop_assert_eq!(read, record); }
                Err(e) => {
                    let i = bad.unwrap();
                    prop_assert_eq!(e, RecordError::TooLarge { index: i, size: sizes[i] as u64, room: rooms[i] });
                }
            }
        }
    }
}
