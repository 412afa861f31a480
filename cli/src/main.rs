//! `mpib`, the operator's tool.

mod perf;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mpib::{failure, plugin};

#[derive(Debug, Parser)]
#[command(version, about = "Tools around NCCL network plugins, the one of this project and any other")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Perf(Box<perf::PerfArgs>),
    Stats(stats::StatsArgs),
    /// One end of a run; started by "mpib perf".
    #[command(name = perf::worker::COMMAND, hide = true)]
    Worker(perf::worker::WorkerArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Perf(args) => perf::main(*args),
        Command::Stats(args) => stats::main(&args),
        Command::Worker(args) => match perf::worker::main(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("mpib: {failure}");
                failure.exit_code()
            }
        },
    }
}
