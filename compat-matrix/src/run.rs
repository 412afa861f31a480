//! A run over releases: fetches, checks, reports, compares.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    checks::{Bench, CHECKS},
    failure::{Context, Failure, Kind, Result},
    fetch::Cache,
    matrix::{Matrix, Release},
    report::{self, Mark, Report, Row, Section, Version, cell},
    stage::Stage,
};

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Releases of matrix.toml; all if none is named.
    releases: Vec<String>,
    /// One release for each table version.
    #[arg(long, conflicts_with = "releases")]
    short: bool,
    /// Only these checks, by their names in RESULTS.md, with commas
    #[arg(long, value_delimiter = ',')]
    checks: Vec<String>,
    /// Remove each release's library after its checks (otherwise it stays in the cache)
    #[arg(long)]
    drop: bool,
    /// Keep libraries in the cache (the default)
    #[arg(long, conflicts_with = "drop")]
    keep: bool,
    /// Do not fail if a release cannot be fetched
    #[arg(long)]
    allow_missing: bool,
    /// Write RESULTS.md if the run differs from it, instead of failing
    #[arg(long)]
    write: bool,
    /// Limit for a process, or for a pair, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    deadline: u64,
    /// The folder in which "make build" put the plugin and softverbs
    #[arg(long, value_name = "FOLDER", default_value = "build")]
    build: PathBuf,
}

/// Runs the command. The exit code is 0 if every check succeeded and agrees with RESULTS.md.
pub(crate) fn main(args: &RunArgs) -> Result<ExitCode> {
    if let Some(strange) = args.checks.iter().find(|name| !CHECKS.iter().any(|(known, _)| known == name)) {
        let known: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!("no check {strange:?}; expected one of {}", known.join(", "))));
    }
    let matrix = Matrix::read()?;
    let mut releases = matrix.choose(&args.releases)?;
    releases.retain(|release| release.short || !args.short);
    let committed = Report::read(&report::path())?;
    let stage = Stage::set(&args.build)?;
    let cache = Cache::of_user(&matrix.package)?;
    let mut ran = Report::default();
    for release in &releases {
        let rows = one(args, release, &stage, &cache)?;
        if args.drop {
            cache.drop(release)?;
        }
        let version = Version::parse(&release.version)
            .ok_or_else(|| Failure::tool(format!("release {release}: not a version")))?;
        ran.sections.insert(version, Section { date: report::today()?, rows });
        if args.write {
            // After each release: a run that is interrupted keeps what it has.
            save(&committed, &ran)?;
        }
    }
    conclude(args, &committed, &ran)
}

/// Returns one release's rows. Only a failure of this program is an error.
fn one(args: &RunArgs, release: &Release, stage: &Stage, cache: &Cache) -> Result<Vec<Row>> {
    let wanted = |name: &str| args.checks.is_empty() || args.checks.iter().any(|check| check == name);
    let checks = CHECKS.iter().filter(|(name, _)| wanted(name));
    let library = match cache.fetch(release) {
        Ok(library) => library,
        Err(failure) if failure.kind == Kind::Missing => {
            println!("NCCL {release}: not run: {failure}");
            let row =
                |name: &str| Row { check: name.into(), mark: Mark::NotRun, seen: cell(&failure.message) };
            return Ok(checks.map(|(name, _)| row(name)).collect());
        }
        Err(failure) => return Err(failure),
    };
    let bench = Bench::new(release, stage, library, Duration::from_secs(args.deadline))
        .map_err(|e| Failure { message: format!("NCCL {release}: {}", e.message), ..e })?;
    let mut rows = Vec::new();
    for (name, check) in checks {
        let begun = Instant::now();
        let (mark, seen) = match check(&bench) {
            Ok(seen) => (Mark::Ok, seen),
            Err(failure) if failure.kind == Kind::Unfit => (Mark::Unfit, failure.message),
            Err(failure) if failure.kind == Kind::Core => (Mark::Core, failure.message),
            Err(failure) => (Mark::Failed, failure.message),
        };
        let word = mark.text();
        println!("NCCL {release:13} {name:21} {word:6} {:5.1} s  {seen}", begun.elapsed().as_secs_f32());
        rows.push(Row { check: (*name).into(), mark, seen: cell(&seen) });
    }
    Ok(rows)
}

/// Writes the report: the committed one with the results of the run.
fn save(committed: &Report, ran: &Report) -> Result<()> {
    let mut new = committed.clone();
    new.update(ran);
    let path = report::path();
    std::fs::write(&path, new.text()).cannot(format!("write {}", path.display()))
}

/// Prints the failures and the differences from the report.
fn conclude(args: &RunArgs, committed: &Report, ran: &Report) -> Result<ExitCode> {
    let marked = |mark: Mark| {
        let sections = ran.sections.iter();
        let with = sections.filter(|(_, section)| section.rows.iter().any(|row| row.mark == mark));
        with.map(|(version, _)| version.to_string()).collect::<Vec<_>>()
    };
    let (failed, missing) = (marked(Mark::Failed), marked(Mark::NotRun));
    let mut bad = false;
    if !failed.is_empty() {
        println!("\nfailed: NCCL {}", failed.join(", "));
        bad = true;
    }
    if !missing.is_empty() {
        println!("\nnot run, since the library could not be had: NCCL {}", missing.join(", "));
        bad |= !args.allow_missing;
    }
    let differences = committed.differences(ran);
    let path = report::path();
    if !differences.is_empty() {
        println!("\nother than in {}:\n{}", path.display(), differences.join("\n"));
        bad |= !args.write;
    }
    if args.write {
        println!("\nwritten: {}", path.display());
    }
    if !bad {
        println!("\nall is well, releases: {}", ran.sections.len());
    }
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
