//! `mpib stats`: shows the connections of running processes from their statistics pages.
//!
//! `gather` reads the pages into the documents of `--json`; `table` prints them for people.

mod gather;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use gather::{Gathered, gather};
use nccl_net_mpib_agent_iface::stats::NoPage;

/// Exit codes for `--help`.
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

    /// Print again at this interval, with rates, until the processes have ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.1..=86_400.0).contains(&number) {
        return Err(format!("{text} is out of range; expected 0.1 to 86400 seconds"));
    }
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string())
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &StatsArgs) -> ExitCode {
    match show(args) {
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

fn show(args: &StatsArgs) -> Result<(), Failed> {
    let mut last: Option<Gathered> = None;
    loop {
        let mut now = match (gather(args.pid), &last) {
            (Ok(now), _) => now,
            // A process that is about to end closes its page first.
            (Err((pid, NoPage::NoProcess | NoPage::None)), Some(last)) => {
                eprintln!("mpib: process {pid} ({}) has ended", last.processes[0].command);
                return Ok(());
            }
            (Err((pid, e)), _) => return Err((code(&e), format!("process {pid}: {e}"))),
        };
        if let Some(last) = &last {
            now.rates(last);
        }
        now.unreadable.iter().for_each(|why| eprintln!("mpib: {why}"));
        print(args, &now)?;
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

fn print(args: &StatsArgs, now: &Gathered) -> Result<(), Failed> {
    let text = match (args.json, args.watch) {
        (false, _) => Ok(table::text(now)),
        (true, None) => serde_json::to_string_pretty(now).map(|text| text + "\n"),
        (true, Some(_)) => serde_json::to_string(now).map(|text| text + "\n"),
    };
    let text = text.map_err(|e| (1, format!("cannot encode the document: {e}")))?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => (0, String::new()),
        _ => (1, format!("cannot write to stdout: {e}")),
    })
}

fn code(why: &NoPage) -> u8 {
    match why {
        NoPage::Io { .. } => 1,
        NoPage::NoProcess => 3,
        NoPage::NotPermitted => 4,
        NoPage::None => 5,
        NoPage::Bad { .. } => 6,
    }
}
