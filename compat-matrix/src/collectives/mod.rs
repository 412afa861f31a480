//! Runs real collectives without a GPU: whole communicators of a release's own library on softcuda,
//! through the plugin on softverbs.

mod args;
mod bench;
mod fault;
mod observe;
mod pci;
mod place;

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

pub(crate) use args::CollectivesArgs;
use softcuda::{
    rank::{Job, Outcome},
    world::{End, Start, World},
};

use self::{args::Plan, fault::Breaker, observe::Fabric, place::Place};
use crate::{
    failure::{Context, Failure, Kind, Result},
    fetch::Cache,
    matrix::Matrix,
    stage::Stage,
};

/// `ncclRemoteError`, by which NCCL reports a failure of the network.
const NETWORK_ERROR: i32 = 6;

/// Runs the command. The exit code is 0 if every element of every rank was right.
pub(crate) fn main(args: &CollectivesArgs) -> Result<ExitCode> {
    let plans = args.plans()?;
    let matrix = Matrix::read()?;
    let mut releases = matrix.choose(&args.releases)?;
    releases.retain(|release| release.short || !args.short);
    let stage = Stage::set(&args.build)?;
    let package = format!("nvidia-nccl-cu{}", args.cuda);
    let cache = Cache::of_user(&matrix.package)?.of_package(&package);
    if let Some(figures) = &args.figures {
        let [release] = &releases[..] else {
            return Err(Failure::usage("name one release for --figures"));
        };
        return bench::main(args, figures, &cache.fetch(release)?, release, &stage);
    }
    let (mut failed, mut ran, mut missing) = (0, 0, Vec::new());
    for release in &releases {
        let library = match cache.fetch(release) {
            Ok(library) => library,
            Err(failure) if failure.kind == Kind::Missing && args.allow_missing => {
                println!("NCCL {release}: not run: {failure}");
                missing.push(release.version.as_str());
                continue;
            }
            Err(failure) => return Err(failure),
        };
        for plan in &plans {
            if let Some(why) = plan.unfit(release).filter(|_| args.suite) {
                println!("NCCL {release:7} {:52} not run: {why}", plan.name());
                continue;
            }
            let begun = Instant::now();
            let done = communicator(args, &library, plan, &stage);
            let word = if done.is_ok() { "ok" } else { "FAILED" };
            let seen = done.unwrap_or_else(|failure| failure.message);
            let seconds = begun.elapsed().as_secs_f32();
            println!("NCCL {release:7} {:52} {word:6} {seconds:5.1} s  {seen}", plan.name());
            ran += 1;
            failed += usize::from(word == "FAILED");
        }
        if args.drop {
            cache.drop(release)?;
        }
    }
    if !missing.is_empty() {
        println!("\nnot run, since the library could not be had: NCCL {}", missing.join(", "));
    }
    println!("\n{ran} communicators, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one communicator. Returns what was seen.
fn communicator(args: &CollectivesArgs, library: &Path, plan: &Plan, stage: &Stage) -> Result<String> {
    outcomes(args, library, plan, stage).map(|(_, seen)| seen)
}

/// Runs one communicator. Returns the ranks' ends and what was seen.
fn outcomes(
    args: &CollectivesArgs,
    library: &Path,
    plan: &Plan,
    stage: &Stage,
) -> Result<(Vec<End>, String)> {
    let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
    let program = env::current_exe().cannot("find this program's file")?;
    let beside = |name: &str| program.with_file_name(name);
    let silence = Duration::from_secs(args.silence);
    let world = World::new(&beside("collective-rank"), &beside("libsoftcuda.so"), scratch.path(), silence)
        .map_err(|e| Failure::tool(format!("{e}; build package softcuda first (make collectives does)")))?;
    let place = Place::new(args, plan, stage, scratch.path())?;
    let variant = &plan.variant;
    let starts = (0..variant.ranks).map(|rank| {
        let job = Job {
            library: library.to_owned(),
            softcuda: PathBuf::new(),
            settings: place.settings(rank),
            rank,
            ranks: variant.ranks,
            device: place.device(rank),
            hub: PathBuf::new(),
            tests: plan.tests.clone(),
            register: variant.register,
            killed: variant.killed,
            laps: variant.fault.is_some(),
            timed: plan.rates.is_some(),
        };
        Start { job, environment: place.environment(rank) }
    });
    let starts = starts.collect();
    let mut breaker = variant.fault.map(|fault| {
        let fabric = Fabric::new(place.fabric(), &args.build);
        Breaker::new(fault, variant.strikes as usize, fabric, place.labels())
    });
    let ends = match &mut breaker {
        None => world.run(starts),
        Some(breaker) => world.direct(starts, breaker),
    };
    let ends = ends.cannot("run the ranks")?;
    let faults = breaker.map(Breaker::result);
    let seen = judge(plan, &ends).and_then(|seen| {
        let faults = faults.transpose()?.map_or(String::new(), |seen| format!("; {seen}"));
        Ok(format!("{seen}{faults}; {}", place.ways(plan)?))
    });
    let seen = seen.map(|seen| (ends, seen));
    seen.map_err(|failure| match args.logs.as_ref() {
        None => failure,
        Some(to) => match place.keep_logs(to) {
            Ok(()) => Failure { message: format!("{failure}; logs in {}", to.display()), ..failure },
            Err(e) => Failure { message: format!("{failure}; {e}"), ..failure },
        },
    })
}

/// Checks how the ranks ended.
fn judge(plan: &Plan, ends: &[End]) -> Result<String> {
    let mut outcomes = BTreeMap::new();
    let mut failures = Vec::new();
    for (rank, end) in ends.iter().enumerate() {
        let killed = plan.variant.killed.is_some_and(|killed| killed as usize == rank);
        match (end, end.outcome()) {
            (End::Died { status, .. }, _) if killed && status.contains("SIGKILL") => {}
            (_, Ok(outcome)) if !killed => {
                outcomes.insert(rank, outcome);
            }
            (_, Ok(_)) => failures.push(format!("rank {rank} should have been killed")),
            (_, Err(why)) => failures.push(format!("rank {rank} {why}")),
        }
    }
    for (rank, outcome) in &outcomes {
        failures.extend(wrong(plan, *rank, outcome));
    }
    let Some(first) = outcomes.values().next().filter(|_| failures.is_empty()) else {
        return Err(Failure::wrong(failures.join("; ")));
    };
    let compared: usize = outcomes.values().flat_map(|o| &o.tests).map(|ran| ran.compared).sum();
    let error = first.asynchronous_error.as_ref();
    let error = error.map_or(String::new(), |(code, text)| format!(", asynchronous error {code}: {text}"));
    Ok(format!("init {:.1} s, {compared} elements right{error}", first.init_seconds))
}

/// Returns what is wrong with the results of a rank.
fn wrong(plan: &Plan, rank: usize, outcome: &Outcome) -> Vec<String> {
    let mut failures = Vec::new();
    for (test, ran) in plan.tests.iter().zip(&outcome.tests) {
        if ran.wrong > 0 {
            failures.push(format!(
                "rank {rank}: {} of {} elements of {test:?} are wrong, first {:?}",
                ran.wrong, ran.compared, ran.first
            ));
        }
    }
    match (&outcome.asynchronous_error, plan.variant.ends_in_error()) {
        (Some((code, text)), true) if plan.variant.fault.is_some() && *code != NETWORK_ERROR => {
            failures.push(format!("rank {rank}: expected error {NETWORK_ERROR}, got {code}: {text}"));
        }
        (Some((code, text)), false) => {
            failures.push(format!("rank {rank}: asynchronous error {code}: {text}"))
        }
        (None, true) => failures.push(format!("rank {rank} has no asynchronous error")),
        (None, false) if outcome.tests.len() != plan.tests.len() => {
            failures.push(format!("rank {rank} ran {} of {} tests", outcome.tests.len(), plan.tests.len()));
        }
        _ => {}
    }
    failures
}
