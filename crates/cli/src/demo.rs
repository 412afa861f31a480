//! `mpib demo`: data over two simulated rails, on a machine without RDMA hardware.

use std::{
    env,
    path::Path,
    process::{Command, ExitCode},
};

use clap::Args;

use crate::failure::{Context, Failure};
use crate::plugin;
use crate::process::on_softverbs;

const TABLES: &str = "\
Two rails made of software: sout carries 2 GB/s, sup 1 GB/s. The plugin makes one device of them and sends 341/1024
(33.3 %) of each large message over sup, so the two are done at the same time. Two processes, each table of the plugin.
";

const FAULT: &str = "
Now the link of sup goes down while messages are in flight, and up again later. Every message arrives, and every byte
is still checked. The stall is the longest time in which no message was completed. \"sup returns\" lasts from the repair
until sup carries data again: the plugin waits half a second before it trusts the link.
";

/// The two rails, and what the plugin makes of them.
const SETTINGS: [(&str, &str); 4] = [
    ("SOFTVERBS_DEVICES", "sout:addr=192.168.200.1/24,rate=2GB;sup:addr=192.168.201.1/24,rate=1GB"),
    ("MPIB_HCA_SOUT", "sout"),
    ("MPIB_HCA_SUP", "sup"),
    ("MPIB_SUP_SHARE", "341"),
];

/// Moves checked data over two simulated rails, through every table; then one rail fails and
/// returns. Needs no RDMA hardware and no GPU
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Factor between the sizes of messages
    #[arg(long, value_name = "N", default_value = "8")]
    factor: String,
    /// Seconds for each size [default: 0.3, and 0.5 with the failing rail]
    #[arg(long, value_name = "SECONDS")]
    time: Option<String>,
}

pub(crate) fn main(args: &DemoArgs) -> ExitCode {
    run(args).unwrap_or_else(|failure| failure.end())
}

fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let time = |default| args.time.as_deref().unwrap_or(default);
    let folder = plugin::softverbs()?;
    println!("{TABLES}");
    let sizes = ["--abi", "all", "--sizes", "8..64M", "--factor", &args.factor, "--time", time("0.3")];
    let code = perf(&folder, &sizes)?;
    if code != 0 {
        return Ok(ExitCode::from(code));
    }
    println!("{FAULT}");
    perf(&folder, &["--sizes", "1M", "--fault", "sup:link=down", "--time", time("0.5")]).map(ExitCode::from)
}

/// Runs `mpib perf` on softverbs, without the settings of this shell. Returns its exit code.
fn perf(softverbs: &Path, options: &[&str]) -> Result<u8, Failure> {
    let mut command = Command::new(env::current_exe().tool("find the file of mpib")?);
    on_softverbs(&mut command, softverbs, &["NCCL_DEBUG", "SOFTVERBS_COPY", "SOFTVERBS_LOG"]);
    command.envs(SETTINGS).arg("perf").args(options);
    let status = command.status().tool("start mpib perf")?;
    // A process that a signal ended has no code.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
