//! The results of a run, as text and as JSON.

use std::{path::PathBuf, time::Duration};

use hdrhistogram::Histogram;
use mpib_host_view::{Rail, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    plan::{Operation, Plan},
    rails::RailBytes,
};
use crate::device::Device;
use crate::failure::Failure;
use crate::output::{
    columns::{Column, Kind as ColumnKind, fit},
    document::ErrorReport,
    table::paragraph,
    units::{binary, duration, giga, percent, port_rate, size},
};

/// Times from an accepted isend to its completion, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// 10^9 bytes per second of one direction: bus bandwidth as nccl-tests count it.
    #[serde(default)]
    pub(crate) bus_gigabytes_per_second: f64,
    /// Messages of both directions per second.
    #[serde(default)]
    pub(crate) messages_per_second: f64,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "a sentence here would be one of the schema")]
pub enum StageKind {
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "a sentence here would be one of the schema")]
pub struct Stage {
    pub kind: StageKind,
    /// Duration, filling and checking included. That of `Returns` is from the repair to data on
    /// the rail.
    pub seconds: f64,
    pub messages: u64,
    pub bytes: u64,
    /// 10^9 bytes per second, without filling and checking.
    pub gigabytes_per_second: f64,
    /// Longest time without a completed send, in nanoseconds.
    pub stall_ns: u64,
    /// Bytes that the first end's rails sent.
    pub rails: Option<Vec<RailBytes>>,
}

impl Stage {
    /// Returns whether the rail has returned before this stage.
    pub fn is_after(&self) -> bool {
        self.kind == StageKind::After
    }

    /// Returns the bytes that a rail sent.
    pub(super) fn carried(&self, rail: &str) -> u64 {
        self.rails.iter().flatten().filter(|of| of.name == rail).map(|of| of.bytes).sum()
    }
}

/// The results of one table.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct AbiReport {
    pub(crate) abi: u32,
    /// The table's `name`.
    pub(crate) net: String,
    pub(crate) device: Option<Device>,
    /// The GPU whose memory has this end's messages; absent: the host's.
    pub(crate) gpu: Option<i32>,
    /// Present with `--connections`.
    pub(crate) connections: Option<Connections>,
    pub(crate) results: Vec<SizeResult>,
    /// The plugin's warnings.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
    /// How long the close of the further connections took: here, and there.
    #[serde(skip)]
    pub(crate) closing: Option<[Closing; 2]>,
    /// The plugin's statistics at the end of a trial.
    #[serde(skip)]
    pub(crate) account: Account,
    /// How long after the death of the other end's process a call failed, and how.
    #[serde(skip)]
    pub(crate) survived: Option<(Duration, Failure)>,
}

/// A rail of a connection, as the plugin's statistics have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RailState {
    /// `hca:port`
    pub(crate) name: String,
    /// Message bytes that this end has posted; absent at a receiver.
    pub(crate) bytes: Option<u64>,
    /// Why the connection lacks it; absent while it is in use.
    pub(crate) missing: Option<String>,
}

/// What the plugin's statistics have of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Account {
    /// The rails of all connections.
    pub(crate) rails: Vec<RailState>,
    /// Times that a connection carried on without a rail.
    pub(crate) episodes: u64,
}

impl Account {
    /// Returns the account of this process; an empty one if the plugin has no statistics page.
    pub(super) fn of_this_process() -> Self {
        let host = Source::default().process(std::process::id()).unwrap_or_default();
        let episodes = host.failover.episodes.0;
        let connections = host.processes.into_iter().flat_map(|process| process.connections);
        let one = |rail: Rail| RailState {
            name: rail.name,
            bytes: rail.bytes.map(|count| count.0),
            missing: rail.missing,
        };
        Self { rails: connections.flat_map(|connection| connection.rails).map(one).collect(), episodes }
    }
}

/// The result for further connections. Memory is the growth per connection in bytes: `resident` in
/// all, `private` without memory that is shared with other processes or a file (such as softverbs'
/// queues).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// How long one end took to close the further connections, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Closing {
    /// All of them, one after the other.
    pub(crate) all: f64,
    /// The slowest one.
    pub(crate) longest: f64,
}

