//! Quantities as options have them.

use std::{ops::RangeInclusive, time::Duration};

use bytesize::ByteSize;

/// The largest number of bytes that an option takes.
pub const MOST_BYTES: usize = 1 << 40;

/// Parses a number of bytes: 4096, 64K or 64KiB, 1.5M, 1MB. K, M and G alone are powers of 1024.
pub fn bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    // The crate reads K, M and G alone as powers of 1000.
    let unit = if text.ends_with(['k', 'K', 'm', 'M', 'g', 'G']) { "iB" } else { "" };
    let bad = || format!("{text:?} is not a size; expected 4096, 64K, 1.5M, 8MiB or 1GB");
    if text.ends_with(|c: char| c.is_ascii_digit()) && text.contains('.') {
        return Err(bad());
    }
    let number = format!("{text}{unit}").parse::<ByteSize>().map_err(|_| bad())?.as_u64();
    let number = usize::try_from(number).ok().filter(|n| *n <= MOST_BYTES);
    number.ok_or_else(|| format!("{text} is more than 1024G"))
}

/// Parses a time in seconds or with a unit: 0.5, 500ms, 1m30s.
pub fn duration(text: &str, range: RangeInclusive<f64>) -> Result<Duration, String> {
    let found = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Some(humantime::parse_duration(text).map_err(|_| {
            format!("{text:?} is not a time; expected seconds (0.5) or numbers with units (500ms, 1m30s)")
        })?),
    };
    found.filter(|time| range.contains(&time.as_secs_f64())).ok_or_else(|| {
        format!("{text} is out of range; expected {} to {} seconds", range.start(), range.end())
    })
}

/// Parses the time of a measurement or a limit: up to a day.
pub fn time(text: &str) -> Result<Duration, String> {
    duration(text, 0.001..=86_400.0)
}

/// Parses the interval of a display.
pub fn interval(text: &str) -> Result<Duration, String> {
    duration(text, 0.1..=86_400.0)
}

/// Parses the number of a process.
pub fn pid(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|pid| *pid > 0);
    found.ok_or_else(|| {
        format!("{text:?} is not the number of a process; expected 1 or more, as \"ps\" shows")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_tool_prints_them() {
        for (text, number) in [
            ("4095", 4095),
            ("64K", 65_536),
            ("1.5M", 3 << 19),
            ("1MiB", 1 << 20),
            ("1536 KiB", 3 << 19),
            ("1MB", 1_000_000),
            ("8 B", 8),
            ("1024g", MOST_BYTES),
        ] {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for bad in ["", "x", "-1", "1.5", "M", "1MiBB", "1025G", "99999999999G"] {
            assert!(bytes(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, ms) in
            [("0.5", 500), ("500ms", 500), ("1s", 1000), ("1m30s", 90_000), ("86400", 86_400_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (bad, why) in [
            ("0", "out of range"),
            ("-1", "out of range"),
            ("nan", "out of range"),
            ("2d", "out of range"),
            ("x", "is not a time"),
        ] {
            assert!(time(bad).unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn processes_have_positive_numbers() {
        assert_eq!(pid("17"), Ok(17));
        for bad in ["abc", "0", "-1", "4294967296"] {
            assert!(pid(bad).unwrap_err().contains("is not the number of a process"), "{bad}");
        }
    }
}
