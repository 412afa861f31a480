//! Rates and times with units, in exact arithmetic.

/// Units of a rate in bits per second, longest suffix first.
const RATES: [(&str, u64); 8] = [
    ("KB", 8_000),
    ("MB", 8_000_000),
    ("GB", 8_000_000_000),
    ("Kb", 1_000),
    ("Mb", 1_000_000),
    ("Gb", 1_000_000_000),
    ("B", 8),
    ("b", 1),
];
/// Units of a time in nanoseconds, longest suffix first.
const TIMES: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses bytes per second from `4GB`, `12.5GB/s` or `100Gb`: B means bytes, b means bits.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let expected = "expected a rate per second above zero with its unit, like 4GB (bytes) or 100Gb (bits)";
    let bits = scaled(text.strip_suffix("/s").unwrap_or(text), &RATES).ok_or(expected)?;
    match bits / 8 {
        0 => Err(expected.to_owned()),
        bytes => u64::try_from(bytes).map_err(|_| expected.to_owned()),
    }
}

/// Parses nanoseconds from `2us`, `500ns` or `1.5ms`.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
    let expected = "expected a time with its unit, like 2us, 500ns or 1ms";
    let time = scaled(text, &TIMES).ok_or(expected)?;
    u64::try_from(time).map_err(|_| expected.to_owned())
}

/// Parses a decimal number with a unit, rounded down. Returns `None` for other text or too many
/// digits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u128> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let (whole, part) = number.trim_end().split_once('.').unwrap_or((number.trim_end(), "0"));
    let digits =
        |s: &str| (!s.is_empty() && s.len() <= 18 && s.bytes().all(|b| b.is_ascii_digit())).then_some(());
    digits(whole).and(digits(part))?;
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = part.parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    // At most 18 digits each and a unit below 2^33: no step exceeds 2^128.
    Some(whole * u128::from(unit) + fraction * u128::from(unit) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, bytes) in [
            ("4GB", 4_000_000_000),
            ("12.5GB/s", 12_500_000_000),
            ("100Gb", 12_500_000_000),
            ("2.5Gb/s", 312_500_000),
            ("1KB", 1000),
            ("8b", 1),
            ("999 MB", 999_000_000),
        ] {
            assert_eq!(rate(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "4",
            "GB",
            "0GB",
            "0.0GB",
            "7b",
            "-1GB",
            "+1GB",
            "1e9B",
            "4gb",
            "1..2GB",
            ".5GB",
            "1_0GB",
            "9999999999999999999GB",
            "999999999999999999GB",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ns) in
            [("0ns", 0), ("2us", 2000), ("1.5ms", 1_500_000), ("1s", 1_000_000_000), ("0.4ns", 0)]
        {
            assert_eq!(nanoseconds(text), Ok(ns), "{text}");
        }
        for text in ["", "2", "us", "-1us", "1h", "9999999999999999999s", "999999999999999999s"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }
}
