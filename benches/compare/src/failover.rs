//! Faults under load: one of two rails fails and returns, in each round once for each contestant.

use serde::Serialize;
use serde_json::Value;

use super::{
    contestant::Contestant,
    measure::{Work, bar, in_turn},
    reports::unread,
    scenario::FAULTY,
};
use mpib::failure::Failure;
use mpib::output::{
    table::{Table, left, paragraph, right},
    units::significant,
};
use mpib::{Stage, StageKind};

/// The faults, as text and as a script for the second rail.
const FAULTS: [(&str, &str); 2] =
    [("the link goes down, and up", "rail1:link=down"), ("packets are lost, then none", "rail1:silence")];
/// Bytes of a message. `mpib perf` keeps 8 of them in flight.
const SIZE: &str = "1M";
/// Longest wait for a completion, in seconds. `mpib perf` waits 20 s for the return of the rail.
const LIMIT: &str = "75";
/// The same for both, once [`FEW`] runs have waited for the rail until their limit.
const SHORT_LIMIT: &str = "3";
/// A contestant that stalls for longer than this, in nanoseconds, has [`FEW`] runs.
const LONG: u64 = 2_000_000_000;
const FEW: usize = 3;

/// The runs of one contestant with one fault.
#[derive(Debug, Default, Serialize)]
struct Runs {
    /// The stages of each run that survived the fault.
    survived: Vec<Vec<Stage>>,
    /// Runs that failed.
    failed: usize,
    /// Why the first run failed, or why its rail did not return.
    why: Option<String>,
}

/// All contestants with one fault.
#[derive(Debug, Serialize)]
struct Part {
    fault: &'static str,
    runs: Vec<Runs>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    mpib: &'static str,
    contestants: Vec<Contestant>,
    parts: Vec<Part>,
}

