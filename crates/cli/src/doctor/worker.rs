//! The process that loads the plugin and calls it. This program starts it; it writes its findings
//! to a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use nccl_net_mpib_agent_iface::doctor::{FORMAT, Level, Report, Routes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::{Context, Failure, Kind};
use crate::plugin;
use crate::rails;
use nccl_net_host::{Net, Settings};

use super::ask;

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "doctor-worker";

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(super) plugin: PathBuf,
    /// The version of the table to try.
    #[arg(long)]
    pub(super) table: u32,
    /// Where to write the findings; the plugin may print on stdout.
    #[arg(long)]
    pub(super) output: PathBuf,
    /// Two files with the hosts' descriptions of their ports: computes the routes between them
    /// instead.
    #[arg(long, num_args = 2)]
    pub(super) hosts: Vec<PathBuf>,
}

/// The findings.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Findings {
    /// `None`: the plugin does not export the function.
    pub(super) report: Option<Report>,
    /// Whether softverbs is this process's libibverbs.
    pub(super) softverbs: bool,
    /// Result of init and of the calls after it: device names. Absent if the report already says
    /// that init fails.
    pub(super) init: Option<Result<Vec<String>, Failure>>,
}

/// Runs the worker.
pub(crate) fn main(args: &WorkerArgs) -> Result<(), Failure> {
    if let [ours, theirs] = &args.hosts[..] {
        return routes(args, ours, theirs);
    }
    let report = ask::report(&args.plugin)?.map(|text| parse::<Report>(&text)).transpose()?;
    let fails = |report: &Report| report.checks.iter().any(|check| check.level == Level::Fail);
    let init = (!report.as_ref().is_some_and(fails)).then(|| init(args));
    let findings = Findings { report, softverbs: rails::is_softverbs(), init };
    let text = serde_json::to_string(&findings).tool("encode the findings")?;
    fs::write(&args.output, text).tool(format!("write {}", args.output.display()))
}

fn routes(args: &WorkerArgs, ours: &Path, theirs: &Path) -> Result<(), Failure> {
    let read = |path: &Path| fs::read_to_string(path).tool(format!("read {}", path.display()));
    let Some(text) = ask::routes(&args.plugin, &read(ours)?, &read(theirs)?)? else {
        let text = "the plugin does not export mpib_doctor_routes_v1: another plugin, or an older one";
        return Err(Failure::new(Kind::Load, text));
    };
    let routes = parse::<Routes>(&text)?;
    let text = serde_json::to_string(&routes).tool("encode the routes")?;
    fs::write(&args.output, text).tool(format!("write {}", args.output.display()))
}

/// Parses a document of the plugin.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let bad = |e: String| {
        Failure::new(
            Kind::Load,
            format!("the plugin's report cannot be read: {e}; use mpib and plugin of one release"),
        )
    };
    let head: Head = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    if head.format != FORMAT {
        return Err(bad(format!("format {}, expected {FORMAT}", head.format)));
    }
    serde_json::from_str(text).map_err(|e| bad(e.to_string()))
}

/// Calls init and reads the devices, as NCCL does first.
fn init(args: &WorkerArgs) -> Result<Vec<String>, Failure> {
    let table = plugin::open_table(&args.plugin, args.table, None, None)?;
    let net = Net::init(table, &Settings::default())?;
    let name = |dev| Ok(net.properties(dev)?.name.unwrap_or_default());
    let names = (0..net.devices()?).map(name).collect();
    net.finalize()?;
    names
}
