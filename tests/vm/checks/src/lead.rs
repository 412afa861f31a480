//! Runs the list and prints the result of each check.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::list::{LIST, Where};
use crate::world::{Kind, World};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The world of the checks.
    #[arg(long, value_enum, default_value = "kernel")]
    world: Kind,
    /// Address of the other host's `follow`. Without it both hosts are this machine.
    #[arg(long)]
    other: Option<Ipv4Addr>,
    /// The plugin's file.
    #[arg(long)]
    plugin: PathBuf,
    /// NCCL's libnccl.so.2 on both hosts.
    #[arg(long, requires = "nccl_facts")]
    nccl: Option<PathBuf>,
    /// Output of "compat-matrix facts" for that library, on both hosts.
    #[arg(long, requires = "nccl")]
    nccl_facts: Option<PathBuf>,
    /// Only the most important checks.
    #[arg(long)]
    short: bool,
    /// Only these checks.
    names: Vec<String>,
}

/// Cuts a text to the room in a line. The console's log has all of it.
fn cut(detail: &str) -> String {
    const ROOM: usize = 200;
    let mut text: String = detail.chars().take(ROOM).collect();
    if text.len() < detail.len() {
        text += " …";
    }
    text
}

/// Prints one line per check. The exit code is 0 if all checks ran and succeeded.
pub(crate) fn run(args: &Args) -> ExitCode {
    let start = Instant::now();
    for name in &args.names {
        if !LIST.iter().any(|check| check.name == *name) {
            let names: Vec<_> = LIST.iter().map(|check| check.name).collect();
            eprintln!("there is no check {name}; there are {}", names.join(", "));
            return ExitCode::from(2);
        }
    }
    let mut world = match World::new(args.world, args.other, args.plugin.clone()) {
        Ok(world) => world,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    };
    world.nccl = args.nccl.clone().zip(args.nccl_facts.clone());
    let (mut good, mut bad, mut left_out) = (0, Vec::new(), Vec::new());
    for check in LIST {
        let wanted = match args.names.as_slice() {
            [] => !args.short || check.short,
            names => names.iter().any(|name| name == check.name),
        };
        let here = check.place == Where::Both || args.world == Kind::Kernel;
        if !wanted || !here {
            continue;
        }
        if let Some(why) = (check.lacks)(&world) {
            left_out.push(check.name);
            println!("NOT RUN       {:<24} {why}", check.name);
            continue;
        }
        eprintln!("== {}", check.name);
        let begun = Instant::now();
        let outcome = (check.run)(&world);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(detail) => {
                good += 1;
                eprintln!("{detail}");
                let detail = cut(&detail);
                println!("ok   {seconds:6.1} s  {:<24} {detail}", check.name);
            }
            Err(why) => {
                bad.push(check.name);
                println!("FAIL {seconds:6.1} s  {:<24} {why}", check.name);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let all = good > 0 && bad.is_empty() && left_out.is_empty();
    let mut said = format!("{} checks", good + bad.len() + left_out.len());
    for (names, what) in [(&bad, "failed"), (&left_out, "not run")] {
        if !names.is_empty() {
            said += &format!(", {} {what}: {}", names.len(), names.join(" "));
        }
    }
    println!("{said}{}, {seconds:.0} s", if all { ", all good" } else { "" });
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
