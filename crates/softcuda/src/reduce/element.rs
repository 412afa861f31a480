//! Arithmetic on one element, as the device code of NCCL does it.

use half::{bf16, f16};

use super::float8::{E4M3, E5M2};

/// An element of a collective.
pub(super) trait Element: Copy {
    const SIZE: usize;

    /// Reads the element at the beginning of `bytes`.
    fn get(bytes: &[u8]) -> Self;
    /// Writes the element to the beginning of `bytes`.
    fn put(self, bytes: &mut [u8]);
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Returns the smaller or the larger element. Integers compare after an exclusive or with the
    /// argument, floats take the minimum if its lowest bit is zero.
    fn min_max(self, other: Self, argument: u64) -> Self;
    /// Divides. NCCL requests it for integers only.
    fn divide(self, divisor: u64, signed: bool) -> Self;
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => { $(
        impl Element for $unsigned {
            const SIZE: usize = size_of::<Self>();

            fn get(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<Self>()];
                word.copy_from_slice(&bytes[..size_of::<Self>()]);
                Self::from_le_bytes(word)
            }

            fn put(self, bytes: &mut [u8]) {
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }

            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn min_max(self, other: Self, argument: u64) -> Self {
                let mask = argument as Self;
                if self ^ mask < other ^ mask { self } else { other }
            }

            fn divide(self, divisor: u64, signed: bool) -> Self {
                if signed {
                    (i128::from(self as $signed) / i128::from(divisor)) as Self
                } else {
                    (u64::from(self) / divisor) as Self
                }
            }
        }
    )* };
}
integers! {
    u8, i8;
    u32, i32;
    u64, i64;
}

/// Floats compute in a wider float and round once. The rounding is that of an operation in the
/// narrow type: the wider one has more than twice its digits.
macro_rules! floats {
    ($($type:ty, $wide:ty, $size:literal, $widen:expr, $narrow:expr;)*) => { $(
        impl Element for $type {
            const SIZE: usize = $size;

            fn get(bytes: &[u8]) -> Self {
                let mut word = [0; $size];
                word.copy_from_slice(&bytes[..$size]);
                Self::from_le_bytes(word)
            }

            fn put(self, bytes: &mut [u8]) {
                bytes[..$size].copy_from_slice(&self.to_le_bytes());
            }

            fn add(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }

            fn multiply(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }

            fn min_max(self, other: Self, argument: u64) -> Self {
                let (a, b): ($wide, $wide) = ($widen(self), $widen(other));
                $narrow(if argument & 1 == 0 { a.min(b) } else { a.max(b) })
            }

            fn divide(self, divisor: u64, _signed: bool) -> Self {
                $narrow($widen(self) / divisor as $wide)
            }
        }
    )* };
}
floats! {
    f32, f32, 4, std::convert::identity, std::convert::identity;
    f64, f64, 8, std::convert::identity, std::convert::identity;
    f16, f32, 2, f16::to_f32, f16::from_f32;
    bf16, f32, 2, bf16::to_f32, bf16::from_f32;
    E4M3, f32, 1, E4M3::to_f32, E4M3::from_f32;
    E5M2, f32, 1, E5M2::to_f32, E5M2::from_f32;
}
