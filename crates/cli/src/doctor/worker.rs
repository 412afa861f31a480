//! The process that loads the plugin and asks it. It is started by this same program, writes what it was told into a file, and ends.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use nccl_net_mpib_agent_iface::doctor::{FORMAT, Level, Report, Routes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::{Context, Failure, Kind};
use crate::plugin;
use mpib::rails;
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
    /// Where the findings go; the plugin may print on stdout.
    #[arg(long)]
    pub(super) output: PathBuf,
    /// Two files with what hosts say of their ports: asks for the routes between them instead.
    #[arg(long, num_args = 2)]
    pub(super) hosts: Vec<PathBuf>,
}

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Findings {
    /// `None`: the plugin does not export the function.
    pub(super) report: Option<Report>,
    /// Whether softverbs plays libibverbs.
    pub(super) softverbs: bool,
    /// What init and the questions after it came to: devices by name; absent where the report says that init fails.
    pub(super) init: Option<Result<Vec<String>, Failure>>,
}

/// The worker's main.
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

/// A document of the plugin.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let bad = |e: String| {
        Failure::new(
            Kind::Load,
            format!("the plugin's report cannot be read: {e}; take mpib and plugin of one release"),
        )
    };
    let head: Head = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    if head.format != FORMAT {
        return Err(bad(format!("format {}, expected {FORMAT}", head.format)));
    }
    serde_json::from_str(text).map_err(|e| bad(e.to_string()))
}

/// As NCCL begins.
fn init(args: &WorkerArgs) -> Result<Vec<String>, Failure> {
    let table = plugin::open_table(&args.plugin, args.table, None, None)?;
    let net = Net::init(table, &Settings::default())?;
    let name = |dev| Ok(net.properties(dev)?.name.unwrap_or_default());
    let names = (0..net.devices()?).map(name).collect();
    net.finalize()?;
    names
}
