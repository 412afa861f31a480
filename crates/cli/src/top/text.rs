//! Numbers and names in few columns.

use mpib_host_view::{Connection, Count, Port, Rail};

pub(super) use crate::output::units::short;

/// Formats a rate of bytes: `12.3GB/s`, and `-` without a rate.
pub(super) fn rate(bytes_per_second: Option<f64>) -> String {
    bytes_per_second.map_or("-".into(), |rate| short(rate) + "B/s")
}

/// Formats a part of a whole in percent; `-` without a whole.
pub(super) fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.0}%", part / whole * 100.0) } else { "-".into() }
}

/// Formats a time in ms: `0.6ms`, `34ms`, `5.8s`.
pub(super) fn time(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1}ms"),
        ms if ms < 1_000.0 => format!("{ms:.0}ms"),
        ms => format!("{:.1}s", ms / 1e3),
    }
}

/// Formats for how long a connection has waited: `72s`, `12m`; `-` below a second.
pub(super) fn waited(ms: Option<u64>) -> String {
    match ms.map_or(0, |ms| ms / 1_000) {
        0 => "-".into(),
        s @ 1..1_000 => format!("{s}s"),
        s @ 1_000..60_000 => format!("{}m", s / 60),
        s => format!("{}h", s / 3_600),
    }
}

/// Returns the time of day (UTC) of a time in ms since 1970.
pub(super) fn clock(ms: u64) -> String {
    let s = ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// Most rails whose shares are listed one by one.
const LISTED: usize = 4;

/// Formats the rails' shares of a sender's bytes in percent: `67/33`; of many rails the least and
/// the greatest: `11-14`. `x` is a rail that is given up, `2x` are two of many. A receiver does not
/// know the bytes of its rails: `-`.
pub(super) fn shares(c: &Connection) -> String {
    let weight = |rail: &Rail| match (rail.bytes_per_second, rail.bytes) {
        (Some(rate), _) if c.bytes_per_second.is_some_and(|all| all > 0.0) => rate,
        (_, bytes) => bytes.map_or(0.0, |Count(bytes)| bytes as f64),
    };
    let whole: f64 = c.rails.iter().map(weight).sum();
    let percent = |weight: f64| match whole > 0.0 {
        true => format!("{:.0}", weight / whole * 100.0),
        false => "-".to_owned(),
    };
    if c.rails.len() <= LISTED {
        let share = |rail: &Rail| match rail.given_up_at_ms {
            Some(_) => "x".to_owned(),
            None => percent(weight(rail)),
        };
        return c.rails.iter().map(share).collect::<Vec<_>>().join("/");
    }
    let mut living: Vec<f64> =
        c.rails.iter().filter(|rail| rail.given_up_at_ms.is_none()).map(weight).collect();
    living.sort_by(f64::total_cmp);
    let range = match (living.first(), living.last()) {
        (Some(least), Some(greatest)) if whole > 0.0 => {
            Some(format!("{}-{}", percent(*least), percent(*greatest)))
        }
        (Some(_), _) => Some("-".to_owned()),
        _ => None,
    };
    let dead = c.rails.len() - living.len();
    let dead = (dead > 0).then(|| format!("{dead}x"));
    range.into_iter().chain(dead).collect::<Vec<_>>().join("/")
}

/// Returns the episodes of a port, and the mean of their stalls.
pub(super) fn episodes(port: &Port) -> (String, String) {
    let episodes = port.counts.episodes.values().copied().sum::<Count>().0;
    let mean = match episodes {
        0 => "-".into(),
        n => time(port.counts.stalls.sum_ms / n as f64),
    };
    (episodes.to_string(), mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(
            (clock(86_400_000 + 3_723_000), time(0.64), time(5_840.0)),
            ("01:02:03".into(), "0.6ms".into(), "5.8s".into())
        );
    }
}
