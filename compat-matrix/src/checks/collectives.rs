//! Checks whole communicators on softcuda, as `compat-matrix collectives --suite` runs them.

use softcuda::rank::Collective;

use super::Bench;
use crate::{
    collectives::{Common, Entry, Plan, communicator},
    failure::{Failure, Result},
};

/// Seconds without progress after which the ranks are killed.
const SILENCE: u64 = 30;

/// Checks a communicator with every collective.
pub(super) fn all(bench: &Bench<'_>, entry: Entry) -> Result<String> {
    run(bench, entry, &Collective::ALL)
}

/// Checks collectives alone, in the MPIB profile.
pub(super) fn these(bench: &Bench<'_>, collectives: &[Collective]) -> Result<String> {
    run(bench, Entry::Mpib, collectives)
}

/// Checks one-sided transfers, and one collective after them.
pub(super) fn one_sided(bench: &Bench<'_>, entry: Entry) -> Result<String> {
    run(bench, entry, &[Collective::AllReduce])
}

fn run(bench: &Bench<'_>, entry: Entry, collectives: &[Collective]) -> Result<String> {
    let plan = entry.plan(collectives);
    if let Some(why) = plan.unfit(bench.release) {
        return Err(Failure::unfit(why));
    }
    let run = |plan: &Plan| {
        communicator(&Common::with_silence(SILENCE), &bench.path, bench.release, plan, bench.stage)
    };
    let failure = match run(&plan) {
        Ok(seen) => return Ok(seen.facts()),
        Err(failure) => failure,
    };
    match plan.control().map(|control| run(&control)) {
        Some(Err(control)) => Err(Failure::core(format!("{failure}; over NCCL's own network: {control}"))),
        Some(Ok(_)) => {
            Err(Failure { message: format!("{failure}; NCCL's own network has no failure"), ..failure })
        }
        None => Err(failure),
    }
}
