//! From the rounds to ratios: arithmetic, no I/O.

use std::time::Duration;

use serde::Serialize;

use super::{contestant::Contestant, measure::Measured, scenario::Scenario};

/// Which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Lower,
    Higher,
}

/// The goal against each other contestant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Goal {
    /// Upper limit of ours divided by theirs.
    RatioAtMost(f64),
    /// Lower limit of ours divided by theirs.
    RatioAtLeast(f64),
    /// Lower limit of ours, independent of theirs.
    AtLeast(f64),
    /// Upper limits of ours divided by theirs, and of ours.
    BothAtMost(f64, f64),
    /// Reported without a goal.
    None,
}

macro_rules! metrics {
    ($($name:ident: $title:literal, $unit:literal, $better:ident, $goal:expr;)+) => {
        /// The metrics, in the table's order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Metric { $($name),+ }

        impl Metric {
            pub(super) const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }
            pub(super) const fn unit(self) -> &'static str {
                match self { $(Self::$name => $unit),+ }
            }
            pub(super) const fn better(self) -> Better {
                match self { $(Self::$name => Better::$better),+ }
            }
            pub(super) const fn goal(self) -> Goal {
                match self { $(Self::$name => $goal),+ }
            }
        }
    };
}

metrics! {
    Latency: "half round trip of 8 B, median", "us", Lower, Goal::RatioAtMost(0.9);
    LatencyP99: "half round trip of 8 B, p99", "us", Lower, Goal::RatioAtMost(1.0);
    Latency4K: "half round trip of 4 KiB, median", "us", Lower, Goal::RatioAtMost(1.0);
    Latency64K: "half round trip of 64 KiB, median", "us", Lower, Goal::RatioAtMost(1.0);
    Latency512K: "half round trip of 512 KiB, median", "us", Lower, Goal::RatioAtMost(1.0);
    Rate8: "messages of 8 B, 8 in flight", "1/s", Higher, Goal::RatioAtLeast(1.1);
    Rate32: "messages of 8 B, 32 in flight", "1/s", Higher, Goal::RatioAtLeast(1.1);
    BesideBulk: "message of 8 B beside 8 of 512 KiB, median", "us", Lower, Goal::RatioAtMost(1.0);
    BesideBulkP99: "message of 8 B beside 8 of 512 KiB, p99", "us", Lower, Goal::RatioAtMost(1.0);
    Bandwidth4K: "bandwidth, 4 KiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    Bandwidth64K: "bandwidth, 64 KiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    Bandwidth512K: "bandwidth, 512 KiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    Bandwidth1M: "bandwidth, 1 MiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    Bandwidth16M: "bandwidth, 16 MiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    Bandwidth256M: "bandwidth, 256 MiB", "GB/s", Higher, Goal::RatioAtLeast(1.0);
    OfSum: "of the rails' sum, 16 MiB", "%", Higher, Goal::AtLeast(97.0);
    InstructionsAll: "instructions for 8 B, with softverbs", "", Lower, Goal::RatioAtMost(0.9);
    WorkRequests8: "work requests for 8 B", "", Lower, Goal::None;
    Doorbells8: "doorbells for 8 B", "", Lower, Goal::None;
    Completions8: "completions for 8 B", "", Lower, Goal::None;
    WorkRequests64K: "work requests for 64 KiB", "", Lower, Goal::None;
    Doorbells64K: "doorbells for 64 KiB", "", Lower, Goal::None;
    Completions64K: "completions for 64 KiB", "", Lower, Goal::None;
    Connections: "connections, one after the other", "1/s", Higher, Goal::RatioAtLeast(1.0);
    Connections64: "connections, 64 at a time", "1/s", Higher, Goal::RatioAtLeast(1.0);
    OpenClose: "open and close of a connection, both ends spinning", "ms", Lower, Goal::RatioAtMost(1.0);
    MemoryResident: "memory of a connection, resident", "KiB", Lower, Goal::RatioAtMost(1.0);
    MemoryPrivate: "memory of a connection, private", "KiB", Lower, Goal::RatioAtMost(1.0);
    NullTime8: "message of 8 B, 8 in flight", "ns", Lower, Goal::RatioAtMost(0.55);
    NullTime1: "message of 8 B, one at a time", "ns", Lower, Goal::RatioAtMost(0.6);
    NullTimeOf32: "message of 8 B, by turns on 32 connections", "ns", Lower, Goal::RatioAtMost(0.8);
    NullTimeOf128: "message of 8 B, by turns on 128 connections", "ns", Lower, Goal::RatioAtMost(0.8);
    NullTimeOf256: "message of 8 B, by turns on 256 connections", "ns", Lower, Goal::RatioAtMost(0.8);
    NullTimeOf1000: "message of 8 B, by turns on 1,000 connections", "ns", Lower, Goal::RatioAtMost(0.9);
    NullTimeEmptyTest: "test that finds nothing", "ns", Lower, Goal::RatioAtMost(1.0);
    NullTimeEarlyIsend: "isend before its receive", "ns", Lower, Goal::RatioAtMost(1.0);
    NullTimeRegisterAgain: "regMr and deregMr of registered memory", "ns", Lower, Goal::RatioAtMost(1.0);
    Instructions8: "instructions, 8 in flight", "", Lower, Goal::None;
    Instructions1: "instructions, one at a time", "", Lower, Goal::None;
    InstructionsGigabyte: "instructions for 1 GB in messages of 512 KiB", "10^6", Lower, Goal::RatioAtMost(1.0);
    InstructionsEmptyTest: "instructions, test that finds nothing", "", Lower, Goal::RatioAtMost(1.0);
    InstructionsEarlyIsend: "instructions, isend before its receive", "", Lower, Goal::RatioAtMost(1.0);
    InstructionsRegisterAgain: "instructions, regMr and deregMr of registered memory", "", Lower, Goal::None;
}