/// Bytes for one connection at one end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PerConnection {
    pub(crate) resident: f64,
    pub(crate) private: f64,
}

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    pub(crate) mpib: &'static str,
    pub(crate) plugin: PathBuf,
    pub(crate) mode: &'static str,
    pub(crate) plan: Option<Plan>,
    pub(crate) tables: Vec<AbiReport>,
    pub(crate) ok: bool,
    pub(crate) error: Option<ErrorReport>,
}

/// Formats `sout 64.00 MiB (66.7 %)` for each rail.
fn shares(rails: Option<&[RailBytes]>) -> Vec<String> {
    let Some(rails) = rails else { return vec!["-".into()] };
    let total: u64 = rails.iter().map(|r| r.bytes).sum();
    let one =
        |rail: &RailBytes| format!("{} {} ({})", rail.name, binary(rail.bytes), percent(rail.bytes, total));
    rails.iter().map(one).collect()
}

/// Returns the line above a table.
pub(super) fn title(table: &AbiReport, plan: &Plan) -> String {
    let AbiReport { abi, net, device, gpu, .. } = table;
    let device = match device {
        Some(d) => format!(", device {:?} of {}", d.name, port_rate(d.speed)),
        None => String::new(),
    };
    let direction = match (plan.ping_pong, plan.bidirectional) {
        (true, _) => "there and back (half round trips)",
        (false, true) => "both directions",
        (false, false) => "one direction",
    };
    let group: String = match plan.operation {
        Operation::Put => "puts with signals".into(),
        Operation::Signal => "signals without data".into(),
        Operation::Get => "gets".into(),
        Operation::Messages if plan.optional => "1 optional receive a group".into(),
        Operation::Messages if plan.receives == 1 => "1 receive a group".into(),
        Operation::Messages => format!("{} receives a group", plan.receives),
    };
    let fault = plan.fault.as_ref().map_or(String::new(), |fault| {
        let sizes: Vec<_> = plan.sizes.iter().map(|bytes| size(*bytes as u64)).collect();
        format!("; {} messages of {} in flight, {} and back", plan.depth, sizes.join(", "), fault.script())
    });
    let check = if plan.check { "every byte checked" } else { "bytes not checked" };
    let gpu = gpu.map_or(String::new(), |number| format!(", memory of GPU {number}"));
    paragraph(0, &format!("v{abi}: {net}{device}{gpu}; {direction}, {group}, {check}{fault}"))
}

/// Returns the line for `--connections`.
pub(super) fn connections(c: &Connections) -> String {
    let kib = |bytes: f64| bytes / 1024.0;
    paragraph(
        0,
        &format!(
            "{} connections, {} at a time: {:.0} per second, {:.2} ms to open and close one; resident for each \
             {:.1} KiB ({:.1} private) here, {:.1} KiB ({:.1} private) there",
            c.count,
            c.at_once,
            c.per_second,
            c.open_close * 1e3,
            kib(c.memory.resident),
            kib(c.memory.private),
            kib(c.peer_memory.resident),
            kib(c.peer_memory.private),
        ),
    )
}

/// Columns are this far from each other, and rails below their row are indented by twice that.
const GAP: usize = 2;
/// The columns of a size. Rows are printed one by one, so each column has the width of usual cells.
const OF_SIZE: [Column; 8] = [
    Column::new("size", 0, ColumnKind::Number(8)),
    Column::new("depth", 5, ColumnKind::Number(5)),
    Column::new("median", 1, ColumnKind::Number(8)),
    Column::new("p99", 3, ColumnKind::Number(8)),
    Column::new("GB/s", 0, ColumnKind::Number(7)),
    Column::new("Gb/s", 4, ColumnKind::Number(7)),
    Column::new("busbw", 6, ColumnKind::Number(7)),
    Column::new("messages/s", 2, ColumnKind::Number(10)),
];
/// The columns of a stage of a fault.
const OF_STAGE: [Column; 5] = [
    Column::new("stage", 0, ColumnKind::Number(14)),
    Column::new("time", 2, ColumnKind::Number(8)),
    Column::new("in messages", 3, ColumnKind::Number(11)),
    Column::new("GB/s", 0, ColumnKind::Number(7)),
    Column::new("stall", 1, ColumnKind::Number(8)),
];
/// The name of the last column, and the width that two rails take there.
const RAILS: (&str, usize) = ("bytes sent by rail", 50);

