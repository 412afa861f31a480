//! Puts, signals and gets: this plugin's RMA table beside those of others, on rails without a rate.

use serde::Serialize;

use super::{
    contestant::Contestant,
    figures,
    measure::{Work, bar, in_turn},
    reports::{number, result},
    scenario::{ONE_RAIL, Scenario, TWO_RAILS},
};
use mpib::failure::Failure;
use mpib::output::{
    table::{Table, left, right},
    units::significant,
};

/// A figure of one run.
struct Metric {
    name: &'static str,
    /// Options of `mpib perf`.
    args: &'static [&'static str],
    /// Its place in the result of the size.
    path: &'static [&'static str],
    /// What one unit of the figure is there.
    unit: f64,
}

const fn latency(name: &'static str, args: &'static [&'static str]) -> Metric {
    Metric { name, args, path: &["time_ns", "median"], unit: 1e3 }
}

const fn rate(name: &'static str, args: &'static [&'static str]) -> Metric {
    Metric { name, args, path: &["messages_per_second"], unit: 1e3 }
}

const fn bandwidth(name: &'static str, args: &'static [&'static str]) -> Metric {
    Metric { name, args, path: &["gigabytes_per_second"], unit: 1.0 }
}

const METRICS: [Metric; 9] = [
    latency("put and signal of 8 B, there and back, half, us", &["--put", "--ping-pong", "--sizes", "8"]),
    latency("signal, there and back, half, us", &["--signal", "--ping-pong"]),
    latency("get of 8 B, one at a time, us", &["--get", "--depth", "1", "--sizes", "8"]),
    rate("puts of 8 B, 1000/s", &["--put", "--sizes", "8"]),
    rate("gets of 8 B, 1000/s", &["--get", "--sizes", "8"]),
    bandwidth("puts of 64 KiB, GB/s", &["--put", "--sizes", "64K"]),
    bandwidth("gets of 64 KiB, GB/s", &["--get", "--sizes", "64K"]),
    bandwidth("puts of 64 MiB, GB/s", &["--put", "--sizes", "64M"]),
    bandwidth("gets of 64 MiB, GB/s", &["--get", "--sizes", "64M"]),
];

/// A contestant on its rails, with the figures of each round by metric.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    #[serde(skip)]
    index: usize,
    scenario: Scenario,
    rounds: Vec<Vec<f64>>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    mpib: &'static str,
    contestants: Vec<Contestant>,
    metrics: Vec<&'static str>,
    columns: Vec<Column>,
}

/// Measures all contestants on one rail, and this plugin, which is the first, on two.
pub(super) fn measure(work: &Work<'_>) -> Result<Report, Failure> {
    let one = |(index, one): (usize, &Contestant)| Column::new(index, &one.name, ONE_RAIL);
    let mut columns: Vec<_> = work.contestants.iter().enumerate().map(one).collect();
    columns.push(Column::new(0, &work.contestants[0].name, TWO_RAILS));
    let bar = bar(columns.len() * work.rounds as usize * METRICS.len());
    let time = work.time.as_secs_f64().to_string();
    for round in 0..work.rounds {
        for (row, metric) in METRICS.iter().enumerate() {
            // One metric after the other: what the machine does meanwhile affects all alike.
            for at in in_turn(columns.len(), round) {
                let column = &mut columns[at];
                bar.set_message(format!("{}, {}", metric.name, column.name));
                let args = [&["--no-check", "--memory", "128M", "--time", &time], metric.args].concat();
                let report = work.perf(&column.scenario, column.index, &args, false)?;
                column.rounds[row].push(number(result(&report, 0)?, metric.path)? / metric.unit);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let metrics = METRICS.iter().map(|metric| metric.name).collect();
    Ok(Report { mpib: env!("CARGO_PKG_VERSION"), contestants: work.contestants.to_vec(), metrics, columns })
}

impl Column {
    fn new(index: usize, name: &str, scenario: Scenario) -> Self {
        let name = format!("{name}, {}", scenario.name);
        Self { name, index, scenario, rounds: vec![Vec::new(); METRICS.len()] }
    }

    fn median(&self, row: usize) -> f64 {
        figures::median(&self.rounds[row]).unwrap_or(f64::NAN)
    }
}

impl Report {
    /// The medians, and behind each its ratio to that of the second contestant.
    fn table(&self) -> Table {
        let base = &self.columns[1];
        let names = self.columns.iter().map(|column| right(&column.name));
        let mut table = Table::new(std::iter::once(left("median")).chain(names));
        for (row, name) in self.metrics.iter().enumerate() {
            let cell = |column: &Column| {
                let (own, others) = (column.median(row), base.median(row));
                match std::ptr::eq(column, base) {
                    true => significant(own),
                    false => format!("{} (x {:.2})", significant(own), own / others),
                }
            };
            table.row(std::iter::once((*name).to_owned()).chain(self.columns.iter().map(cell)));
        }
        table
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        self.table().text()
    }

    /// Formats the report as Markdown.
    pub(super) fn markdown(&self) -> String {
        format!("<!-- Written by \"make bench-one-sided\". -->\n\n{}", self.table().markdown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_beside_their_ratios() {
        let column = |name: &str, scenario, values: &[f64]| {
            let mut column = Column::new(0, name, scenario);
            column.rounds[0] = values.to_vec();
            column
        };
        let report = Report {
            mpib: "0",
            contestants: Vec::new(),
            metrics: vec!["latency"],
            columns: vec![
                column("a", ONE_RAIL, &[3.0, 9.0, 2.0]),
                column("b", ONE_RAIL, &[2.0, 2.0, 8.0]),
                column("a", TWO_RAILS, &[4.0]),
            ],
        };
        let text = report.text();
        assert!(text.contains("a, one rail") && text.contains("a, two rails"), "{text}");
        assert!(text.contains("3.000 (x 1.50)") && text.contains("4.000 (x 2.00)"), "{text}");
    }
}
