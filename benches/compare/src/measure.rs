//! Runs the child processes: every contestant in turn, round after round. Other load on the machine
//! then affects all contestants alike.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::{
    callgrind::Calls,
    contestant::Contestant,
    figures::Metric,
    null,
    reports::{connections_of, number, result, unread},
    scenario::Scenario,
};
use crate::solo::{self, Workload};
use crate::storm::beside;
use mpib::failure::{Context, Failure};

/// Messages in flight while work requests and instructions are counted; NCCL uses the same number.
pub(super) const DEPTH: usize = 8;
/// Bytes of a message of a large transfer.
pub(super) const BULK: usize = 512 << 10;
/// How many small messages are timed beside those.
const BESIDE: u64 = 300;
/// Groups of messages in two runs. The difference between the runs excludes the start.
const GROUPS: [u64; 2] = [100, 600];

/// What to measure.
pub(super) struct Work<'a> {
    pub(super) contestants: &'a [Contestant],
    pub(super) softverbs: &'a Path,
    pub(super) rounds: u32,
    pub(super) time: Duration,
    pub(super) connections: u32,
    pub(super) instructions: bool,
}

/// One run of both ends in one process, of messages of 8 bytes.
#[derive(Clone, Copy)]
pub(super) struct Solo {
    pub(super) workload: Workload,
    pub(super) size: usize,
    pub(super) depth: usize,
    /// Connections, which take turns.
    pub(super) connections: usize,
    pub(super) groups: u64,
    pub(super) repeat: u32,
    /// The size of the messages of a second connection, whose rails have their rates.
    pub(super) bulk: Option<usize>,
}

impl Solo {
    /// One group of messages of 8 bytes.
    pub(super) const MESSAGES: Self = Self {
        workload: Workload::Messages,
        size: 8,
        depth: DEPTH,
        connections: 1,
        groups: 1,
        repeat: 1,
        bulk: None,
    };
}

/// Instructions of one message, or of one call.
pub(super) struct Instructions {
    pub(super) plugin: f64,
    pub(super) with_verbs: f64,
}

/// The results of one scenario: by metric and contestant, one value per round.
pub(super) struct Samples {
    pub(super) scenario: Scenario,
    pub(super) values: BTreeMap<Metric, Vec<Vec<f64>>>,
}

impl Samples {
    pub(super) fn add(&mut self, metric: Metric, contestant: usize, contestants: usize, value: f64) {
        self.values.entry(metric).or_insert_with(|| vec![Vec::new(); contestants])[contestant].push(value);
    }
}

/// All scenarios, and notes on what could not be measured.
pub(super) struct Measured {
    pub(super) samples: Vec<Samples>,
    pub(super) notes: Vec<String>,
}

