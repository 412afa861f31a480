//! Exact encoding of numbers in a type of elements.

use crate::data_type::DataType;

/// The form of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Integer,
    /// Bits of exponent and of mantissa.
    Float(u32, u32),
}

impl DataType {
    const fn form(self) -> Form {
        match self {
            Self::F16 => Form::Float(5, 10),
            Self::F32 => Form::Float(8, 23),
            Self::F64 => Form::Float(11, 52),
            Self::Bf16 => Form::Float(8, 7),
            Self::F8E4M3 => Form::Float(4, 3),
            Self::F8E5M2 => Form::Float(5, 2),
            _ => Form::Integer,
        }
    }

    /// Returns how many whole numbers from 0 on a rank may contribute. The sum of eight ranks is then
    /// exact.
    pub(super) const fn numbers(self) -> u64 {
        match self {
            Self::F8E5M2 => 2,
            Self::F8E4M3 => 3,
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
        assert_eq!(DataType::F32.encode(1.5), u64::from(1.5_f32.to_bits()));
        assert_eq!(DataType::F64.encode(240.0), 240_f64.to_bits());
        assert_eq!(DataType::F16.encode(1.0), 0x3c00);
        assert_eq!(DataType::F16.encode(0.5), 0x3800);
        assert_eq!(DataType::Bf16.encode(3.0), 0x4040);
        assert_eq!(DataType::F8E4M3.encode(1.0), 0x38);
        assert_eq!(DataType::F8E4M3.encode(16.0), 0x58);
        assert_eq!(DataType::F8E5M2.encode(2.0), 0x40);
        assert_eq!(DataType::U8.encode(7.9), 7);
        assert_eq!(DataType::F16.encode(0.0), 0);
    }

    #[test]
    #[should_panic(expected = "9 is not exact in F8E5M2")]
    fn a_number_that_would_be_rounded_is_refused() {
        DataType::F8E5M2.encode(9.0);
    }

    #[test]
    fn elements_lie_one_after_the_other() {
        let mut bytes = Vec::new();
        DataType::Bf16.push(0x4040, &mut bytes);
        DataType::Bf16.push(0x0102, &mut bytes);
        assert_eq!(bytes, [0x40, 0x40, 0x02, 0x01]);
        assert_eq!(DataType::Bf16.read(&bytes, 1), 0x0102);
        assert_eq!(DataType::I8.kept(0x1ff), 0xff);
    }
}
