//! `mpib hwcheck`: the first half hour with an adapter. Two hosts go through ten steps; this end
//! leads, and the listener of `mpib doctor` follows.
//!
//! `step` has the steps and their results, `bench` what they share: the two hosts and the runs
//! between them. `traffic`, `rates`, `outage`, `network`, `ends` and `nccl` have what the steps do, and
//! `nccl_table` reads what nccl-tests print; `counters` compares the
//! adapters' counters before and after, and `text` prints for people.

mod bench;
mod counters;
mod ends;
mod nccl;
mod nccl_table;
mod network;
mod outage;
mod rates;
mod step;
mod text;
mod traffic;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use self::{
    bench::Bench,
    step::{Step, StepReport, Verdict},
};
use crate::doctor::{self, DoctorArgs, bundle};
use crate::failure::{Failure, Kind};
use crate::nccl_conf;
use crate::output::{self, document};
use crate::perf::Sizes;
use crate::quantity::{bytes, time};

const EXIT_CODES: &str = "\
Exit codes:
  0  no step failed
  1  a step failed
  2  invalid options
  3  no verdict: a host cannot be checked, or no bundle was written";

/// Exit code for a failed step.
const STEP_FAILED: u8 = 1;
/// Exit code for a failure of the command itself.
const NO_VERDICT: u8 = 3;

const OUTAGES: &str = "Outages";
const LIMITS: &str = "Sizes, times and limits";

/// Tries an adapter with the plugin between two hosts: ten steps, half an hour
///
/// On the other host "mpib hwcheck --listen" waits. Run both ends as the job would run.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct HwcheckArgs {
    /// The other host
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen", required_unless_present_any = ["listen", "schema"])]
    peer: Option<String>,

    /// Serve another host's "mpib hwcheck HOST" or "mpib doctor HOST", until this command is ended
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    listen: Option<String>,

    /// Only these steps
    #[arg(long = "step", value_name = "STEP,STEP", value_enum, value_delimiter = ',')]
    steps: Vec<Step>,

    /// The plugin's file [default: libnccl-net-mpib.so next to mpib or in ../lib]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// Number of the GPU for the step gpu, at both ends
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    gpu: i32,

    /// Folder of nccl-tests, built with MPI, at both ends for the step nccl [default: those in PATH]
    #[arg(long, value_name = "DIR")]
    nccl_tests: Option<PathBuf>,

    /// Program with its arguments that starts the processes of nccl-tests at both ends [default: in a
    /// job of Slurm srun, else mpirun, with one process on each host]
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<String>,

    /// Rate in Gb/s that each rail should have, as on its label [default: what port and PCIe link
    /// report; none for simulated ports]
    #[arg(help_heading = LIMITS, long, value_name = "GBPS")]
    speed: Option<f64>,

    /// Least part of that rate that a rail has to reach
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=100))]
    least: u32,

    /// Least part of the rate of ib_write_bw that a rail has to reach; 0: do not run it. It is run if
    /// both hosts have it
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u32).range(0..=100))]
    least_of_perftest: u32,

    /// Least part of the bandwidth of NCCL's own transport that the plugin has to reach in the step nccl
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", default_value_t = 97, value_parser = clap::value_parser!(u32).range(1..=100))]
    least_of_nccl: u32,

    /// Sizes of messages in the step data, as those of mpib perf
    #[arg(help_heading = LIMITS, long, value_name = "SIZES", default_value = "1,8,4K,4097,1M,1000003,64M")]
    sizes: Sizes,

    /// Memory for messages at each end, as that of mpib perf
    #[arg(help_heading = LIMITS, long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    memory: usize,

    /// Time for each size, and for each stage of an outage
    #[arg(help_heading = LIMITS, long, value_name = "TIME", default_value = "2", value_parser = time)]
    time: Duration,

    /// Length of the step steady
    #[arg(help_heading = LIMITS, long, value_name = "TIME", default_value = "5m", value_parser = time)]
    steady: Duration,

    /// How long that network is silent in the step network
    #[arg(help_heading = LIMITS, long, value_name = "TIME", default_value = "2m", value_parser = time)]
    network_time: Duration,

    /// Number of connections in the step control
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,

    /// Most time for a stall in an outage, for one connection, for a verb, and for the close of all
    /// connections
    #[arg(help_heading = LIMITS, long, value_name = "TIME", default_value = "1", value_parser = time)]
    limit: Duration,

    /// Most time for each step, instead of the budget of each
    #[arg(help_heading = LIMITS, long, value_name = "TIME", value_parser = time)]
    budget: Option<Duration>,

    /// Take a rail out of service and back, and the route to the other host: run the commands of the
    /// steps link, driver and network, which need root. They are printed before. All is restored
    /// however this command ends
    #[arg(help_heading = OUTAGES, long, conflicts_with = "by_hand")]
    outages: bool,

    /// Print the commands of the steps link and driver, and wait until somebody has run them
    #[arg(help_heading = OUTAGES, long)]
    by_hand: bool,

    /// The rail of the outages, as HCA:PORT [default: the last one of the first device]
    #[arg(help_heading = OUTAGES, long, value_name = "RAIL")]
    rail: Option<String>,

    /// Command that takes the rail's link down [default: ip link set INTERFACE down]
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "link_up")]
    link_down: Option<String>,

    /// Command that takes it up
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "link_down")]
    link_up: Option<String>,

    /// Command that takes the driver from the rail's adapter [default: unbind in sysfs]. Its interface
    /// then loses its addresses, MTU, VFs and flow control
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "driver_up")]
    driver_down: Option<String>,

    /// Command that gives it back. It sets up the interface, too, if no network service of the host
    /// does
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "driver_down")]
    driver_up: Option<String>,

    /// Command that silences the network by which the hosts reach each other [default: ip route add
    /// blackhole ADDRESS]
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "network_up")]
    network_down: Option<String>,

    /// Command that restores it
    #[arg(help_heading = OUTAGES, long, value_name = "COMMAND", requires = "network_down")]
    network_up: Option<String>,

    /// Also write FILE.tar.gz with the results and what "mpib doctor --bundle" writes, to send to a
    /// maintainer
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    bundle: Option<PathBuf>,

    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,

    /// Print the JSON schema of that document
    #[arg(long, exclusive = true)]
    schema: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
