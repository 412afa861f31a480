//! `softverbs-ctl`: faults in the running processes of a softverbs fabric.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use softverbs::{Control, DeviceState, Error};

/// Breaks and heals devices of running softverbs processes
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Fabric of the processes
    #[arg(long, env = "SOFTVERBS_FABRIC", default_value = "default", global = true)]
    fabric: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Link {
    Down,
    Up,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Takes the link of a device down or up
    Link {
        /// NAME, or NAME@ADDRESS if several devices have the name
        device: String,
        state: Link,
    },
    /// Changes the rate of a device, for example: rate soft0 500MB
    Rate {
        /// NAME, or NAME@ADDRESS if several devices have the name
        device: String,
        /// Bytes (B) or bits (b) per second in each direction, with K, M or G; default for that of SOFTVERBS_DEVICES
        rate: String,
    },
    /// Injects a fault, for example: fault soft0 lost_ack at=3 then=down
    Fault {
        /// NAME, or NAME@ADDRESS if several devices have the name
        device: String,
        /// Fault and keys in the syntax of SOFTVERBS_FAULTS
        #[arg(required = true)]
        fault: Vec<String>,
        /// Let the fault wait for a work request of this process only
        #[arg(long)]
        pid: Option<u32>,
    },
    /// Ends all faults of a device
    Heal {
        /// NAME, or NAME@ADDRESS if several devices have the name
        device: String,
    },
    /// Ends all faults of all devices
    Clear,
    /// Lists the devices, their faults, and their processes
    List,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("softverbs-ctl: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let control = Control::open(&cli.fabric)?;
    match &cli.command {
        Command::Link { device, state: Link::Down } => control.fault(device, "link=down", None),
        Command::Link { device, state: Link::Up } => control.fault(device, "link=up", None),
        Command::Rate { device, rate } => control.fault(device, &format!("rate={rate}"), None),
        Command::Fault { device, fault, pid } => control.fault(device, &fault.join(","), *pid),
        Command::Heal { device } => control.fault(device, "heal", None),
        Command::Clear => {
            control.clear();
            Ok(())
        }
        Command::List => {
            control.devices().iter().for_each(print);
            Ok(())
        }
    }
}

fn print(device: &DeviceState) {
    let faults = [
        (device.removed, "removed"),
        (device.flapping, "flapping"),
        (device.down, "down"),
        (device.silent_in, "silent in"),
        (device.silent_out, "silent out"),
    ];
    let present: Vec<_> = faults.iter().filter(|(present, _)| *present).map(|(_, name)| *name).collect();
    let faults = if present.is_empty() { String::from("no fault") } else { present.join(", ") };
    println!("{}: {faults}", device.label);
    let counters = &device.hw_counters;
    println!(
        "  roce_adp_retrans {}, local_ack_timeout_err {}, packet_seq_err {}, rnr_nak_retry_err {}",
        counters.roce_adp_retrans,
        counters.local_ack_timeout_err,
        counters.packet_seq_err,
        counters.rnr_nak_retry_err
    );
    for process in &device.processes {
        println!(
            "  process {}: {} work requests posted, {} of them writes; faults: {} armed, {} struck",
            process.pid, process.posted, process.writes, process.armed, process.struck
        );
    }
}
