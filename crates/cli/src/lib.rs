//! `mpib`, the operator's tool. What is public here, other programs of this workspace use: output,
//! child processes, test patterns, memory for messages, the simulated rails' counters, plugin files,
//! and failures in words.

#![allow(rustdoc::broken_intra_doc_links, reason = "comments of options are their help: HOST[:PORT]")]

mod abi;
mod agent;
mod demo;
pub mod device;
mod doctor;
mod documents;
mod drain;
mod enable;
mod explain;
pub mod failure;
mod hwcheck;
mod nccl_conf;
mod operation;
pub mod output;
pub mod pattern;
mod perf;
pub mod plugin;
pub mod process;
pub mod quantity;
pub mod rails;
pub mod region;
mod setup;
mod stats;
mod tool;
mod top;
mod version;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use failure::ended;

pub use perf::{Stage, StageKind, one_abi};

#[derive(Debug, Parser)]
#[command(version, long_version = version::LONG.as_str(), about = "Tools around NCCL network plugins, the one of this project and any other")]
struct Cli {
    #[command(flatten)]
    color: colorchoice_clap::Color,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Perf(Box<perf::PerfArgs>),
    Stats(stats::StatsArgs),
    Top(top::TopArgs),
    Why(why::WhyArgs),
    Explain(explain::ExplainArgs),
    Abi(abi::AbiArgs),
    Agent(agent::AgentArgs),
    Drain(drain::DrainArgs),
    Undrain(drain::UndrainArgs),
    Doctor(Box<doctor::DoctorArgs>),
    Setup(setup::SetupArgs),
    Hwcheck(Box<hwcheck::HwcheckArgs>),
    Demo(demo::DemoArgs),
    /// Prints the plugin's file, for NCCL_NET_PLUGIN
    Path,
    Enable(enable::EnableArgs),
    Disable(enable::DisableArgs),
    Completions(documents::CompletionsArgs),
    /// Writes the man pages.
    #[command(hide = true)]
    ManPages(documents::ManPagesArgs),
    /// One end of a run; started by "mpib perf".
    #[command(name = perf::worker::COMMAND, hide = true)]
    Worker(perf::worker::WorkerArgs),
    /// Loads the plugin and calls its doctor functions; started by "mpib doctor".
    #[command(name = doctor::worker::COMMAND, hide = true)]
    DoctorWorker(doctor::worker::WorkerArgs),
}

/// Prints help, the version, or what is wrong with the options: with `--json` as a document, too.
fn without_command(e: &clap::Error) -> ExitCode {
    if e.print().is_err() || !e.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let json = std::env::args_os().any(|arg| arg == "--json");
    let text = e.render().to_string();
    let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let failure = failure::Failure::new(failure::Kind::Usage, why);
    let exit_code = failure::Kind::Usage.exit_code();
    if json { output::document::failure(failure, exit_code) } else { ExitCode::from(exit_code) }
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return without_command(&e),
    };
    cli.color.write_global();
    match cli.command {
        Command::Perf(args) => perf::main(*args),
        Command::Stats(args) => stats::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Why(args) => why::main(&args),
        Command::Explain(args) => ended(explain::explain(&args)),
        Command::Abi(args) => abi::main(&args),
        Command::Agent(args) => agent::main(&args),
        Command::Drain(args) => ended(drain::drain(&args)),
        Command::Undrain(args) => ended(drain::undrain(&args)),
        Command::Doctor(args) => doctor::main(&args),
        Command::Setup(args) => setup::main(&args),
        Command::Hwcheck(args) => hwcheck::main(&args),
        Command::Demo(args) => demo::main(&args),
        Command::Path => ended(enable::path()),
        Command::Enable(args) => ended(enable::enable(&args)),
        Command::Disable(args) => ended(enable::disable(&args)),
        Command::Completions(args) => ended(documents::completions(&args, Cli::command())),
        Command::ManPages(args) => ended(documents::man_pages(&args, Cli::command())),
        Command::DoctorWorker(args) => ended(doctor::worker::main(&args)),
        Command::Worker(args) => ended(perf::worker::main(&args)),
    }
}