/// Runs all faults.
pub(super) fn measure(work: &Work<'_>) -> Result<Report, Failure> {
    let count = work.contestants.len();
    let empty = |fault| Part { fault, runs: (0..count).map(|_| Runs::default()).collect() };
    let mut parts: Vec<_> = FAULTS.iter().map(|(fault, _)| empty(*fault)).collect();
    let bar = bar(FAULTS.len() * count * work.rounds as usize);
    for round in 0..work.rounds {
        for (part, (fault, script)) in parts.iter_mut().zip(FAULTS) {
            for index in in_turn(count, round) {
                bar.set_message(format!("{fault}, {}", work.contestants[index].name));
                if !part.runs[index].suffice() {
                    part.runs[index].add(work, index, script)?;
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(Report { mpib: env!("CARGO_PKG_VERSION"), contestants: work.contestants.to_vec(), parts })
}

impl Runs {
    /// Returns whether further runs would only take time.
    fn suffice(&self) -> bool {
        let slow = |stages: &&Vec<Stage>| stages.iter().any(|stage| stage.stall_ns > LONG);
        self.failed + self.survived.iter().filter(slow).count() >= FEW
    }

    /// Adds one run.
    fn add(&mut self, work: &Work<'_>, index: usize, script: &str) -> Result<(), Failure> {
        let time = work.time.as_secs_f64().to_string();
        let never = self.survived.len() >= FEW && self.returns() == 0;
        let limit = if never { SHORT_LIMIT } else { LIMIT };
        let args = ["--no-check", "--sizes", SIZE, "--time", &time, "--timeout", limit, "--fault", script];
        let document = work.perf_document(&FAULTY, index, &args)?;
        let stages = document.pointer("/tables/0/results/0/stages").cloned().unwrap_or(Value::Null);
        if document["ok"] != true && self.why.is_none() {
            self.why = document.pointer("/error/message").and_then(Value::as_str).map(str::to_owned);
        }
        match stages {
            Value::Null => self.failed += 1,
            stages => {
                let stages = serde_json::from_value(stages).map_err(|e| unread(&e.to_string()))?;
                self.survived.push(stages);
            }
        }
        Ok(())
    }

    /// Returns a number of each run that has the stage, sorted.
    fn each(&self, kind: StageKind, of: impl Fn(&Stage) -> f64) -> Vec<f64> {
        let stages = self.survived.iter().flatten().filter(|stage| stage.kind == kind);
        sorted(stages.map(of).collect())
    }

    /// Returns whether the rail returned in a run.
    fn returns(&self) -> usize {
        self.each(StageKind::After, |_| 0.0).len()
    }

    fn cells(&self) -> [String; 10] {
        let stall = |stage: &Stage| stage.stall_ns as f64 / 1e6;
        let rate = |stage: &Stage| stage.gigabytes_per_second;
        let returned = |of: fn(&Stage) -> f64| {
            let complete = self.survived.iter().filter(|stages| stages.last().is_some_and(Stage::is_after));
            let stages = complete.flatten().filter(|stage| stage.kind == StageKind::Returns);
            sorted(stages.map(of).collect())
        };
        let fails = self.each(StageKind::Fails, stall);
        let back = returned(|stage| stage.stall_ns as f64 / 1e6);
        [
            format!("{} of {}", self.survived.len(), self.survived.len() + self.failed),
            quantile(&fails, 0.5),
            quantile(&fails, 0.99),
            format!("{} of {}", self.returns(), self.survived.len()),
            quantile(&returned(|stage| stage.seconds * 1e3), 0.5),
            quantile(&back, 0.5),
            quantile(&back, 0.99),
            quantile(&self.each(StageKind::Before, rate), 0.5),
            quantile(&self.each(StageKind::Without, rate), 0.5),
            quantile(&self.each(StageKind::After, rate), 0.5),
        ]
    }
}

/// The rows, as [`Runs::cells`] has them.
const ROWS: [&str; 10] = [
    "faults survived",
    "stall at the fault, median, ms",
    "stall at the fault, p99, ms",
    "rails that returned",
    "from the repair to data on the rail, median, ms",
    "stall at the return, median, ms",
    "stall at the return, p99, ms",
    "throughput before, GB/s",
    "throughput on one rail, GB/s",
    "throughput after, GB/s",
];

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// Returns the nearest-rank quantile of sorted numbers as text.
fn quantile(sorted: &[f64], q: f64) -> String {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or_else(|| "-".into(), |number| significant(*number))
}

impl Report {
    /// Returns a table for each fault.
    fn tables(&self) -> impl Iterator<Item = Table> {
        self.parts.iter().map(|part| {
            let names = self.contestants.iter().map(|one| right(&one.name));
            let mut table = Table::new(std::iter::once(left(part.fault)).chain(names));
            let columns: Vec<_> = part.runs.iter().map(Runs::cells).collect();
            for (row, name) in ROWS.iter().enumerate() {
                let cells = columns.iter().map(|column| column[row].clone());
                table.row(std::iter::once((*name).to_owned()).chain(cells));
            }
            table
        })
    }

    /// Returns a sentence for each contestant that failed, or whose rail did not return.
    fn notes(&self) -> Vec<String> {
        let of = |part: &Part| {
            let each = self.contestants.iter().zip(&part.runs);
            let note = |(one, runs): (&Contestant, &Runs)| {
                let why = runs.why.as_ref()?.replace('\n', "; ");
                Some(format!("{}, {}: {why}", one.name, part.fault))
            };
            each.filter_map(note).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of).collect()
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let tables = self.tables().map(|table| table.text() + "\n");
        tables.chain(self.notes().iter().map(|note| paragraph(0, note))).collect()
    }

    /// Formats the report as Markdown.
    pub(super) fn markdown(&self) -> String {
        let mut out = String::from("<!-- Written by \"make bench-failover\". -->\n");
        out.extend(self.tables().map(|table| format!("\n{}", table.markdown())));
        out.extend(self.notes().iter().map(|note| format!("\n{note}\n")));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let numbers: Vec<_> = (1..=30).map(f64::from).collect();
        assert_eq!([0.5, 0.99].map(|q| quantile(&numbers, q)), ["15.00", "30.00"]);
        assert_eq!(quantile(&[7.0], 0.5), "7.000");
        assert_eq!(quantile(&[], 0.5), "-");
    }
}
