//! The results of a run, as text and as JSON.

use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{args::Plan, rails::RailBytes, sizes::human};
use crate::failure::Failure;
use mpib::device::Device;

/// Times from an accepted isend to its completion, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) min: u64,
    pub(crate) median: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Times {
    pub(super) fn of(times: &Histogram<u64>) -> Self {
        Self {
            min: times.min(),
            median: times.value_at_quantile(0.5),
            p90: times.value_at_quantile(0.9),
            p99: times.value_at_quantile(0.99),
            max: times.max(),
        }
    }
}

/// The result of one size through one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SizeResult {
    /// Version of the table.
    pub(crate) abi: u32,
    /// Bytes of each message.
    pub(crate) size: usize,
    /// Messages measured, both directions together.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Time in which they moved, without filling and checking.
    pub(crate) seconds: f64,
    /// 10^9 bytes per second.
    pub(crate) gigabytes_per_second: f64,
    /// Groups in flight: the requested number, or what memory and version allow.
    pub(crate) depth: usize,
    /// Times of single messages.
    pub(crate) time_ns: Times,
    /// Whether every byte was compared (a wrong one ends the run).
    pub(crate) checked: bool,
    /// Bytes that the first end's rails sent, without the warm-up; absent if nothing counts them.
    pub(crate) rails: Option<Vec<RailBytes>>,
    /// Bytes that the second end's rails sent.
    pub(crate) peer_rails: Option<Vec<RailBytes>>,
    /// The stages of a run with a fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stages: Vec<Stage>,
}

/// The stages of a run in which a rail fails and returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StageKind {
    Before,
    Fails,
    Without,
    Returns,
    After,
}

impl StageKind {
    /// Returns the name in the table.
    fn name(self, rail: &str) -> String {
        match self {
            Self::Before | Self::After => "all rails".into(),
            Self::Fails => format!("{rail} fails"),
            Self::Without => format!("without {rail}"),
            Self::Returns => format!("{rail} returns"),
        }
    }
}

/// One stage of a run in which a rail fails and returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stage {
    pub(crate) kind: StageKind,
    /// Duration, filling and checking included. That of `Returns` is from the repair to data on
    /// the rail.
    pub(crate) seconds: f64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// 10^9 bytes per second, without filling and checking.
    pub(crate) gigabytes_per_second: f64,
    /// Longest time without a completed send, in nanoseconds.
    pub(crate) stall_ns: u64,
    /// Bytes that the first end's rails sent.
    pub(crate) rails: Option<Vec<RailBytes>>,
}

impl Stage {
    /// Returns whether the rail has returned before this stage.
    pub(crate) fn is_after(&self) -> bool {
        self.kind == StageKind::After
    }

    /// Returns the bytes that a rail sent.
    pub(super) fn carried(&self, rail: &str) -> u64 {
        self.rails.iter().flatten().filter(|of| of.name == rail).map(|of| of.bytes).sum()
    }
}

/// The results of one table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AbiReport {
    pub(crate) abi: u32,
    /// The table's `name`.
    pub(crate) net: String,
    pub(crate) device: Option<Device>,
    /// Present with `--connections`.
    pub(crate) connections: Option<Connections>,
    pub(crate) results: Vec<SizeResult>,
}

/// The result for further connections. Memory is the growth per connection in bytes: `resident` in
/// all, `private` without memory that is shared with other processes or a file (such as softverbs'
/// queues).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Connections {
    pub(crate) count: usize,
    /// How many were made at a time.
    pub(crate) at_once: usize,
    pub(crate) seconds: f64,
    pub(crate) per_second: f64,
    /// At the end that connects.
    pub(crate) memory: PerConnection,
    /// At the end that accepts.
    pub(crate) peer_memory: PerConnection,
    /// Seconds to open and close one connection, while both ends poll without a pause: the median.
    pub(crate) open_close: f64,
}

/// Bytes for one connection at one end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerConnection {
    pub(crate) resident: f64,
    pub(crate) private: f64,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) mpib: &'static str,
    pub(crate) plugin: PathBuf,
    pub(crate) mode: &'static str,
    pub(crate) plan: Option<Plan>,
    pub(crate) tables: Vec<AbiReport>,
    pub(crate) ok: bool,
    pub(crate) error: Option<ErrorReport>,
}

/// A failure with its exit code.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorReport {
    #[serde(flatten)]
    pub(crate) failure: Failure,
    pub(crate) exit_code: u8,
}

impl From<Failure> for ErrorReport {
    fn from(failure: Failure) -> Self {
        let exit_code = failure.kind.exit_code();
        Self { failure, exit_code }
    }
}

/// Formats nanoseconds with a unit and at least three digits.
fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// Formats `sout 67 MB (66.7 %)` for each rail.
fn shares(rails: Option<&[RailBytes]>) -> String {
    let Some(rails) = rails else { return "-".into() };
    let total: u64 = rails.iter().map(|r| r.bytes).sum();
    let one = |rail: &RailBytes| {
        let share = if total == 0 { 0.0 } else { rail.bytes as f64 * 100.0 / total as f64 };
        format!("{} {} ({share:.1} %)", rail.name, decimal(rail.bytes))
    };
    rails.iter().map(one).collect::<Vec<_>>().join("  ")
}