/// Returns the names of the columns of a run: with a fault those of its stages, else those of its sizes.
pub(super) fn head(plan: &Plan, width: usize) -> String {
    let names = match plan.fault {
        Some(_) => fit(&OF_STAGE, &[], width, GAP).head(),
        None => fit(&OF_SIZE, &[], width, GAP).head(),
    };
    let is_wide = names.chars().count() + GAP + RAILS.1 <= width;
    if is_wide { format!("{names}  {}\n", RAILS.0) } else { names + "\n" }
}

/// Returns the lines of a row: the rails stand at its end if there is room, else below it.
fn lines<const N: usize>(
    columns: &[Column; N],
    cells: &[String; N],
    rails: &[String],
    width: usize,
) -> String {
    let numbers = fit(columns, &[cells], width, GAP).row(cells);
    let rails = |indent: usize, width| fill(rails, width).join(&format!("\n{}", " ".repeat(indent)));
    let beside = format!("{numbers}  {}", rails(0, usize::MAX));
    if beside.chars().count() <= width {
        return beside + "\n";
    }
    let indent = 2 * GAP;
    format!("{}\n{}{}\n", numbers.trim_end(), " ".repeat(indent), rails(indent, width.saturating_sub(indent)))
}

/// Joins parts to lines of this width. A part is never broken.
fn fill(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut().filter(|line| line.chars().count() + GAP + part.chars().count() <= width) {
            Some(line) => *line += &format!("  {part}"),
            None => lines.push(part.clone()),
        }
    }
    lines
}

/// Returns the lines of a stage in which the rail takes part.
pub(super) fn stage(stage: &Stage, rail: &str, width: usize) -> String {
    let cells = [
        stage.kind.name(rail),
        duration((stage.seconds * 1e9) as u64),
        binary(stage.bytes),
        giga(stage.gigabytes_per_second),
        duration(stage.stall_ns),
    ];
    lines(&OF_STAGE, &cells, &shares(stage.rails.as_deref()), width)
}

/// Returns the lines of a size.
pub(super) fn row(result: &SizeResult, width: usize) -> String {
    let cells = [
        size(result.size as u64),
        result.depth.to_string(),
        duration(result.time_ns.median),
        duration(result.time_ns.p99),
        giga(result.gigabytes_per_second),
        giga(result.gigabytes_per_second * 8.0),
        giga(result.bus_gigabytes_per_second),
        format!("{:.0}", result.messages_per_second),
    ];
    lines(&OF_SIZE, &cells, &shares(result.rails.as_deref()), width)
}

/// Returns the last lines: the totals of all sizes.
pub(super) fn total(results: &[SizeResult], width: usize) -> String {
    let mut sums: Vec<RailBytes> = Vec::new();
    for rail in results.iter().filter_map(|r| r.rails.as_ref()).flatten() {
        match sums.iter_mut().find(|sum| sum.name == rail.name) {
            Some(sum) => sum.bytes += rail.bytes,
            None => sums.push(rail.clone()),
        }
    }
    let counted = results.iter().any(|r| r.rails.is_some());
    let bytes = binary(results.iter().map(|r| r.bytes).sum());
    let mut rails = vec![format!("{bytes} in messages")];
    rails.extend(shares(counted.then_some(&sums)));
    let mut cells = [const { String::new() }; 8];
    cells[0] = "all".into();
    lines(&OF_SIZE, &cells, &rails, width)
}

