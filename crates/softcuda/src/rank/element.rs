//! The types of elements, and exact encoding of numbers in them.

use serde::{Deserialize, Serialize};

/// The types, with the numbers of `ncclDataType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i32)]
pub enum Element {
    /// `ncclInt8`.
    I8 = 0,
    /// `ncclUint8`.
    U8 = 1,
    /// `ncclInt32`.
    I32 = 2,
    /// `ncclUint32`.
    U32 = 3,
    /// `ncclInt64`.
    I64 = 4,
    /// `ncclUint64`.
    U64 = 5,
    /// `ncclFloat16`.
    F16 = 6,
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclFloat64`.
    F64 = 8,
    /// `ncclBfloat16`.
    Bf16 = 9,
    /// `ncclFloat8e4m3`, from 2.24 on.
    F8e4m3 = 10,
    /// `ncclFloat8e5m2`, from 2.24 on.
    F8e5m2 = 11,
}

/// The form of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Integer,
    /// Bits of exponent and of mantissa.
    Float(u32, u32),
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8e4m3,
        Self::F8e5m2,
    ];

    /// Returns the size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8e4m3 | Self::F8e5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    const fn form(self) -> Form {
        match self {
            Self::F16 => Form::Float(5, 10),
            Self::F32 => Form::Float(8, 23),
            Self::F64 => Form::Float(11, 52),
            Self::Bf16 => Form::Float(8, 7),
            Self::F8e4m3 => Form::Float(4, 3),
            Self::F8e5m2 => Form::Float(5, 2),
            _ => Form::Integer,
        }
    }

    /// Returns whether the type has fractions.
    pub const fn is_float(self) -> bool {
        matches!(self.form(), Form::Float(..))
    }

    /// Returns how many whole numbers from 0 on a rank may contribute. The sum of eight ranks is then
    /// exact.
    pub(super) const fn numbers(self) -> u64 {
        match self {
            Self::F8e5m2 => 2,
            Self::F8e4m3 => 3,
            Self::I8 => 16,
            Self::U8 | Self::Bf16 => 32,
            _ => 241,
        }
    }

    /// Returns the bits of a number that is not negative: the integer part for integers (modulo the
    /// type's range), the exact value for floats. A float that would be rounded is a mistake of the
    /// test.
    pub(super) fn encode(self, number: f64) -> u64 {
        debug_assert!(number >= 0.0);
        let Form::Float(exponent_bits, mantissa_bits) = self.form() else { return number as u64 };
        if number == 0.0 {
            return 0;
        }
        // Cut the mantissa of an f64 to the type's, and move the exponent to the type's bias.
        let bits = number.to_bits();
        let dropped = 52 - mantissa_bits;
        let mantissa = bits & ((1 << 52) - 1);
        assert_eq!(mantissa & ((1 << dropped) - 1), 0, "{number} is not exact in {self:?}");
        let exponent = (bits >> 52).cast_signed() - 1023 + ((1 << (exponent_bits - 1)) - 1);
        assert!(exponent > 0 && exponent < 1 << exponent_bits, "{number} is not normal in {self:?}");
        exponent.cast_unsigned() << mantissa_bits | mantissa >> dropped
    }

    /// Appends an element with these bits.
    pub(super) fn push(self, bits: u64, to: &mut Vec<u8>) {
        to.extend_from_slice(&bits.to_le_bytes()[..self.size()]);
    }

    /// Returns the bits of the element at an index.
    pub(super) fn read(self, bytes: &[u8], index: usize) -> u64 {
        let mut word = [0; 8];
        let at = index * self.size();
        word[..self.size()].copy_from_slice(&bytes[at..at + self.size()]);
        u64::from_le_bytes(word)
    }

    /// Returns the bits that the type keeps.
    pub(super) fn kept(self, bits: u64) -> u64 {
        if self.size() == 8 { bits } else { bits & ((1 << (8 * self.size())) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_bits_of_their_type() {
        assert_eq!(Element::F32.encode(1.5), u64::from(1.5_f32.to_bits()));
        assert_eq!(Element::F64.encode(240.0), 240_f64.to_bits());
        assert_eq!(Element::F16.encode(1.0), 0x3c00);
        assert_eq!(Element::F16.encode(0.5), 0x3800);
        assert_eq!(Element::Bf16.encode(3.0), 0x4040);
        assert_eq!(Element::F8e4m3.encode(1.0), 0x38);
        assert_eq!(Element::F8e4m3.encode(16.0), 0x58);
        assert_eq!(Element::F8e5m2.encode(2.0), 0x40);
        assert_eq!(Element::U8.encode(7.9), 7);
        assert_eq!(Element::F16.encode(0.0), 0);
    }

    #[test]
    #[should_panic(expected = "9 is not exact in F8e5m2")]
    fn a_number_that_would_be_rounded_is_refused() {
        Element::F8e5m2.encode(9.0);
    }

    #[test]
    fn elements_lie_one_after_the_other() {
        let mut bytes = Vec::new();
        Element::Bf16.push(0x4040, &mut bytes);
        Element::Bf16.push(0x0102, &mut bytes);
        assert_eq!(bytes, [0x40, 0x40, 0x02, 0x01]);
        assert_eq!(Element::Bf16.read(&bytes, 1), 0x0102);
        assert_eq!(Element::I8.kept(0x1ff), 0xff);
    }
}
