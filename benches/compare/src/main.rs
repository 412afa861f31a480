//! Benches of plugins as whole files: `compare` puts several side by side on simulated rails, `solo`
//! runs both ends of a connection in one process, for callgrind, and `storm` connects many processes.

mod callgrind;
mod chart;
mod child;
mod compare;
mod contestant;
mod failover;
mod figures;
mod measure;
mod null;
mod one_sided;
mod reports;
mod scenario;
mod solo;
mod storm;
mod table;
#[cfg(test)]
mod tests;
mod thin;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mpib::failure::ended;

#[derive(Debug, Parser)]
#[command(about = "Measures NCCL network plugins on simulated rails")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Box<compare::CompareArgs>),
    /// Both ends of a run in one process and one thread
    #[command(name = solo::COMMAND)]
    Solo(solo::SoloArgs),
    Storm(storm::StormArgs),
    /// One of its processes
    #[command(name = storm::RANK, hide = true)]
    StormRank(storm::RankArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Compare(args) => compare::main(&args),
        Command::Solo(args) => ended(solo::main(&args)),
        Command::Storm(args) => ended(storm::main(&args)),
        Command::StormRank(args) => ended(storm::rank(&args)),
    }
}
