//! `compat-matrix`: runs this project's plugin in every NCCL release from 2.18 on.

mod checks;
mod child;
mod collectives;
mod compare;
mod core;
mod cpu;
mod dwarf;
mod elf;
mod end;
mod exchange;
mod facts;
mod failure;
mod fetch;
mod load;
mod matrix;
mod pci;
mod report;
mod run;
mod script;
mod seen;
mod softverbs_report;
mod stage;
mod topologies;
mod wheels;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{failure::Result, fetch::Cache, matrix::Matrix};

#[derive(Debug, Parser)]
#[command(version, about = "Loads the plugin into every NCCL release and moves data through each core")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the checks and compare with RESULTS.md; in the root of the repository, after "make
    /// build"
    Run(run::RunArgs),
    /// Fetch missing libraries, and print the path of each
    Fetch {
        /// Releases of matrix.toml; all if none is named.
        releases: Vec<String>,
    },
    /// Run real collectives: the release's own library on softcuda, or on GPUs, through the plugin
    /// on softverbs
    Collectives(Box<collectives::CollectivesArgs>),
    /// Compare what NCCL makes of the plugin's adapters and of those of NCCL's InfiniBand
    /// transport, on simulated PCI trees
    Topologies(topologies::TopologiesArgs),
    /// Load another plugin into one release's core and move data between two processes through it
    Load(load::LoadArgs),
    /// Fetch a library if it is missing, write what "end" needs to know about it, and print its
    /// path
    Facts {
        /// The file to write.
        file: PathBuf,
        /// A release of matrix.toml; the newest if none is named.
        release: Option<String>,
    },
    /// Run one end of an exchange between two machines, each with the release's core, as in check
    /// "traffic"; the environment is passed on
    End(end::EndArgs),
    /// Loads one core; started by "run".
    #[command(name = child::COMMAND, hide = true)]
    Worker {
        /// The job.
        job: PathBuf,
        /// Where to write the account.
        account: PathBuf,
    },
    /// Remove libraries from the cache.
    Drop {
        /// Releases of matrix.toml; all if none is named.
        releases: Vec<String>,
    },
}

/// The exit code if this machine or the release lacks what is needed, that of
/// `scripts/with-sysfs.sh` and of test runners for a test that is left out.
const UNFIT: u8 = 77;

fn fetch(releases: &[String]) -> Result<ExitCode> {
    let matrix = Matrix::read()?;
    let cache = Cache::of_user(&matrix.package)?;
    for release in matrix.choose(releases)? {
        println!("{}", cache.fetch(&release)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(releases: &[String]) -> Result<ExitCode> {
    let matrix = Matrix::read()?;
    let cache = Cache::of_user(&matrix.package)?;
    matrix.choose(releases)?.iter().try_for_each(|release| cache.drop(release))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::main(&args),
        Command::Collectives(args) => collectives::main(&args),
        Command::Topologies(args) => topologies::main(&args),
        Command::Load(args) => load::main(&args),
        Command::Facts { file, release } => end::facts(&file, release.as_ref()),
        Command::End(args) => end::main(&args),
        Command::Worker { job, account } => worker::main(&job, &account).map(|()| ExitCode::SUCCESS),
        Command::Drop { releases } => remove(&releases),
        Command::Fetch { releases } => fetch(&releases),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("compat-matrix: {failure}");
        ExitCode::from(match failure.kind {
            failure::Kind::Usage => 2,
            failure::Kind::Missing => 3,
            failure::Kind::Unfit => UNFIT,
            _ => 1,
        })
    })
}
