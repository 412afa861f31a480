//! Runs real collectives: whole communicators of a release's own library on softcuda, or on GPUs,
//! through the plugin on softverbs.

mod args;
mod bench;
mod evidence;
mod fault;
mod gpu;
mod observe;
mod place;
mod plan;
mod suite;
mod watch;
mod why;

use std::{
    collections::BTreeMap,
    env, fmt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

pub(crate) use args::{CollectivesArgs, Common};
pub(crate) use plan::Plan;
use softcuda::{
    rank::{Job, NO_ONE_SIDED, NO_WINDOW, Outcome},
    world::{End, Start, World},
};
pub(crate) use suite::Entry;

use self::{fault::Breaker, observe::Fabric, place::Place, watch::Inquiry};
use crate::{
    failure::{Context, Failure, Kind, Result},
    fetch::Cache,
    matrix::{Matrix, Release},
    stage::Stage,
};

/// A part of every message of the plugin.
const PLUGIN_TEXT: &str = "NET/MPIB";
/// `ncclRemoteError`, by which NCCL reports a failure of the network.
const NETWORK_ERROR: i32 = 6;

/// Runs the command. The exit code is 0 if every element of every rank was right.
pub(crate) fn main(args: &CollectivesArgs) -> Result<ExitCode> {
    let plans = args.plans()?;
    if args.common.gpu {
        gpu::check(plans.iter().map(|plan| plan.variant.gpus()).max().unwrap_or(0))?;
    }
    let matrix = Matrix::read()?;
    let mut releases = matrix.choose(&args.releases)?;
    releases.retain(|release| release.short || !args.short);
    let stage = Stage::set(&args.common.build)?;
    let package = format!("nvidia-nccl-cu{}", args.common.cuda);
    let cache = Cache::of_user(&matrix.package)?.of_package(&package);
    let measures = args.figures.is_some() || args.cost_of.is_some();
    if releases.len() != 1 && (measures || args.why.is_some() || args.common.library.is_some()) {
        return Err(Failure::usage("name one release for --figures, --cost-of, --why and --library"));
    }
    let fetch = |release| args.common.library.clone().map_or_else(|| cache.fetch(release), Ok);
    if let (Some(figures), Some(release)) = (&args.figures, releases.first()) {
        return bench::main(args, figures, &fetch(release)?, release, &stage);
    }
    if let (Some(setting), Some(release)) = (&args.cost_of, releases.first()) {
        return bench::cost(args, setting, &fetch(release)?, release, &stage);
    }
    if let (Some(named), Some(release)) = (&args.why, releases.first()) {
        return why::main(args, named, &fetch(release)?, release, &stage);
    }
    let (mut failed, mut ran, mut missing, mut unfit) = (0, 0, Vec::new(), None);
    for release in &releases {
        let library = match fetch(release) {
            Ok(library) => library,
            Err(failure) if failure.kind == Kind::Missing && args.allow_missing => {
                println!("NCCL {release}: not run: {failure}");
                missing.push(release.version.as_str());
                continue;
            }
            Err(failure) => return Err(failure),
        };
        for plan in &plans {
            let begun = Instant::now();
            let done = match plan.unfit(release) {
                Some(why) => Err(Failure::unfit(why)),
                None => communicator(&args.common, &library, release, plan, &stage),
            };
            let (word, seen) = match done {
                Ok(seen) => ("ok", seen.to_string()),
                Err(Failure { kind: Kind::Unfit, message }) => {
                    println!("NCCL {release:13} {:52} not run: {message}", plan.name());
                    unfit.get_or_insert(message);
                    continue;
                }
                Err(failure) => ("FAILED", failure.message),
            };
            let seconds = begun.elapsed().as_secs_f32();
            println!("NCCL {release:13} {:52} {word:6} {seconds:5.1} s  {seen}", plan.name());
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
    if let (0, Some(why)) = (ran, unfit) {
        return Err(Failure::unfit(why));
    }
    println!("\n{ran} communicators, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was seen of a communicator.
pub(crate) struct Seen {
    /// Seconds of `ncclCommInitRank`.
    init_seconds: f64,
    /// Elements that were compared.
    compared: usize,
    /// The asynchronous error after the death of a rank: number and text.
    error: Option<(i32, String)>,
    /// What the faults did, if rails failed.
    faults: Option<String>,
    /// What RAS answered, and the ways by which data went.
    ways: String,
}

impl Seen {
    /// Returns what every run of the communicator has in common.
    pub(crate) fn facts(&self) -> String {
        match self.faults {
            // The tests are repeated until the faults are over.
            Some(_) => format!("all elements right; {}", self.ways),
            None => format!("{}; {}", self.compared(), self.ways),
        }
    }

    fn compared(&self) -> String {
        let error = self.error.as_ref();
        let error = error.map_or(String::new(), |(code, _)| format!(", then asynchronous error {code}"));
        format!("{} elements right{error}", self.compared)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "init {:.1} s, {}; ", self.init_seconds, self.compared())?;
        self.faults.as_ref().map_or(Ok(()), |faults| write!(f, "{faults}; "))?;
        f.write_str(&self.ways)?;
        self.error.as_ref().map_or(Ok(()), |(_, text)| write!(f, "; {text}"))
    }
}

/// Runs one communicator.
pub(crate) fn communicator(
    common: &Common,
    library: &Path,
    release: &Release,
    plan: &Plan,
    stage: &Stage,
) -> Result<Seen> {
    outcomes(common, library, release, plan, stage).map(|(_, seen)| seen)
}

/// Runs one communicator. Returns the ranks' ends and what was seen.
fn outcomes(
    common: &Common,
    library: &Path,
    release: &Release,
    plan: &Plan,
    stage: &Stage,
) -> Result<(Vec<End>, Seen)> {
    let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
    let world = world(common, scratch.path(), Duration::from_secs(common.silence))?;
    let mut place = Place::new(common, plan, release, stage, scratch.path())?;
    let variant = &plan.variant;
    let mut inquiry = variant.ras.then(|| Inquiry::new(variant.ranks)).transpose()?;
    if let Some(inquiry) = &inquiry {
        place.open_ras(&inquiry.address());
    }
    if watch::profiles(plan, release) {
        place.load_profiler(&beside("libsoftcuda.so")?)?;
    }
    let starts = (0..variant.ranks).map(|rank| start(&place, plan, library, rank)).collect();
    let mut breaker = variant.fault.map(|fault| {
        let fabric = Fabric::new(place.fabric(), &common.build);
        Breaker::new(fault, variant.strikes as usize, fabric, place.labels())
    });
    let ends = match (&mut breaker, &mut inquiry) {
        (Some(breaker), _) => world.direct(starts, breaker),
        (None, Some(inquiry)) => world.direct(starts, inquiry),
        (None, None) => world.run(starts),
    };
    let ends = ends.cannot("run the ranks")?;
    let faults = breaker.map(Breaker::result);
    let seen = judge(plan, &ends).and_then(|seen| {
        let faults = faults.transpose()?;
        let watched = inquiry.map(Inquiry::result).transpose()?.map_or(String::new(), |seen| seen + "; ");
        Ok(Seen { faults, ways: watched + &place.ways(plan, release)?, ..seen })
    });
    let seen = seen.map(|seen| (ends, seen));
    let seen = seen.map_err(|failure| {
        let message = failure.message + &place.hidden_errors();
        Failure { message, ..failure }
    });
    seen.map_err(|failure| match common.logs.as_ref() {
        None => failure,
        Some(to) => match place.keep_logs(to) {
            Ok(()) => Failure { message: format!("{failure}; logs in {}", to.display()), ..failure },
            Err(e) => Failure { message: format!("{failure}; {e}"), ..failure },
        },
    })
}

/// Returns the file of this name beside this program.
fn beside(name: &str) -> Result<PathBuf> {
    Ok(env::current_exe().cannot("find this program's file")?.with_file_name(name))
}

/// Prepares for ranks, which are killed after a time without progress.
fn world(common: &Common, scratch: &Path, silence: Duration) -> Result<World> {
    let softcuda = if common.gpu { None } else { Some(beside("libsoftcuda.so")?) };
    World::new(&beside("collective-rank")?, softcuda.as_deref(), scratch, silence)
        .map_err(|e| Failure::tool(format!("{e}; build package softcuda first (make collectives does)")))
}

/// Returns a rank of a plan.
fn start(place: &Place, plan: &Plan, library: &Path, rank: u32) -> Start {
    let variant = &plan.variant;
    let job = Job {
        library: library.to_owned(),
        softcuda: None,
        settings: place.settings(rank),
        rank,
        ranks: variant.ranks,
        device: place.device(rank),
        hub: PathBuf::new(),
        one_sided: variant.one_sided.clone(),
        tests: plan.tests.clone(),
        memory: variant.memory(),
        window: variant.window.is_some(),
        killed: variant.killed,
        laps: variant.fault.is_some() || variant.ras,
        timed: plan.rates.is_some(),
    };
    Start { job, environment: place.environment(rank), host_name: None }
}

/// Checks how the ranks ended. Their logs have the ways.
fn judge(plan: &Plan, ends: &[End]) -> Result<Seen> {
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
    // With the option --window, NCCL must have a network.
    let lacks = if plan.variant.window.is_some() { &[NO_ONE_SIDED][..] } else { &[NO_WINDOW, NO_ONE_SIDED] };
    if let Some(&why) = lacks.iter().find(|why| failures.iter().any(|failure| failure.contains(**why))) {
        return Err(Failure::unfit(why));
    }
    let Some(first) = outcomes.values().next().filter(|_| failures.is_empty()) else {
        return Err(Failure::wrong(failures.join("; ")));
    };
    let ran = outcomes.values().flat_map(|o| o.one_sided.iter().chain(&o.tests));
    let compared: usize = ran.map(|ran| ran.compared).sum();
    let error = first.asynchronous_error.clone();
    Ok(Seen { init_seconds: first.init_seconds, compared, error, faults: None, ways: String::new() })
}

/// Returns what is wrong with the results of a rank.
fn wrong(plan: &Plan, rank: usize, outcome: &Outcome) -> Vec<String> {
    let mut failures = Vec::new();
    for (test, ran) in plan.variant.one_sided.iter().zip(&outcome.one_sided) {
        if ran.wrong > 0 {
            failures.push(format!(
                "rank {rank}: {} of {} bytes and values of {} are wrong, first {:?}",
                ran.wrong,
                ran.compared,
                test.name(),
                ran.first
            ));
        }
    }
    for (test, ran) in plan.tests.iter().zip(&outcome.tests) {
        if ran.wrong > 0 {
            failures.push(format!(
                "rank {rank}: {} of {} elements of {test:?} are wrong, first {:?}",
                ran.wrong, ran.compared, ran.first
            ));
        }
    }
    if let (Some(window), Some(handle)) = (plan.variant.window, outcome.window)
        && handle != window.has_handle()
    {
        failures.push(format!("rank {rank}: ncclCommWindowRegister returned a handle: {handle}"));
    }
    match (&outcome.asynchronous_error, plan.variant.ends_in_error()) {
        (Some((code, text)), true) if *code != NETWORK_ERROR => {
            failures.push(format!("rank {rank}: expected error {NETWORK_ERROR}, got {code}: {text}"));
        }
        (Some((_, text)), true) if plan.uses_plugin() && !text.contains(PLUGIN_TEXT) => {
            failures.push(format!("rank {rank}: the error is not the plugin's: {text}"));
        }
        (Some((code, text)), false) => {
            failures.push(format!("rank {rank}: asynchronous error {code}: {text}"))
        }
        (None, true) => failures.push(format!("rank {rank} has no asynchronous error")),
        (None, false) => {
            let ran = outcome.one_sided.len() + outcome.tests.len();
            let expected = plan.variant.one_sided.len() + plan.tests.len();
            if ran != expected {
                failures.push(format!("rank {rank} ran {ran} of {expected} tests"));
            }
        }
        _ => {}
    }
    failures
}