impl Metric {
    /// Returns the goal in a scenario.
    fn goal_in(self, scenario: &Scenario) -> Goal {
        match (self, scenario.rates.len()) {
            (Self::Instructions8, 1) => Goal::BothAtMost(0.65, 790.0),
            (Self::Instructions8, _) => Goal::BothAtMost(0.55, 870.0),
            _ => self.goal(),
        }
    }
}

/// One metric in one scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) goal: Goal,
    /// The median over the rounds, by contestant.
    pub(super) values: Vec<f64>,
    /// Ours divided by each of the others: the median over the rounds of the ratio within a round.
    pub(super) ratios: Vec<f64>,
    /// The least and the greatest of these ratios within a round, by the other contestants.
    pub(super) spreads: Vec<[f64; 2]>,
    /// Whether the goal is reached against all others; absent if there is no goal.
    pub(super) reached: Option<bool>,
}

impl Row {
    /// Returns by which factor ours is better (above 1) or worse (below 1), for one of the ratios.
    pub(super) fn advantage(&self, ratio: f64) -> f64 {
        if self.better == Better::Lower { 1.0 / ratio } else { ratio }
    }
}

/// One scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Part {
    pub(super) scenario: Scenario,
    pub(super) rows: Vec<Row>,
}

/// The whole comparison.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) mpib: &'static str,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    /// Ours first.
    pub(super) contestants: Vec<Contestant>,
    pub(super) scenarios: Vec<Part>,
    /// What could not be measured, and why.
    pub(super) notes: Vec<String>,
}

impl Report {
    pub(super) fn new(contestants: &[Contestant], rounds: u32, time: Duration, measured: Measured) -> Self {
        let part = |of: super::measure::Samples| Part {
            rows: (of.values.iter())
                .filter_map(|(metric, rounds)| row(*metric, metric.goal_in(&of.scenario), rounds))
                .collect(),
            scenario: of.scenario,
        };
        Self {
            mpib: env!("CARGO_PKG_VERSION"),
            rounds,
            seconds: time.as_secs_f64(),
            contestants: contestants.to_vec(),
            scenarios: measured.samples.into_iter().map(part).collect(),
            notes: measured.notes,
        }
    }
}

