//! What ranks do in each other's memory, and the bytes by which it is checked.

use serde::{Deserialize, Serialize};

use super::{
    Ran,
    values::{UNTOUCHED, mix},
};

/// A test of one-sided transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OneSided {
    /// `ncclPutSignal` into the window of each other rank, and `ncclWaitSignal`; from 2.29 on.
    Put,
    /// `ncclSignal` without data, likewise.
    Signal,
    /// What a kernel with GIN posts to NCCL's proxy: puts, gets, signals and counters of several
    /// contexts; from 2.30.7 on.
    Gin,
}

impl OneSided {
    /// Returns the name that people use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Signal => "signal",
            Self::Gin => "gin",
        }
    }
}

/// Bytes of one transfer. Those of transfers with other keys differ at every length, and none is
/// [`UNTOUCHED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(u64);

impl Pattern {
    /// Returns the pattern of a key: all by which the transfer differs from others.
    pub fn of(key: &[u64]) -> Self {
        Self(key.iter().fold(0, |mixed, part| mix(mixed ^ mix(*part))))
    }

    fn byte(self, index: usize) -> u8 {
        let word = mix(self.0 ^ (index / 8) as u64);
        match word.to_le_bytes()[index % 8] {
            UNTOUCHED => !UNTOUCHED,
            byte => byte,
        }
    }

    /// Writes the bytes.
    pub fn fill(self, bytes: &mut [u8]) {
        (0..).zip(bytes).for_each(|(index, byte)| *byte = self.byte(index));
    }

    /// Returns the first bytes.
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Compares bytes that lie at an index of the memory that is compared.
    pub fn compare(self, bytes: &[u8], round: u32, at: usize, ran: &mut Ran) {
        for (index, byte) in bytes.iter().enumerate() {
            ran.compare(round, at + index, u64::from(*byte), u64::from(self.byte(index)));
        }
    }
}

impl Ran {
    /// Compares bytes that nothing may have written, at an index of the memory that is compared.
    pub fn untouched(&mut self, bytes: &[u8], round: u32, at: usize) {
        for (index, byte) in bytes.iter().enumerate() {
            self.compare(round, at + index, u64::from(*byte), u64::from(UNTOUCHED));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_another_transfer_or_place_are_wrong() {
        let right = Pattern::of(&[1, 2, 3]).bytes(1000);
        let wrong = |bytes: &[u8]| {
            let mut ran = Ran::default();
            Pattern::of(&[1, 2, 3]).compare(bytes, 0, 0, &mut ran);
            assert_eq!(ran.compared, bytes.len());
            ran.wrong
        };
        assert_eq!(wrong(&right), 0);
        for key in [&[1, 2, 4][..], &[2, 1, 3], &[1, 2], &[0, 1, 2, 3]] {
            assert!(wrong(&Pattern::of(key).bytes(1000)) > 900, "{key:?}");
        }
        assert!(wrong(&right[8..]) > 900);
        assert_eq!(wrong(&[UNTOUCHED; 1000]), 1000);
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut ran = Ran::default();
        let mut bytes = Pattern::of(&[7]).bytes(9);
        bytes[5] ^= 1;
        Pattern::of(&[7]).compare(&bytes, 3, 100, &mut ran);
        ran.untouched(&[UNTOUCHED, 0], 3, 200);
        let first = ran.first.unwrap();
        assert_eq!((first.round, first.index, ran.compared, ran.wrong), (3, 105, 11, 2));
    }
}
