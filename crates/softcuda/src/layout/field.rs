//! A member of a structure and its value in a copy of the structure.

use super::dwarf::Member;

/// The place of an integer or of a bit-field in a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset in bytes.
    pub offset: usize,
    /// Bytes of the integer, or of the bit-field's storage unit.
    pub size: usize,
    /// Lowest bit.
    pub low: u32,
    /// Number of bits.
    pub width: u32,
}

impl Field {
    /// Returns the place of a whole integer.
    pub const fn whole(offset: usize, size: usize) -> Self {
        Self { offset, size, low: 0, width: 8 * size as u32 }
    }

    /// Returns the value in a copy of the structure.
    ///
    /// # Panics
    /// If the copy is shorter than the structure.
    pub fn get(&self, structure: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..self.size].copy_from_slice(&structure[self.offset..self.offset + self.size]);
        let value = u64::from_le_bytes(word) >> self.low;
        if self.width == 64 { value } else { value & ((1 << self.width) - 1) }
    }

    /// Returns the value as a signed number.
    pub fn signed(&self, structure: &[u8]) -> i64 {
        let unused = 64 - self.width;
        (self.get(structure) as i64) << unused >> unused
    }

    /// Returns the value as an address, a size or a number of elements.
    pub fn size(&self, structure: &[u8]) -> usize {
        self.get(structure) as usize
    }

    /// Returns whether the value is not zero.
    pub fn is_set(&self, structure: &[u8]) -> bool {
        self.get(structure) != 0
    }

    /// Writes the value into a copy of the structure.
    ///
    /// # Panics
    /// If the copy is shorter than the structure, or the value has more bits than the field.
    pub fn put(&self, structure: &mut [u8], value: u64) {
        let mask = if self.width == 64 { u64::MAX } else { (1 << self.width) - 1 };
        assert_eq!(value & !mask, 0, "{value} does not fit in {} bits", self.width);
        let mut word = [0; 8];
        let place = self.offset..self.offset + self.size;
        word[..self.size].copy_from_slice(&structure[place.clone()]);
        let word = (u64::from_le_bytes(word) & !(mask << self.low) | value << self.low).to_le_bytes();
        structure[place].copy_from_slice(&word[..self.size]);
    }
}

impl From<Member> for Field {
    fn from(member: Member) -> Self {
        match member.bits {
            Some((low, width)) => Self { offset: member.offset, size: member.size, low, width },
            None => Self::whole(member.offset, member.size),
        }
    }
}
