//! `mpib why`: why the jobs of this host are stuck or slow, in ten lines. [`look`] is one reading,
//! [`verdict`] compares several: [`process`] is one process of this host, [`chain`] follows waits from
//! process to process over what is [`known`] of all hosts, [`ask`] asks those to which they lead, and
//! [`waits`] puts them into words.

mod ask;
mod chain;
mod finding;
mod known;
mod look;
mod process;
mod verdict;
mod waits;

#[cfg(test)]
mod hosts_tests;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use mpib_agent::http::{self, Access};
use mpib_host_view::{Source, State, Waits};
use nccl_net_mpib_agent_iface::stats::NoPage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::failure::{Failure, Kind, printable};
use crate::output::{self, document, table::paragraph};
use crate::perf;
use crate::quantity::{interval, pid};
use crate::stats::{Failed, exit_codes};
use ask::{Asked, How};
use finding::Finding;
use known::Known;
use look::Look;
use verdict::verdict;

const EXIT_CODES: &str = concat!(
    exit_codes!("nothing is wrong, or no process has statistics and none was named"),
    "\n  7  something is wrong: the first line says what"
);

/// The exit code for something that is wrong.
const FAULT: u8 = 7;
/// Looks over the whole time. The first and the last are compared; all of them show how often the
/// network is in use.
const LOOKS: u32 = 25;
/// The time between the two readings of a look.
const MOMENT: Duration = Duration::from_millis(4);
/// The most lines of the text.
const LINES: usize = 10;

/// Says why the processes with this project's plugin on this host are stuck or slow, and where to look
/// next
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct WhyArgs {
    /// The process [default: all that this user may inspect]
    #[arg(value_parser = pid)]
    pid: Option<u32>,

    /// How long to look
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "5")]
    time: Duration,

    /// Ask at most this many other hosts, to which the waits lead
    #[arg(long, value_name = "N", default_value_t = 16)]
    ask: u8,

    /// The port of their agents
    #[arg(long, value_name = "PORT", default_value_t = http::DEFAULT.port())]
    agent_port: u16,

    /// Ask these agents over TLS: a file with the certificates, in PEM form, of those who have signed theirs
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,

    /// Ask them with the USER:PASSWORD in this file, which only its owner can read
    #[arg(long, value_name = "FILE", requires = "agent_ca")]
    agent_login: Option<PathBuf>,

    /// The port of "mpib doctor --listen", which is asked where no agent answers
    #[arg(long, value_name = "PORT", default_value_t = perf::PORT)]
    doctor_port: u16,

    /// Print a JSON document instead of the lines
    #[arg(long)]
    json: bool,

    /// Print the JSON schema of that document
    #[arg(long, exclusive = true)]
    schema: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
struct Document {
    /// Version of this format. New members do not change it.
    format: u32,
    /// This tool's version.
    mpib: &'static str,
    /// Name of this host.
    hostname: String,
    /// Time of the last look, in ms since 1970 (UTC).
    at_ms: u64,
    /// Time between the first look and the last.
    seconds: f64,
    /// 7 if the first finding is a fault.
    exit_code: u8,
    /// The other hosts to which waits lead, in the order in which they were asked.
    hosts: Vec<Asked>,
    /// The gravest comes first. There is one at least.
    findings: Vec<Finding>,
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &WhyArgs) -> ExitCode {
    if args.schema {
        return document::show_schema::<Document>();
    }
    match answer(args) {
        Ok(exit_code) => exit_code,
        Err(failed) => failed.report(args.json),
    }
}

fn answer(args: &WhyArgs) -> Result<ExitCode, Failed> {
    let access = args.agent_ca.as_deref().map(|file| Access::read(file, args.agent_login.as_deref()));
    let access = access.transpose().map_err(|why| Failure::new(Kind::Usage, why))?.unwrap_or_default();
    let looks = looks(args)?;
    let own = waits(&looks);
    let agents = args.agent_port;
    let how = How { most: args.ask.into(), agents, access: &access, doctors: args.doctor_port };
    let asked = ask::hosts(&own, args.pid, how);
    let document = Document::of(&looks, &own, asked, args.pid);
    if args.json {
        document::print(&document)?
    } else {
        output::print(&document.text())?
    }
    Ok(ExitCode::from(document.exit_code))
}

/// Looks at the whole host also for one process: it may wait for another one here.
fn looks(args: &WhyArgs) -> Result<Vec<Look>, Failed> {
    let (mut source, mut looks) = (Source::default(), Vec::new());
    let host = source.host().map_err(|e| Failed::page(None, &e))?;
    let mut pids: Vec<u32> = host.processes.iter().map(|process| process.pid).collect();
    let has_page = |source: &mut Source, pid| source.process(pid).map(drop).map_err(|e| no_page(pid, &e));
    if let Some(pid) = args.pid {
        has_page(&mut source, pid)?;
        pids.push(pid);
    }
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() {
        return Ok(vec![Look::at(&host.clone(), host)]);
    }
    let start = Instant::now();
    for n in 0..LOOKS {
        sleep((args.time * n / (LOOKS - 1)).saturating_sub(start.elapsed()));
        let before = source.processes(&pids);
        sleep(MOMENT);
        looks.push(Look::at(&before, source.processes(&pids)));
    }
    // It may have ended meanwhile.
    args.pid.map_or(Ok(()), |pid| has_page(&mut source, pid))?;
    Ok(looks)
}

/// Returns who waits for whom here.
fn waits(looks: &[Look]) -> Waits {
    let hosts: Vec<_> = looks.iter().map(|look| &look.host).collect();
    Waits::of(&hosts)
}

fn no_page(pid: u32, why: &NoPage) -> Failed {
    match why {
        NoPage::NoProcess if State::of(pid) == State::Zombie => {
            Failed::ended(pid, "it has ended (a zombie): its parent has not waited for it")
        }
        why => Failed::page(Some(pid), why),
    }
}

impl Document {
    fn of(looks: &[Look], own: &Waits, hosts: Vec<Asked>, pid: Option<u32>) -> Self {
        let findings = verdict(looks, Known { own, asked: &hosts }, pid);
        let at = |look: Option<&Look>| look.map_or(0, |look| look.host.at_ms);
        let (first, last) = (at(looks.first()), at(looks.last()));
        let is_fault = findings.first().is_some_and(|finding| finding.kind.is_fault());
        Self {
            format: 1,
            mpib: env!("CARGO_PKG_VERSION"),
            hostname: own.hostname.clone(),
            at_ms: last,
            seconds: last.saturating_sub(first) as f64 / 1e3,
            exit_code: if is_fault { FAULT } else { 0 },
            hosts,
            findings,
        }
    }

    /// Formats the first finding with its evidence, then the others, then what to do next.
    fn text(&self) -> String {
        let Some((first, others)) = self.findings.split_first() else { return String::new() };
        let next = first.next.as_ref().map(|next| format!("next: {next}"));
        let room = LINES - 1 - next.iter().len();
        let mut lines: Vec<String> = first.evidence.iter().map(|line| format!("  {line}")).collect();
        lines.truncate(room);
        let left = room - lines.len();
        if others.len() <= left {
            lines.extend(others.iter().map(|finding| format!("also: {}", finding.text)));
        } else if left > 0 {
            lines.extend(others.iter().take(left - 1).map(|finding| format!("also: {}", finding.text)));
            lines.push(format!("also: {} more findings, with --json", others.len() - (left - 1)));
        }
        let all = std::iter::once(first.text.clone()).chain(lines).chain(next);
        all.map(|line| paragraph(0, &printable(&line))).collect()
    }
}
