//! `mpib stats`: what the connections of running processes have done, from their statistics pages.

mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use mpib_host_view::{Host, Ledger, MetricsOptions, Source, metrics, schema, write_textfile};
use nccl_net_mpib_agent_iface::stats::NoPage;

use crate::failure::{Context, Failure, Kind};
use crate::output::{self, columns::terminal_width, document};
use crate::quantity::{interval, pid};

/// The exit codes of a command that reads statistics pages: what its 0 means, and then the others.
macro_rules! exit_codes {
    ($good:literal) => {
        concat!(
            "Exit codes:\n  0  ",
            $good,
            "
  1  the tool itself failed, or the system returned something unexpected
  2  invalid options
  3  no such process
  4  no permission to inspect the process
  5  no statistics page: no plugin in the process, not initialised, or MPIB_STATS=0
  6  the page cannot be read: it is not sealed, damaged, or of another version"
        )
    };
}
pub(crate) use exit_codes;

const EXIT_CODES: &str = exit_codes!("statistics were shown, or no process has any and none was named");

/// Shows the connections of this project's plugin in any process that this user may inspect
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct StatsArgs {
    /// The process [default: all that this user may inspect]
    #[arg(value_parser = pid)]
    pid: Option<u32>,

    /// List all connections, with all figures that the terminal has room for [default: all of a
    /// process that is named, else those that have failed, wait or lack a rail]
    #[arg(long)]
    connections: bool,

    /// Print a JSON document instead of the table; with --watch one per line
    #[arg(long)]
    json: bool,

    /// Print the JSON schema of that document
    #[arg(long, exclusive = true)]
    schema: bool,

    /// Print metrics for Prometheus instead of the table
    #[arg(long, conflicts_with = "json")]
    metrics: bool,

    /// Write the metrics to mpib.prom in this folder of node_exporter's textfile collector
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "metrics"])]
    textfile: Option<PathBuf>,

    /// Add metrics for each peer, at most 256 of them
    #[arg(long)]
    per_peer: bool,

    /// Print again at this interval, with rates, until the processes have ended; metrics without an
    /// end
    #[arg(long, value_name = "TIME", value_parser = interval)]
    watch: Option<Duration>,
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &StatsArgs) -> ExitCode {
    let done = match (args.schema, args.is_metrics()) {
        (true, _) => output::print(&schema()).map_err(Failed::from),
        (_, true) => show_metrics(args),
        _ => show(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(args.json),
    }
}

/// A failure with the exit code of this command.
#[derive(Debug)]
pub(crate) struct Failed {
    code: u8,
    failure: Failure,
}

impl Failed {
    fn new(code: u8, why: impl Into<String>) -> Self {
        Self { code, failure: Failure::new(Kind::Tool, why) }
    }

    /// Makes the failure of a process whose page cannot be read; without a process, of the host.
    pub(crate) fn page(pid: Option<u32>, why: &NoPage) -> Self {
        let process = pid.map_or(String::new(), |pid| format!("process {pid}: "));
        Self::new(code(why), format!("{process}{why}"))
    }

    /// Makes the failure of a process that has ended.
    pub(crate) fn ended(pid: u32, why: &str) -> Self {
        Self::new(code(&NoPage::NoProcess), format!("process {pid}: {why}"))
    }

    /// Prints the failure; returns the exit code.
    pub(crate) fn print(&self) -> ExitCode {
        self.failure.print();
        ExitCode::from(self.code)
    }

    /// Prints the failure, with `json` as a document, too; returns the exit code.
    pub(crate) fn report(self, json: bool) -> ExitCode {
        document::failed(json, self.failure, self.code)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { code: failure.kind.exit_code(), failure }
    }
}

impl StatsArgs {
    fn is_metrics(&self) -> bool {
        self.metrics || self.textfile.is_some()
    }

    fn read(&self, source: &mut Source) -> Result<Host, NoPage> {
        match self.pid {
            Some(pid) => source.process(pid),
            None => source.host(),
        }
    }
}

fn show(args: &StatsArgs) -> Result<(), Failed> {
    let (mut source, mut last) = (Source::default(), None::<Host>);
    loop {
        let mut now = match (args.read(&mut source), &last) {
            (Ok(now), _) => now,
            // A process that is about to end closes its page first.
            (Err(NoPage::NoProcess | NoPage::None), Some(last)) => {
                let process = &last.processes[0];
                eprintln!("mpib: process {} ({}) has ended", process.pid, process.command);
                return Ok(());
            }
            (Err(e), _) => return Err(Failed::page(args.pid, &e)),
        };
        if let Some(last) = &last {
            now.rates(last);
        }
        report_left_out(&now);
        output::print(&text(args, &now)?)?;
        if now.processes.is_empty() {
            // An idle host, or all watched processes have ended.
            if last.is_none() {
                eprintln!("mpib: {}", nobody(&now));
            }
            return Ok(());
        }
        let Some(pause) = args.watch else { return Ok(()) };
        last = Some(now);
        sleep(pause);
    }
}

/// Describes a host without pages.
pub(crate) fn nobody(host: &Host) -> String {
    let others = match host.not_permitted {
        0 => String::new(),
        n => format!("; {n} of other users cannot be inspected"),
    };
    format!("no process has a statistics page{others}")
}

/// Prints which processes are not in the document, but for those of other users.
fn report_left_out(host: &Host) {
    host.unreadable.iter().for_each(|why| eprintln!("mpib: {why}"));
    if host.not_inspected > 0 {
        eprintln!(
            "mpib: {} processes were not inspected: too many pages were read before",
            host.not_inspected
        );
    }
}

/// Prints or writes metrics. A host without processes has metrics, too: the collector must not find
/// those of processes that have ended.
fn show_metrics(args: &StatsArgs) -> Result<(), Failed> {
    let (mut source, mut ledger) = (Source::default(), Ledger::default());
    loop {
        let mut host = args.read(&mut source).map_err(|e| Failed::page(args.pid, &e))?;
        ledger.update(&mut host, &source.ports());
        report_left_out(&host);
        let text = metrics(&host, MetricsOptions { per_peer: args.per_peer });
        match &args.textfile {
            None => output::print(&text)?,
            Some(dir) => {
                write_textfile(dir, &text).tool(format!("write mpib.prom in {}", dir.display()))?;
            }
        }
        let Some(pause) = args.watch else { return Ok(()) };
        sleep(pause);
    }
}

fn text(args: &StatsArgs, now: &Host) -> Result<String, Failure> {
    let text = match (args.json, args.watch) {
        (false, _) => {
            let all = args.connections || args.pid.is_some();
            return Ok(table::text(now, all, terminal_width()));
        }
        (true, None) => serde_json::to_string_pretty(now),
        (true, Some(_)) => serde_json::to_string(now),
    };
    Ok(text.tool("encode the document")? + "\n")
}

/// Returns the exit code for a process without a page that can be read.
fn code(why: &NoPage) -> u8 {
    match why {
        NoPage::Io { .. } => 1,
        NoPage::NoProcess => 3,
        NoPage::NotPermitted => 4,
        NoPage::None => 5,
        NoPage::Bad { .. } => 6,
    }
}
