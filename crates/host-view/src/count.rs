//! Counters as JSON numbers.

use std::borrow::Cow;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// A counter of 64 bits. In JSON it is a number that a double holds exactly, because JavaScript has
/// no other numbers: beyond 2^53 it is rounded to the nearest one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct Count(pub u64);

impl Count {
    /// Returns the nearest number that a double holds exactly.
    fn rounded(self) -> u64 {
        // The conversion back saturates at 2^64 - 1, which no double holds; the largest is 2^64 - 2^11.
        match self.0 as f64 as u64 {
            u64::MAX => u64::MAX - 0x7ff,
            rounded => rounded,
        }
    }

    /// Returns the difference to an earlier reading; 0 if the counter has begun again.
    pub fn since(self, before: Self) -> u64 {
        self.0.saturating_sub(before.0)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.rounded())
    }
}

impl JsonSchema for Count {
    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "minimum": 0,
            "description": "A counter. Beyond 2^53 it is rounded to the nearest number that a double holds."
        })
    }
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= stats.md: counters are numbers that JavaScript holds
    #[test]
    fn json_has_numbers_that_a_double_holds() {
        let max = 1u64 << 53;
        for (count, json) in [
            (0, 0),
            (max, max),
            (max + 1, max),
            (max + 3, max + 4),
            (u64::MAX, u64::MAX - 0x7ff),
            (u64::MAX - 0x7ff, u64::MAX - 0x7ff),
        ] {
            let text = serde_json::to_string(&Count(count)).unwrap();
            assert_eq!(text, json.to_string());
            // A program that has only doubles prints the same number.
            assert_eq!(text.parse::<f64>().unwrap() as u128, u128::from(json));
            assert_eq!(serde_json::from_str::<Count>(&text).unwrap(), Count(json));
        }
    }
}
