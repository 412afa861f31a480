//! `vm-checks`: the plugin's file between two hosts, each check with a line of its own.
//!
//! `lead` runs the list. On each host it has `worker` processes, which load the plugin's file and do as they are told over
//! their standard input; it starts those of the other host through `follow`, which runs there. The hosts are two
//! machines with the kernel's RDMA stack, or two processes' worth of softverbs devices on one machine.

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
    /// Runs the list and ends with 0 when every check is good.
    Lead(lead::Args),
    /// Runs commands for a leader on another host, for ever.
    Follow,
    /// Loads the plugin and does what it is told.
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
