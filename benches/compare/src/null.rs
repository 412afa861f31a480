//! Figures of small messages on verbs that complete at once, in process: what is left is the
//! plugin's own part.

use super::{
    figures::Metric,
    measure::{BULK, Samples, Solo, Work},
};
use crate::solo::Workload;
use mpib::failure::Failure;

/// Repetitions of a run in one process. The fastest one counts.
const REPEAT: u32 = 200;

/// The runs. A repetition takes less than a millisecond, less than a time slice: on a loaded machine
/// some of them are not interrupted.
const RUNS: [(Solo, Metric, Metric); 5] = [
    (Solo { groups: 500, repeat: REPEAT, ..Solo::MESSAGES }, Metric::NullTime8, Metric::Instructions8),
    (
        Solo { depth: 1, groups: 3_000, repeat: REPEAT, ..Solo::MESSAGES },
        Metric::NullTime1,
        Metric::Instructions1,
    ),
    (
        Solo { workload: Workload::EmptyTest, groups: 30_000, repeat: REPEAT, ..Solo::MESSAGES },
        Metric::NullTimeEmptyTest,
        Metric::InstructionsEmptyTest,
    ),
    (
        Solo { workload: Workload::EarlyIsend, groups: 30_000, repeat: REPEAT, ..Solo::MESSAGES },
        Metric::NullTimeEarlyIsend,
        Metric::InstructionsEarlyIsend,
    ),
    (
        Solo { workload: Workload::RegisterAgain, groups: 3_000, repeat: REPEAT, ..Solo::MESSAGES },
        Metric::NullTimeRegisterAgain,
        Metric::InstructionsRegisterAgain,
    ),
];

/// Connections that take turns, one message at a time on each. There are about as many messages in all
/// in each run.
const TURNS: [(usize, u64, Metric); 4] = [
    (32, 30, Metric::NullTimeOf32),
    (128, 10, Metric::NullTimeOf128),
    (256, 5, Metric::NullTimeOf256),
    (1_000, 2, Metric::NullTimeOf1000),
];

/// Runs one contestant's part of a round.
pub(super) fn timed(work: &Work<'_>, of: &mut Samples, index: usize) -> Result<(), Failure> {
    let turns = TURNS.map(|(connections, groups, time)| {
        (Solo { depth: 1, connections, groups, repeat: REPEAT, ..Solo::MESSAGES }, time)
    });
    for (run, time) in RUNS.map(|(run, time, _)| (run, time)).into_iter().chain(turns) {
        let counts = work.solo(&of.scenario, index, run)?;
        of.add(time, index, work.contestants.len(), counts.nanoseconds);
    }
    Ok(())
}

/// Counts instructions, which are the same in every run.
pub(super) fn counted(work: &Work<'_>, of: &mut Samples, index: usize) -> Result<(), Failure> {
    for (run, _, instructions) in RUNS {
        let counted = work.instructions(&of.scenario, index, Solo { repeat: 1, ..run })?;
        of.add(instructions, index, work.contestants.len(), counted.plugin);
    }
    let counted = work.instructions(&of.scenario, index, Solo { size: BULK, ..Solo::MESSAGES })?;
    let millions = counted.plugin * 1e3 / BULK as f64;
    of.add(Metric::InstructionsGigabyte, index, work.contestants.len(), millions);
    Ok(())
}
