//! `vm-checks`: checks the plugin's file between two hosts, and prints one line per check.
//!
//! `lead` runs the list. On each host it has `worker` processes, which load the plugin's file and
//! run the commands of their standard input. It starts the workers of the other host through
//! `follow`, which runs there. The hosts are two machines with the kernel's RDMA stack, or two sets
//! of softverbs devices on one machine.

mod agent;
mod follow;
mod host;
mod lead;
mod list;
mod pair;
mod transfer;
mod worker;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks of the plugin's file between two hosts.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Runs the list. The exit code is 0 if every check succeeds.
    Lead(lead::Args),
    /// Runs commands for a leader on another host, for ever.
    Follow,
    /// Loads the plugin and runs the commands of its standard input.
    Worker {
        #[arg(long)]
        plugin: PathBuf,
        /// Version of the table.
        #[arg(long)]
        abi: u32,
    },
    /// Gives hints as an agent does; the file and the socket are in this folder.
    Agent { folder: PathBuf },
}

fn main() -> ExitCode {
    match Args::parse().what {
        What::Lead(args) => lead::run(&args),
        What::Follow => follow::run(),
        What::Worker { plugin, abi } => worker::run(&plugin, abi),
        What::Agent { folder } => agent::run(&folder),
    }
}