/// Measures everything.
pub(super) fn all(work: &Work<'_>, scenarios: &[Scenario]) -> Result<Measured, Failure> {
    let mut notes = Vec::new();
    let valgrind = work.instructions && has_valgrind();
    if work.instructions && !valgrind {
        notes.push("instructions: not available, valgrind is not installed".to_owned());
    }
    let mut samples: Vec<_> =
        scenarios.iter().map(|s| Samples { scenario: *s, values: BTreeMap::new() }).collect();
    let bar = bar(scenarios.len() * work.contestants.len() * (work.rounds as usize + 1));
    for round in 0..work.rounds {
        for of in &mut samples {
            for index in in_turn(work.contestants.len(), round) {
                bar.set_message(format!("{}, {}", of.scenario.name, work.contestants[index].name));
                if of.scenario.null {
                    null::timed(work, of, index)?;
                } else {
                    timed(work, of, index)?;
                }
                bar.inc(1);
            }
        }
    }
    for of in &mut samples {
        for index in 0..work.contestants.len() {
            if of.scenario.null && valgrind {
                null::counted(work, of, index)?;
            } else if !of.scenario.null && !of.scenario.unequal() && !of.scenario.busy {
                // Counts depend neither on rates nor on load.
                counted(work, of, index, valgrind)?;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(Measured { samples, notes })
}

/// Returns the contestants in an order that changes from round to round.
pub(super) fn in_turn(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| (i + round as usize) % count)
}

pub(super) fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:30}] {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Runs one contestant's part of a round.
fn timed(work: &Work<'_>, of: &mut Samples, index: usize) -> Result<(), Failure> {
    let count = work.contestants.len();
    let seconds = work.time.as_secs_f64().to_string();
    let perf = |args: &[&str]| -> Result<Value, Failure> {
        let mut all = vec!["--no-check", "--time", &seconds];
        all.extend(args);
        work.perf(&of.scenario, index, &all, true)
    };
    if of.scenario.busy {
        return bandwidth(work, of, index);
    }
    let connections = work.connections.to_string();
    let latency =
        perf(&["--sizes", "8,4K,64K,512K", "--ping-pong", "--depth", "2", "--connections", &connections])?;
    let at_once = ["--sizes", "8", "--time", "0.01", "--connections", &connections, "--at-once", "64"];
    let at_once = work.perf(&of.scenario, index, &at_once, true)?;
    let rates = [(8, Metric::Rate8), (32, Metric::Rate32)]
        .into_iter()
        .map(|(depth, metric)| Ok((metric, perf(&["--sizes", "8", "--depth", &depth.to_string()])?)))
        .collect::<Result<Vec<_>, Failure>>()?;

    let beside =
        work.solo(&of.scenario, index, Solo { bulk: Some(BULK), groups: BESIDE, ..Solo::MESSAGES })?;

    let micro = |value: &Value, what: &str| number(value, &["time_ns", what]).map(|ns| ns / 1e3);
    let half = result(&latency, 0)?;
    let mut add = |metric, value| of.add(metric, index, count, value);
    add(Metric::Latency, micro(half, "median")?);
    add(Metric::LatencyP99, micro(half, "p99")?);
    for (i, metric) in (1..).zip([Metric::Latency4K, Metric::Latency64K, Metric::Latency512K]) {
        add(metric, micro(result(&latency, i)?, "median")?);
    }
    for (metric, report) in &rates {
        let one = result(report, 0)?;
        add(*metric, number(one, &["messages"])? / number(one, &["seconds"])?);
    }
    let made = connections_of(&latency)?;
    add(Metric::Connections, number(made, &["per_second"])?);
    add(Metric::Connections64, number(connections_of(&at_once)?, &["per_second"])?);
    add(Metric::OpenClose, number(made, &["open_close"])? * 1e3);
    add(Metric::BesideBulk, beside.nanoseconds / 1e3);
    add(Metric::BesideBulkP99, beside.p99.ok_or_else(|| unread("a run beside bulk has no p99"))? / 1e3);
    for (metric, what) in [(Metric::MemoryResident, "resident"), (Metric::MemoryPrivate, "private")] {
        let both = number(made, &["memory", what])? + number(made, &["peer_memory", what])?;
        add(metric, both / 2.0 / 1024.0);
    }
    bandwidth(work, of, index)
}

/// Measures the bandwidth of one contestant.
fn bandwidth(work: &Work<'_>, of: &mut Samples, index: usize) -> Result<(), Failure> {
    let (count, scenario) = (work.contestants.len(), of.scenario);
    let seconds = work.time.as_secs_f64().to_string();
    let sizes = "4K,64K,512K,1M,16M,256M";
    let args = ["--no-check", "--time", &seconds, "--sizes", sizes, "--memory", "512M"];
    let cores =
        if scenario.busy { thread::available_parallelism().tool("count the cores")?.get() } else { 0 };
    let report = beside(cores, || work.perf(&scenario, index, &args, true))?;
    let metrics = [
        Metric::Bandwidth4K,
        Metric::Bandwidth64K,
        Metric::Bandwidth512K,
        Metric::Bandwidth1M,
        Metric::Bandwidth16M,
        Metric::Bandwidth256M,
    ];
    for (i, metric) in metrics.into_iter().enumerate() {
        let found = number(result(&report, i)?, &["gigabytes_per_second"])?;
        of.add(metric, index, count, found);
        if metric == Metric::Bandwidth16M && scenario.unequal() {
            of.add(Metric::OfSum, index, count, found / scenario.sum() * 100.0);
        }
    }
    Ok(())
}

/// Measures what is the same in every run.
fn counted(work: &Work<'_>, of: &mut Samples, index: usize, valgrind: bool) -> Result<(), Failure> {
    let count = work.contestants.len();
    let sizes = [
        (8, [Metric::WorkRequests8, Metric::Doorbells8, Metric::Completions8]),
        (64 << 10, [Metric::WorkRequests64K, Metric::Doorbells64K, Metric::Completions64K]),
    ];
    for (size, metrics) in sizes {
        let counts = work.solo(&of.scenario, index, Solo { size, groups: 1000, ..Solo::MESSAGES })?;
        let verbs = counts.verbs.ok_or_else(|| unread("the plugin's libibverbs is not softverbs"))?;
        let each = |n: u64| n as f64 / counts.messages.max(1) as f64;
        // Receives are work requests, too.
        let values = [verbs.work_requests + verbs.receives, verbs.doorbells, verbs.completions];
        for (metric, value) in metrics.into_iter().zip(values) {
            of.add(metric, index, count, each(value));
        }
    }
    if valgrind {
        let counted = work.instructions(&of.scenario, index, Solo::MESSAGES)?;
        of.add(Metric::InstructionsAll, index, count, counted.with_verbs);
    }
    Ok(())
}

impl Work<'_> {
    /// Runs `mpib perf --json` with these options; returns its document. Without `rated`, the rails
    /// are as fast as the machine.
    pub(super) fn perf(
        &self,
        scenario: &Scenario,
        index: usize,
        args: &[&str],
        rated: bool,
    ) -> Result<Value, Failure> {
        let command = self.perf_command(scenario, index, args)?;
        let (_, out) = self.child(command, scenario, &self.contestants[index], rated)?;
        serde_json::from_str(&out).map_err(|e| unread(&e.to_string()))
    }

    /// Runs `mpib perf --json` with these options; returns its document, even if the run failed.
    pub(super) fn perf_document(
        &self,
        scenario: &Scenario,
        index: usize,
        args: &[&str],
    ) -> Result<Value, Failure> {
        let command = self.perf_command(scenario, index, args)?;
        let ended = self.run(command, scenario, &self.contestants[index], true)?;
        serde_json::from_str(&ended.out).map_err(|e| unread(&format!("{e}: {}", ended.err)))
    }

    /// Prepares `mpib perf --json` with these options.
    fn perf_command(&self, scenario: &Scenario, index: usize, args: &[&str]) -> Result<Command, Failure> {
        let one = &self.contestants[index];
        // "make build" and cargo put both programs into one folder.
        let exe = env::current_exe().tool("find this program's file")?.with_file_name("mpib");
        let mut command = Command::new(exe);
        command.args(["perf", "--json", "--plugin"]).arg(&one.plugin).args(args);
        if let Some(table) = &one.table {
            command.args(["--table", table]);
        }
        if let Some(abi) = one.abi {
            command.args(["--abi", &abi.to_string()]);
        }
        if one.merges(scenario) {
            command.args(["--merge", "0,1"]);
        }
        Ok(command)
    }

    /// Runs both ends in one process.
    pub(super) fn solo(&self, scenario: &Scenario, index: usize, run: Solo) -> Result<solo::Counts, Failure> {
        let exe = env::current_exe().tool("find this program's file")?;
        self.solo_of(Command::new(exe), scenario, index, run)
    }

    /// Counts the instructions of a run, as the difference between two lengths of it.
    pub(super) fn instructions(
        &self,
        scenario: &Scenario,
        index: usize,
        run: Solo,
    ) -> Result<Instructions, Failure> {
        let plugin = fs::canonicalize(&self.contestants[index].plugin).tool("find the plugin's file")?;
        let plugin = plugin.to_string_lossy();
        let exe = env::current_exe().tool("find this program's file")?;
        let dir = tempfile::tempdir().tool("make a temporary folder")?;
        let output = dir.path().join("calls");
        let mut sums = [(0, 0, 0); 2];
        for (sum, groups) in sums.iter_mut().zip(GROUPS) {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--tool=callgrind", "--collect-atstart=no"]);
            // Only messages are counted: the handshake polls a different number of times in each
            // run.
            command.arg(format!("--toggle-collect={}", run.workload.function()));
            command.arg(format!("--callgrind-out-file={}", output.display())).arg(&exe);
            let counts = self.solo_of(command, scenario, index, Solo { groups, ..run })?;
            let text = fs::read(&output).tool("read callgrind's output")?;
            let calls = Calls::parse(&String::from_utf8_lossy(&text));
            let calls = calls.ok_or_else(|| unread("callgrind's output"))?;
            let all = calls.between(&exe.to_string_lossy(), &plugin);
            *sum = (all, calls.between(&plugin, "/libibverbs.so.1"), counts.messages);
        }
        let [(all, verbs, messages), (more, more_verbs, more_messages)] = sums;
        if more <= all {
            let function = run.workload.function();
            return Err(unread(&format!("callgrind counted nothing: {function} is not in this program")));
        }
        let each = |few: u64, many: u64| (many as f64 - few as f64) / (more_messages - messages) as f64;
        let with_verbs = each(all, more);
        Ok(Instructions { plugin: with_verbs - each(verbs, more_verbs), with_verbs })
    }

    /// Runs both ends in one process with a command that ends with this program's file.
    fn solo_of(
        &self,
        mut command: Command,
        scenario: &Scenario,
        index: usize,
        run: Solo,
    ) -> Result<solo::Counts, Failure> {
        let one = &self.contestants[index];
        let dir = tempfile::tempdir().tool("make a temporary folder")?;
        let counts = dir.path().join("counts");
        command.arg(solo::COMMAND).arg("--plugin").arg(&one.plugin);
        command.args(["--version", &one.check()?.to_string(), "--groups", &run.groups.to_string()]);
        command.args(["--size", &run.size.to_string(), "--depth", &run.depth.to_string()]);
        if let Some(bulk) = run.bulk {
            command.args(["--bulk", &bulk.to_string()]);
        } else {
            command.args(["--workload", run.workload.name(), "--repeat", &run.repeat.to_string()]);
            command.args(["--connections", &run.connections.to_string()]);
        }
        command.arg("--output").arg(&counts);
        if let Some(table) = &one.table {
            command.args(["--table", table]);
        }
        if one.merges(scenario) {
            command.args(["--merge", "0,1"]);
        }
        if scenario.null {
            command.arg("--null");
        }
        self.child(command, scenario, one, run.bulk.is_some())?;
        let text = fs::read_to_string(&counts).tool("read what was counted")?;
        serde_json::from_str(&text).tool("read what was counted")
    }
}

fn has_valgrind() -> bool {
    let out = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    out.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_begins_changes() {
        let order = |round| in_turn(3, round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(5)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