/// Returns the line that compares the best rate of one direction with the speed that the device has
/// for NCCL; nothing if it has none, or if the run does not measure rates.
pub(super) fn reached(table: &AbiReport, plan: &Plan) -> String {
    let speed = table.device.as_ref().filter(|device| device.speed > 0);
    let rates =
        table.results.iter().max_by(|a, b| a.bus_gigabytes_per_second.total_cmp(&b.bus_gigabytes_per_second));
    let (Some(device), Some(best)) = (speed, rates) else { return String::new() };
    if plan.ping_pong || plan.fault.is_some() || plan.operation != Operation::Messages {
        return String::new();
    }
    let part = best.bus_gigabytes_per_second * 8e3 / f64::from(device.speed) * 100.0;
    // Simulated ports round their speed down.
    let part = if part > 100.0 { "all".into() } else { format!("{part:.0} %") };
    let (rate, bytes) = (giga(best.bus_gigabytes_per_second), size(best.size as u64));
    let speed = port_rate(device.speed);
    paragraph(0, &format!("at best {rate} GB/s, with {bytes}: {part} of what the device can carry ({speed})"))
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
            bus_gigabytes_per_second: 5.996,
            messages_per_second: 6.0,
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

    fn plan() -> Plan {
        Plan::of(&[1 << 20], Duration::from_secs(1), Duration::from_secs(30))
    }

    #[test]
    fn a_row_says_time_rate_and_shares() {
        let row = |width| row(&result(Some(vec![rail("sout", 2 << 20), rail("sup", 1 << 20)])), width);
        assert_eq!(
            head(&plan(), 132),
            "    size  depth    median       p99     GB/s     Gb/s    busbw  messages/s  bytes sent by rail\n"
        );
        assert_eq!(
            row(132),
            "   1 MiB      8    1.5 us    2.5 ms    5.996   47.968    5.996           6  sout 2.00 MiB (66.7 %)  \
             sup 1.00 MiB (33.3 %)\n"
        );
        assert_eq!(
            head(&plan(), 80) + &row(80),
            "    size  depth    median       p99     GB/s     Gb/s    busbw  messages/s\n   \
             1 MiB      8    1.5 us    2.5 ms    5.996   47.968    5.996           6\n    \
             sout 2.00 MiB (66.7 %)  sup 1.00 MiB (33.3 %)\n"
        );
        assert_eq!(
            head(&plan(), 40) + &row(40),
            "    size    median     GB/s  messages/s\n   1 MiB    1.5 us    5.996           6\n    \
             sout 2.00 MiB (66.7 %)\n    sup 1.00 MiB (33.3 %)\n"
        );
    }

    //= perf.md: at 40 columns and more no line is longer, and no number is broken
    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let rails: Vec<RailBytes> = (0..8).map(|n| rail(&format!("rocep{n}s0f0:1"), 1 << (20 + n))).collect();
        let result = SizeResult { messages_per_second: 12_345_678.0, ..result(Some(rails)) };
        for width in 40..=200 {
            let text =
                head(&plan(), width) + &row(&result, width) + &total(std::slice::from_ref(&result), width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            for whole in ["5.996", "rocep7s0f0:1 128.00 MiB (50.2 %)", "rocep0s0f0:1 1.00 MiB (0.4 %)"] {
                assert!(text.contains(whole), "{width}: {text}");
            }
        }
    }

    //= perf.md: the last line is the part of the device's speed that was reached
    #[test]
    fn the_best_rate_is_a_part_of_what_the_device_can_carry() {
        let device = |name: &str, speed| Device {
            name: name.into(),
            speed,
            max_recvs: 1,
            ptr_support: 1,
            max_bytes: 1 << 30,
        };
        let table = |name: &str, speed| AbiReport {
            device: Some(device(name, speed)),
            results: vec![
                SizeResult { size: 8, bus_gigabytes_per_second: 0.1, ..result(None) },
                SizeResult { bus_gigabytes_per_second: 5.58, ..result(None) },
            ],
            ..AbiReport::default()
        };
        for (name, speed, said) in [
            (
                "a:1+b:1",
                48_000,
                "at best 5.580 GB/s, with 1 MiB: 93 % of what the device can carry (48 Gb/s)\n",
            ),
            (
                "a:1",
                400_000,
                "at best 5.580 GB/s, with 1 MiB: 11 % of what the device can carry (400 Gb/s)\n",
            ),
            ("a+b+c", 40_000, "at best 5.580 GB/s, with 1 MiB: all of what the device can carry (40 Gb/s)\n"),
            ("a", 0, ""),
        ] {
            assert_eq!(reached(&table(name, speed), &plan()), said);
        }
        let half = Plan { ping_pong: true, ..plan() };
        assert_eq!(reached(&table("a", 1), &half), "");
        assert_eq!(reached(&AbiReport::default(), &plan()), "");
    }

    #[test]
    fn nothing_counted_is_a_dash_not_a_zero() {
        assert!(row(&result(None), 132).ends_with("  -\n"));
        assert!(total(&[result(None)], 132).ends_with("  -\n"));
    }

    #[test]
    fn the_total_adds_up_by_name() {
        let total =
            total(&[result(Some(vec![rail("a", 1), rail("b", 3)])), result(Some(vec![rail("a", 4)]))], 132);
        assert!(total.ends_with("6.00 MiB in messages  a 5 B (62.5 %)  b 3 B (37.5 %)\n"), "{total:?}");
    }
}