/// Formats bytes with a decimal unit, as rates have.
pub(crate) fn decimal(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// Formats GB/s with three significant digits.
fn rate(value: f64) -> String {
    let digits = if value >= 0.1 { 3 } else { 5 };
    format!("{value:.digits$}")
}

/// Returns the line above a table.
pub(super) fn title(abi: u32, net: &str, device: Option<&Device>, plan: &Plan) -> String {
    let device = match device {
        Some(d) => format!(", device {:?} of {} Mb/s", d.name, d.speed),
        None => String::new(),
    };
    let direction = match (plan.ping_pong, plan.bidirectional) {
        (true, _) => "there and back (half round trips)",
        (false, true) => "both directions",
        (false, false) => "one direction",
    };
    let group = if plan.optional {
        "1 optional receive".into()
    } else if plan.receives == 1 {
        "1 receive".into()
    } else {
        format!("{} receives", plan.receives)
    };
    let fault = plan.fault.as_ref().map_or(String::new(), |fault| {
        let sizes: Vec<_> = plan.sizes.iter().map(|size| human(*size as u64)).collect();
        format!("; {} messages of {} in flight, {} and back", plan.depth, sizes.join(", "), fault.script())
    });
    let check = if plan.check { "every byte checked" } else { "bytes not checked" };
    format!("v{abi}: {net}{device}; {direction}, {group} a group, {check}{fault}")
}

/// Returns the line for `--connections`.
pub(super) fn connections(c: &Connections) -> String {
    let kib = |bytes: f64| bytes / 1024.0;
    format!(
        "{} connections, {} at a time: {:.0} per second, {:.2} ms to open and close one; resident for each {:.1} KiB \
         ({:.1} private) here, {:.1} KiB ({:.1} private) there",
        c.count,
        c.at_once,
        c.per_second,
        c.open_close * 1e3,
        kib(c.memory.resident),
        kib(c.memory.private),
        kib(c.peer_memory.resident),
        kib(c.peer_memory.private),
    )
}

/// Returns the names of the columns.
pub(super) fn head() -> String {
    format!(
        "{:>10}  {:>6}  {:>10}  {:>10}  {:>8}  bytes sent by rail",
        "size", "depth", "median", "p99", "GB/s"
    )
}

/// Returns the names of the columns of a run with a fault.
pub(super) fn stage_head() -> String {
    format!(
        "{:>14}  {:>8}  {:>11}  {:>8}  {:>10}  bytes sent by rail",
        "stage", "time", "in messages", "GB/s", "stall"
    )
}

/// Returns one line for a stage in which the rail takes part.
pub(super) fn stage(stage: &Stage, rail: &str) -> String {
    format!(
        "{:>14}  {:>8}  {:>11}  {:>8}  {:>10}  {}",
        stage.kind.name(rail),
        duration((stage.seconds * 1e9) as u64),
        decimal(stage.bytes),
        rate(stage.gigabytes_per_second),
        duration(stage.stall_ns),
        shares(stage.rails.as_deref()),
    )
}

/// Returns one line of the table.
pub(super) fn row(result: &SizeResult) -> String {
    let rails = shares(result.rails.as_deref());
    format!(
        "{:>10}  {:>6}  {:>10}  {:>10}  {:>8}  {rails}",
        human(result.size as u64),
        result.depth,
        duration(result.time_ns.median),
        duration(result.time_ns.p99),
        rate(result.gigabytes_per_second),
    )
}

/// Returns the line below a table: the totals of all sizes.
pub(super) fn total(results: &[SizeResult]) -> String {
    let mut sums: Vec<RailBytes> = Vec::new();
    for rail in results.iter().filter_map(|r| r.rails.as_ref()).flatten() {
        match sums.iter_mut().find(|sum| sum.name == rail.name) {
            Some(sum) => sum.bytes += rail.bytes,
            None => sums.push(rail.clone()),
        }
    }
    let counted = results.iter().any(|r| r.rails.is_some());
    let bytes = results.iter().map(|r| r.bytes).sum();
    let rails = shares(counted.then_some(&sums));
    format!("{:>10}  {:>42}  {rails}", "all", format!("{} in messages", decimal(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(rails: Option<Vec<RailBytes>>) -> SizeResult {
        SizeResult {
            abi: 8,
            size: 1 << 20,
            messages: 3,
            bytes: 3 << 20,
            seconds: 0.5,
            gigabytes_per_second: 5.996,
            depth: 8,
            time_ns: Times { min: 1, median: 1_500, p90: 2, p99: 2_500_000, max: 3 },
            checked: true,
            rails,
            peer_rails: None,
            stages: Vec::new(),
        }
    }

    fn rail(name: &str, bytes: u64) -> RailBytes {
        RailBytes { name: name.into(), bytes }
    }

    #[test]
    fn a_row_says_time_rate_and_shares() {
        let row = row(&result(Some(vec![rail("sout", 2_000_000), rail("sup", 1_000_000)])));
        assert_eq!(
            row,
            "     1 MiB       8      1.5 us      2.5 ms     5.996  sout 2.0 MB (66.7 %)  sup 1.0 MB (33.3 %)"
        );
    }

    #[test]
    fn nothing_counted_is_a_dash_not_a_zero() {
        assert!(row(&result(None)).ends_with("  -"));
        assert!(total(&[result(None)]).ends_with("  -"));
    }

    #[test]
    fn the_total_adds_up_by_name() {
        let line = total(&[result(Some(vec![rail("a", 1), rail("b", 3)])), result(Some(vec![rail("a", 4)]))]);
        assert!(line.ends_with("a 5 B (62.5 %)  b 3 B (37.5 %)"), "{line}");
    }
}
