//! `mpib stats`: what the connections of running processes have done, from their statistics pages.

mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use mpib_host_view::{Host, Ledger, MetricsOptions, Source, metrics, schema, write_textfile};
use nccl_net_mpib_agent_iface::stats::NoPage;

const EXIT_CODES: &str = "\
Exit codes:
  0  statistics were shown
  1  the tool itself failed, or the system returned something unexpected
  2  invalid options
  3  no such process
  4  no permission to inspect the process
  5  no statistics page: no plugin in the process, not initialised, or MPIB_STATS=0
  6  the page cannot be read: it is not sealed, damaged, or of another version";

/// Shows the connections of this project's plugin in any process that this user may inspect
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct StatsArgs {
    /// The process [default: all that this user may inspect]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

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
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Parses an interval.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.1..=86_400.0).contains(&number) {
        return Err(format!("{text} is out of range; expected 0.1 to 86400 seconds"));
    }
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string())
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &StatsArgs) -> ExitCode {
    let done = match (args.schema, args.is_metrics()) {
        (true, _) => print(&schema()),
        (_, true) => show_metrics(args),
        _ => show(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err((_, why)) if why.is_empty() => ExitCode::SUCCESS,
        Err((code, why)) => {
            eprintln!("mpib: {why}");
            ExitCode::from(code)
        }
    }
}

type Failed = (u8, String);

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

    fn failed(&self, why: &NoPage) -> Failed {
        let process = self.pid.map_or(String::new(), |pid| format!("process {pid}: "));
        (code(why), format!("{process}{why}"))
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
            (Err(e), _) => return Err(args.failed(&e)),
        };
        if let Some(last) = &last {
            now.rates(last);
        }
        now.unreadable.iter().for_each(|why| eprintln!("mpib: {why}"));
        print(&text(args, &now)?)?;
        if now.processes.is_empty() {
            let others = match now.not_permitted {
                0 => String::new(),
                n => format!("; {n} of other users cannot be inspected"),
            };
            return match last {
                // All watched processes have ended.
                Some(_) => Ok(()),
                None => Err((5, format!("no process has a statistics page{others}"))),
            };
        }
        let Some(pause) = args.watch else { return Ok(()) };
        last = Some(now);
        sleep(pause);
    }
}

/// Prints or writes metrics. A host without processes has metrics, too: the collector must not find
/// those of processes that have ended.
fn show_metrics(args: &StatsArgs) -> Result<(), Failed> {
    let (mut source, mut ledger) = (Source::default(), Ledger::default());
    loop {
        let mut host = args.read(&mut source).map_err(|e| args.failed(&e))?;
        ledger.update(&mut host);
        host.unreadable.iter().for_each(|why| eprintln!("mpib: {why}"));
        let text = metrics(&host, MetricsOptions { per_peer: args.per_peer });
        match &args.textfile {
            None => print(&text)?,
            Some(dir) => {
                let failed = |e| (1, format!("cannot write mpib.prom in {}: {e}", dir.display()));
                write_textfile(dir, &text).map_err(failed)?;
            }
        }
        let Some(pause) = args.watch else { return Ok(()) };
        sleep(pause);
    }
}

fn text(args: &StatsArgs, now: &Host) -> Result<String, Failed> {
    let text = match (args.json, args.watch) {
        (false, _) => Ok(table::text(now)),
        (true, None) => serde_json::to_string_pretty(now).map(|text| text + "\n"),
        (true, Some(_)) => serde_json::to_string(now).map(|text| text + "\n"),
    };
    text.map_err(|e| (1, format!("cannot encode the document: {e}")))
}

fn print(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => (0, String::new()),
        _ => (1, format!("cannot write to stdout: {e}")),
    })
}

/// Returns the exit code for a process without a page that can be read.
pub(crate) fn code(why: &NoPage) -> u8 {
    match why {
        NoPage::Io { .. } => 1,
        NoPage::NoProcess => 3,
        NoPage::NotPermitted => 4,
        NoPage::None => 5,
        NoPage::Bad { .. } => 6,
    }
}
