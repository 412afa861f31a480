//! Sizes, rates and times with their units.
//!
//! Memory and messages have binary units (MiB), rates and the bytes that rates count have decimal
//! ones (MB/s, GB/s, Gb/s). A row of a table has amounts of one of the two only.

use indicatif::{BinaryBytes, DecimalBytes};

/// Formats 512 B, 4 KiB, 1536 KiB, 4095 B: exact, in the largest binary unit that divides it.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut value = bytes;
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", UNITS[unit])
}

/// Formats 1 pair, 2 pairs.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Formats an amount with a binary unit: 1.91 MiB.
pub fn binary(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// Formats an amount with a decimal unit: 2.00 MB.
pub fn decimal(bytes: u64) -> String {
    DecimalBytes(bytes).to_string()
}

/// Formats bytes per second: 120.40 MB/s.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", decimal(bytes_per_second as u64))
}

/// Formats the rate of a port: 100 Gb/s, 2.5 Gb/s.
pub fn port_rate(mbps: impl Into<f64>) -> String {
    format!("{} Gb/s", mbps.into() / 1000.0)
}

/// Formats GB/s or Gb/s without the unit, with three significant digits or more.
pub fn giga(value: f64) -> String {
    let digits = if value >= 0.1 { 3 } else { 5 };
    format!("{value:.digits$}")
}

/// Formats nanoseconds with a unit and at least three digits.
pub fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// Formats a number with four significant digits.
pub fn significant(number: f64) -> String {
    match number.abs() {
        n if n >= 1000.0 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.1}"),
        n if n >= 10.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// Formats a number with three digits and the prefix of its unit: `999`, `1.23k`, `45.6M`.
pub fn short(n: f64) -> String {
    let mut value = n.max(0.0);
    for unit in ["", "k", "M", "G", "T", "P"] {
        let digits = match value {
            _ if unit.is_empty() => 0,
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        if value < 999.5 {
            return format!("{value:.digits$}{unit}");
        }
        value /= 1e3;
    }
    format!("{value:.0}E")
}

/// Formats a part of a whole in percent: 66.7 %.
pub fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{share:.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(8), "8 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(3 << 19), "1536 KiB");
        assert_eq!(size(4095), "4095 B");
        assert_eq!(size(0), "0 B");
    }

    #[test]
    fn amounts_and_rates_have_a_unit() {
        assert_eq!([0, 999, 2_000_000].map(decimal), ["0 B", "999 B", "2.00 MB"]);
        assert_eq!([1023, 2_000_000].map(binary), ["1023 B", "1.91 MiB"]);
        assert_eq!(rate(120_400_000.7), "120.40 MB/s");
        assert_eq!([100_000, 2_500].map(port_rate), ["100 Gb/s", "2.5 Gb/s"]);
        assert_eq!([5.9961, 0.00237].map(giga), ["5.996", "0.00237"]);
        assert_eq!([(2, 3), (0, 0)].map(|(part, whole)| percent(part, whole)), ["66.7 %", "0.0 %"]);
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let times = [999, 1_500, 2_500_000, 3_210_000_000];
        assert_eq!(times.map(duration), ["999 ns", "1.5 us", "2.5 ms", "3.21 s"]);
    }

    #[test]
    fn numbers_have_four_digits_or_less() {
        assert_eq!(
            [12345.6, 123.45, 12.345, 1.23456, 0.1].map(significant),
            ["12346", "123.5", "12.35", "1.235", "0.100"].map(String::from)
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        for (n, text) in [
            (0.0, "0"),
            (-1.0, "0"),
            (999.4, "999"),
            (999.5, "1.00k"),
            (1_234.0, "1.23k"),
            (9_994.0, "9.99k"),
            (9_996.0, "10.0k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (45_600_000_000.0, "45.6G"),
            (1e18, "1E"),
        ] {
            assert_eq!(short(n), text, "{n}");
        }
    }
}
