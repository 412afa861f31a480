//! Measures this plugin and others on the same simulated rails, with the same driver.
//!
//! Every figure comes from a child process (`mpib perf`, or `mpib-bench solo` under callgrind) with
//! its own environment, in alternating rounds (`measure`). `figures` computes ratios, `table` and
//! `chart` show them. This process loads no plugin.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use serde::Serialize;

use mpib::failure::{Context, Failure, Kind};
use mpib::output::{self, document};
use mpib::plugin;
use nccl_net_host::Family;

use crate::contestant::Contestant;
use crate::figures::Report;
use crate::{chart, failover, measure, one_sided, scenario, table};

/// Measures this plugin and others on the same softverbs rails, in alternating rounds, and prints
/// the ratios
///
/// Plugin settings (MPIB_*, NCCL_*, SOFTVERBS_*) in the environment are not passed on: each
/// scenario has its own.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// Another plugin: FILE, or FILE,table=SYMBOL,abi=vN for a table that is not exported; ",merge"
    /// merges the rails with makeVDevice, ",name=TEXT" sets its name. May be given several times
    #[arg(long, value_name = "SPEC", required = true)]
    plugin: Vec<Contestant>,

    /// This plugin's file [default: libnccl-net-mpib.so next to this program]
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,

    /// The folder with softverbs' libibverbs.so.1 [default: softverbs next to this
    /// program]
    #[arg(long, value_name = "DIR")]
    softverbs: Option<PathBuf>,

    /// Alternating rounds; each figure is the median over them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Time for each size in each round
    #[arg(long, value_name = "TIME", default_value = "0.3", value_parser = mpib::quantity::time)]
    time: Duration,

    /// Connections with which their rate and memory are measured
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,

    /// Only scenarios whose name begins with this: one, equal, 2+1, 2+0.5, null
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Measure faults instead: one of two rails fails and returns under load, once in each round
    #[arg(long, conflicts_with_all = ["only", "svg"])]
    failover: bool,

    /// Measure one-sided traffic instead, by the RMA tables, on rails as fast as the machine
    #[arg(long, conflicts_with_all = ["only", "svg", "failover", "goals"])]
    one_sided: bool,

    /// Also show the goals of this project's plugin, and whether the medians reach them
    #[arg(long, conflicts_with = "failover")]
    goals: bool,

    /// Do not count instructions (counting needs valgrind)
    #[arg(long)]
    no_instructions: bool,

    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,

    /// Also write the JSON document to this file
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,

    /// Also draw the ratios into this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Also write the table to this file (Markdown)
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Document {
    Comparison(Report),
    /// With `--failover`.
    Failover(failover::Report),
    /// With `--one-sided`.
    OneSided(one_sided::Report),
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &CompareArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let exit_code = failure.kind.exit_code();
            document::failed(args.json, failure, exit_code)
        }
    }
}

fn run(args: &CompareArgs) -> Result<(), Failure> {
    let ours = Contestant::ours(args.ours.clone().map_or_else(plugin::default_path, Ok)?);
    let mut contestants = vec![ours];
    contestants.extend(args.plugin.iter().cloned());
    let family = if args.one_sided { Family::RMA } else { Family::NET };
    for contestant in &contestants {
        contestant.check_table(family)?;
    }
    let softverbs = args.softverbs.clone().map_or_else(default_softverbs, Ok)?;
    if !softverbs.join("libibverbs.so.1").is_file() {
        let text = format!(
            "{}: no libibverbs.so.1 in this folder; \"make build\" creates build/softverbs",
            softverbs.display()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let work = measure::Work {
        contestants: &contestants,
        softverbs: &softverbs,
        rounds: args.rounds,
        time: args.time,
        connections: args.connections,
        instructions: !args.no_instructions,
    };
    if args.failover {
        let report = failover::measure(&work)?;
        let (text, markdown) = (report.text(), report.markdown());
        return show(args, &Document::Failover(report), &text, &markdown, None);
    }
    if args.one_sided {
        let report = one_sided::measure(&work)?;
        let (text, markdown) = (report.text(), report.markdown());
        return show(args, &Document::OneSided(report), &text, &markdown, None);
    }
    let scenarios = scenario::chosen(args.only.as_deref())?;
    let report = Report::new(&contestants, args.rounds, args.time, measure::all(&work, &scenarios)?);
    let (text, markdown) = (table::text(&report, args.goals), table::markdown(&report, args.goals));
    let svg = chart::svg(&report);
    show(args, &Document::Comparison(report), &text, &markdown, Some(svg))
}

fn show(
    args: &CompareArgs,
    document: &Document,
    text: &str,
    markdown: &str,
    svg: Option<String>,
) -> Result<(), Failure> {
    let json = document::text(document)?;
    let svg = svg.unwrap_or_default();
    // First: the failure of a file that cannot be written is the only document.
    for (file, content) in
        [(&args.json_file, &json), (&args.svg, &svg), (&args.markdown, &markdown.to_owned())]
    {
        if let Some(file) = file {
            fs::write(file, content).tool(format!("write {}", file.display()))?;
        }
    }
    match args.json {
        true => output::print(&json),
        false => output::print(&format!("{}\n", text.trim_end())),
    }
}

fn default_softverbs() -> Result<PathBuf, Failure> {
    plugin::softverbs()
        .map_err(|e| Failure::new(Kind::Usage, format!("{}, or name it with --softverbs", e.message)))
}