/// Returns `None` if a contestant has no figure.
fn row(metric: Metric, goal: Goal, rounds: &[Vec<f64>]) -> Option<Row> {
    let values = rounds.iter().map(|of| median(of)).collect::<Option<Vec<_>>>()?;
    let (ours, others) = rounds.split_first()?;
    // Within a round, both contestants met the same load of the machine.
    let within = |theirs: &Vec<f64>| ours.iter().zip(theirs).map(|(a, b)| ratio(*a, *b)).collect::<Vec<_>>();
    let within: Vec<_> = others.iter().map(within).collect();
    let ratios = within.iter().map(|of| median(of)).collect::<Option<Vec<_>>>()?;
    let spreads = within.iter().map(|of| spread(of)).collect();
    let reached = reached(goal, values[0], &ratios);
    Some(Row {
        metric: metric.title(),
        unit: metric.unit(),
        better: metric.better(),
        goal,
        values,
        ratios,
        spreads,
        reached,
    })
}

/// Divides; zero by zero is 1.
fn ratio(a: f64, b: f64) -> f64 {
    if a == b { 1.0 } else { a / b }
}

/// Returns the least and the greatest number.
fn spread(values: &[f64]) -> [f64; 2] {
    let all = values.iter().copied();
    [all.clone().fold(f64::INFINITY, f64::min), all.fold(f64::NEG_INFINITY, f64::max)]
}

/// Returns the middle value, or the mean of the two in the middle.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns whether the figures reach the goal, or `None` without a goal. Ratios and their goal are
/// rounded to the two decimals that the output shows.
fn reached(goal: Goal, ours: f64, ratios: &[f64]) -> Option<bool> {
    let hundredths = |value: f64| (value * 100.0).round();
    match goal {
        Goal::None => None,
        Goal::AtLeast(least) => Some(ours >= least),
        Goal::BothAtMost(most, value) => {
            Some(ours <= value && ratios.iter().all(|r| hundredths(*r) <= hundredths(most)))
        }
        Goal::RatioAtMost(most) => Some(ratios.iter().all(|r| hundredths(*r) <= hundredths(most))),
        Goal::RatioAtLeast(least) => Some(ratios.iter().all(|r| hundredths(*r) >= hundredths(least))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_those_within_a_round() {
        // In the second round both were ten times slower. The ratio of the medians would differ
        // from the median of the ratios.
        let rounds = [vec![1.0, 10.0, 3.0], vec![2.0, 20.0, 4.0], vec![1.0, 40.0, 3.0]];
        let row = row(Metric::Latency, Goal::RatioAtMost(0.9), &rounds).unwrap();
        assert_eq!(row.values, [3.0, 4.0, 3.0]);
        assert_eq!(row.ratios, [0.5, 1.0]);
        assert_eq!(row.spreads, [[0.5, 0.75], [0.25, 1.0]]);
        assert_eq!(row.reached, Some(false), "not against the third");
    }

    #[test]
    fn goals_are_judged_as_shown() {
        assert_eq!(reached(Goal::RatioAtMost(0.9), 0.0, &[0.904]), Some(true));
        assert_eq!(reached(Goal::RatioAtMost(0.9), 0.0, &[0.906]), Some(false));
        assert_eq!(reached(Goal::RatioAtLeast(1.1), 0.0, &[1.2, 1.09]), Some(false));
        assert_eq!(reached(Goal::AtLeast(97.0), 97.1, &[0.1]), Some(true));
        assert_eq!(reached(Goal::AtLeast(97.0), 96.9, &[2.0]), Some(false));
        for (ours, ratio, both) in [(790.0, 0.654, true), (790.1, 0.5, false), (10.0, 0.656, false)] {
            assert_eq!(reached(Goal::BothAtMost(0.65, 790.0), ours, &[ratio]), Some(both));
        }
        assert_eq!(reached(Goal::None, 1.0, &[1.0]), None);
    }

    #[test]
    fn a_metric_that_one_has_no_figure_for_is_left_out() {
        assert_eq!(row(Metric::Latency, Goal::None, &[vec![1.0], vec![]]), None);
        assert_eq!(ratio(0.0, 0.0), 1.0);
    }
}