struct Document {
    /// Version of this document. New fields may be added without a new version.
    format: u32,
    /// This tool's version.
    mpib: &'static str,
    exit_code: u8,
    /// Numbers of steps.
    passed: usize,
    failed: usize,
    not_run: usize,
    steps: Vec<StepReport>,
    /// The document of `mpib doctor HOST`, in the state in which the last step left it.
    doctor: doctor::Document,
}

impl Document {
    fn new(steps: Vec<StepReport>, doctor: doctor::Document) -> Self {
        let count = |verdict| steps.iter().filter(|step| step.verdict == verdict).count();
        let (passed, failed, not_run) =
            (count(Verdict::Passed), count(Verdict::Failed), count(Verdict::NotRun));
        let exit_code = if failed > 0 { STEP_FAILED } else { 0 };
        Self { format: 1, mpib: env!("CARGO_PKG_VERSION"), exit_code, passed, failed, not_run, steps, doctor }
    }
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &HwcheckArgs) -> ExitCode {
    if args.schema {
        return document::show_schema::<Document>();
    }
    match run(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let code = if failure.kind == Kind::Usage { failure.kind.exit_code() } else { NO_VERDICT };
            document::failed(args.json, failure, code)
        }
    }
}

fn run(args: &HwcheckArgs) -> Result<u8, Failure> {
    let files = nccl_conf::apply();
    let patience = args.budget.unwrap_or(Step::Host.budget()) / 2;
    let of_doctor = DoctorArgs::of(args.plugin.clone(), None, patience);
    if let Some(address) = &args.listen {
        return doctor::listen(&of_doctor, &files, address).map(|_| 0);
    }
    if let Some(path) = &args.bundle {
        bundle::check_name(path)?;
    }
    let (mut bench, mut steps) = (Bench::new(args, of_doctor, &files)?, Vec::new());
    for step in Step::ALL.into_iter().filter(|step| args.steps.is_empty() || args.steps.contains(step)) {
        steps.push(bench.step(step));
    }
    let found = Document::new(steps, bench.end());
    let (text, json) = (text::text(&found), document::text(&found)?);
    // The result comes first: the bundle may fail.
    let printed = output::print(if args.json { &json } else { &text });
    if let Some(path) = &args.bundle {
        let files = [("hwcheck.json", json), ("hwcheck.txt", text)];
        if let Err(failure) = bundle::write(path, Path::new("/"), &found.doctor, &files) {
            // With --json stdout has its one document.
            failure.print();
            return Ok(NO_VERDICT);
        }
        eprintln!("mpib: wrote {}; look through it before you send it", path.display());
    }
    printed.map(|()| found.exit_code)
}
