//! The two floats of eight bits, as the OCP specification and CUDA's saturating conversion have them.

/// A float of eight bits with four bits of exponent and three of mantissa; it has no infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E4M3(pub u8);

/// A float of eight bits with five bits of exponent and two of mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E5M2(pub u8);

/// The numbers of a format.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// The bits of the largest finite number.
    largest: u8,
    nan: u8,
    /// The bits of infinity, if the format has it. The bits above it are no numbers.
    infinity: Option<u8>,
}

const E4M3_FORMAT: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7e, nan: 0x7f, infinity: None };
const E5M2_FORMAT: Format =
    Format { mantissa_bits: 2, bias: 15, largest: 0x7b, nan: 0x7f, infinity: Some(0x7c) };

impl Format {
    fn widen(&self, bits: u8) -> f32 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let magnitude = bits & 0x7f;
        if Some(magnitude) == self.infinity {
            return sign * f32::INFINITY;
        }
        if magnitude > self.largest {
            return f32::NAN;
        }
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let fraction = f32::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let hidden = if exponent == 0 { 0.0 } else { (1 << self.mantissa_bits) as f32 };
        let scale = exponent.max(1) - self.bias - self.mantissa_bits as i32;
        sign * (hidden + fraction) * (scale as f32).exp2()
    }

    /// Rounds to the nearest number, ties to even. What is too large becomes the largest number.
    fn narrow(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let value = value.abs();
        if value >= self.widen(self.largest) {
            return sign | self.largest;
        }
        // The exponent of a number below the smallest normal one is that of the smallest.
        let exponent = (value.to_bits() >> 23) as i32 - 127;
        let exponent = exponent.max(1 - self.bias);
        let unit = ((exponent - self.mantissa_bits as i32) as f32).exp2();
        // At most 2^(mantissa_bits + 1). A carry of the rounding moves on into the exponent.
        let units = (value / unit).round_ties_even() as u32;
        let below = (exponent + self.bias - 1) as u32;
        sign | ((below << self.mantissa_bits) + units) as u8
    }
}

macro_rules! conversions {
    ($($type:ident, $format:ident;)*) => { $(
        impl $type {
            /// Returns the number.
            pub fn to_f32(self) -> f32 {
                $format.widen(self.0)
            }

            /// Rounds a number to the nearest, ties to even; a number that is too large becomes
            /// the largest.
            pub fn from_f32(value: f32) -> Self {
                Self($format.narrow(value))
            }

            /// Returns the byte's number.
            pub const fn from_le_bytes(bytes: [u8; 1]) -> Self {
                Self(bytes[0])
            }

            /// Returns the number's byte.
            pub const fn to_le_bytes(self) -> [u8; 1] {
                [self.0]
            }
        }
    )* };
}
conversions! {
    E4M3, E4M3_FORMAT;
    E5M2, E5M2_FORMAT;
}
