//! `mpib perf`: measures and checks any plugin between two processes or two machines.
//!
//! This process loads no plugin. For each table it starts workers (`worker`), which load the
//! plugin, talk to each other (`link`) and move data: messages (`two_sided`, `flow`), or puts, signals
//! and gets (`one_sided`), measured in rounds (`measure`). It supervises them (`run`): a plugin that
//! hangs or crashes gives an error message.

mod area;
mod args;
mod breaker;
mod child;
mod connections;
mod control;
mod csv;
mod cuda;
mod flow;
mod link;
mod measure;
mod network;
mod one_sided;
mod outage;
mod pin;
mod pingpong;
mod plan;
mod probe;
mod remote;
mod report;
mod run;
mod session;
mod sizes;
mod two_sided;
mod ui;
pub(crate) mod worker;

use crate::{pattern, rails, region};
use std::{path::PathBuf, process::ExitCode};

pub use args::one_abi;
pub(crate) use args::{PORT, PerfArgs, TABLES};
pub(crate) use breaker::Outage;
pub(crate) use control::Channel;
pub(crate) use cuda::missing as no_cuda;
use link::Role;
pub(crate) use network::NetworkOutage;
pub(crate) use plan::Plan;
pub(crate) use probe::{Outcome, Probe};
pub(crate) use remote::{PROTOCOL, bind, canonical, dial, split};
use report::{AbiReport, Report};
pub(crate) use report::{Closing, RailState};
pub use report::{Stage, StageKind};
use run::Run;
pub(crate) use sizes::Sizes;
use ui::Ui;
use worker::Job;
pub(crate) use worker::{Death, Trial};

use crate::failure::{Context, Failure, Kind};
use crate::nccl_conf;
use crate::output::{self, document, document::ErrorReport};
use crate::plugin;

/// What all parts of a run share.
struct Setting {
    args: PerfArgs,
    plugin: PathBuf,
    exported: Vec<u32>,
    ui: Ui,
}

impl Setting {
    fn new(args: PerfArgs) -> Result<Self, Failure> {
        let plugin = args.plugin.clone().map_or_else(plugin::default_path, Ok)?;
        let family = args.operation.chosen().family();
        let exported = match &args.table {
            Some(symbol) => {
                let version = args.abi.single(symbol)?;
                family.check_hidden(&plugin, symbol, version)?;
                vec![version]
            }
            None => family.exported(&plugin)?,
        };
        let ui = Ui::new(args.json || args.csv);
        Ok(Self { args, plugin, exported, ui })
    }

    fn job(&self, version: u32, role: Role, plan: &Plan) -> Job {
        let device = match (role, self.args.peer_device) {
            (Role::B, Some(device)) => device,
            _ => self.args.device,
        };
        let verbose = self.args.verbose;
        Job {
            plugin: self.plugin.clone(),
            version,
            table: self.args.table.clone(),
            device,
            merge: self.args.merge.clone(),
            role,
            pin: self.args.pin.as_ref().map(|pins| match role {
                Role::B if self.args.listen.is_none() => pins.there.clone(),
                _ => pins.here.clone(),
            }),
            gpu: self.args.memory.gpu,
            plan: plan.clone(),
            verbose,
            env: merged(&self.args.merge),
            trial: Trial::default(),
        }
    }
}

/// Returns the variables of a worker that merges devices: the plugin merges devices without a PCI
/// address, as those of softverbs, only on request.
fn merged(devices: &[i32]) -> Vec<(String, Option<String>)> {
    const REQUEST: &str = "NCCL_NET_FORCE_MERGE";
    let requested = devices.is_empty() || std::env::var_os(REQUEST).is_some();
    if requested { Vec::new() } else { vec![(REQUEST.into(), Some("mpib perf --merge".into()))] }
}

/// Runs the command and prints failures.
pub(crate) fn main(args: PerfArgs) -> ExitCode {
    if args.schema {
        return document::show_schema::<Report>();
    }
    // The workers inherit the environment, as a job has it when it loads the plugin.
    for line in nccl_conf::applied(&nccl_conf::apply()) {
        eprintln!("mpib: {line}");
    }
    let (json, csv) = (args.json, args.csv);
    let mode = match (&args.listen, &args.connect) {
        (Some(_), _) => "listen",
        (_, Some(_)) => "connect",
        _ => "local",
    };
    let mut report = Report {
        mpib: env!("CARGO_PKG_VERSION"),
        plugin: args.plugin.clone().unwrap_or_default(),
        mode,
        plan: None,
        tables: Vec::new(),
        ok: false,
        error: None,
    };
    let outcome = measure(args, &mut report);
    report.ok = outcome.is_ok();
    let code = outcome.as_ref().map_or_else(Failure::exit_code, |()| ExitCode::SUCCESS);
    if let Err(failure) = outcome {
        failure.print();
        if failure.kind == Kind::Closed {
            return code;
        }
        report.error = Some(ErrorReport { exit_code: failure.kind.exit_code(), failure });
    }
    let printed = match (json, csv) {
        (true, _) => document::print(&report),
        (_, true) => csv::text(&report.tables).and_then(|text| output::print(&text)),
        _ => Ok(()),
    };
    match printed {
        Ok(()) => code,
        Err(failure) => failure.end(),
    }
}

fn measure(args: PerfArgs, report: &mut Report) -> Result<(), Failure> {
    let setting = Setting::new(args)?;
    report.plugin.clone_from(&setting.plugin);
    let outcome = match (&setting.args.listen, &setting.args.connect) {
        (Some(address), _) => remote::listen(&setting, address, report),
        (_, Some(address)) => remote::connect(&setting, address, report),
        _ => local(&setting, report),
    };
    setting.ui.finish();
    outcome
}

/// Runs both ends on this machine.
fn local(setting: &Setting, report: &mut Report) -> Result<(), Failure> {
    let plan = setting.args.plan()?;
    report.plan = Some(plan.clone());
    let versions = setting.args.abi.choose(&setting.exported, &setting.plugin.display().to_string())?;
    setting.ui.expect(versions.len() * plan.sizes.len());
    for version in versions {
        let (a, b) = Channel::pair().tool("make a socket pair")?;
        let jobs = vec![(setting.job(version, Role::A, &plan), a), (setting.job(version, Role::B, &plan), b)];
        table(setting, jobs, &plan, &mut report.tables)?;
    }
    Ok(())
}

/// Runs the jobs of one table to their end.
fn table(
    setting: &Setting,
    jobs: Vec<(Job, std::os::fd::OwnedFd)>,
    plan: &Plan,
    tables: &mut Vec<AbiReport>,
) -> Result<(), Failure> {
    let (table, outcome) = Run::start(jobs, plan, &setting.ui)?.finish(None);
    if !table.results.is_empty() {
        setting.ui.total(&table, plan)?;
    }
    let place = format!("v{}", table.abi);
    tables.push(table);
    outcome.map_err(|f| f.at(place))
}
