//! `mpib doctor`: what is wrong on this host, before a job finds out.
//!
//! The plugin itself says what it would do here (`worker` asks it, in a process of its own, which `inspect` watches);
//! `loader`, `system` and `agent` look at what is not the plugin's. `text` prints for people; `--json` is [`Document`].

mod agent;
mod ask;
mod inspect;
mod listen;
mod loader;
mod peer;
mod system;
mod text;
pub(crate) mod worker;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Report};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure};
use crate::plugin;

/// What a script may ask for.
const EXIT_CODES: &str = "\
Exit codes:
  0  usable
  1  usable with losses
  2  unusable (and options that make no sense)
  3  no verdict: the doctor itself failed";

/// The doctor's own failure.
const NO_VERDICT: u8 = 3;

/// Says what this project's plugin would do on this host under the present environment, what is wrong, and what to do.
///
/// Run it as the job would run: as the same user, with the same variables and limits, in the same container.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DoctorArgs {
    /// Check the ways to another machine, where "mpib doctor --listen" waits, as well
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen")]
    peer: Option<String>,

    /// Wait for other machines' "mpib doctor HOST", one after the other, until this command is ended
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    listen: Option<String>,

    /// Measure pairs of ports too that a connection would not try first
    #[arg(long, requires = "peer")]
    all: bool,

    /// The plugin's file [default: libnccl-net-mpib.so next to mpib, in ../lib, or in ./build]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// libnccl.so.2, or another file that has NCCL in it [default: the one that the dynamic linker would load here]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,

    /// Give up on a plugin that does not answer for this long
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::perf::seconds)]
    timeout: Duration,

    /// Print one JSON document instead of the lines
    #[arg(long)]
    json: bool,

    /// Show every setting, and the entries of GID tables that are not used
    #[arg(long, short)]
    verbose: bool,
}

/// All of `--json`.
#[derive(Debug, Serialize)]
struct Document {
    /// Version of this form: a field may come on top without a new one.
    format: u32,
    /// This tool's version.
    mpib: &'static str,
    verdict: Verdict,
    exit_code: u8,
    plugin: Option<PathBuf>,
    /// Absent where there is no libnccl to be found.
    nccl: Option<loader::Nccl>,
    /// In order, the plugin's own among them.
    checks: Vec<Check>,
    /// The other machine, where one was named.
    peer: Option<peer::Summary>,
    /// Every pair of ports, where another machine was named.
    routes: Vec<peer::Row>,
    /// What the plugin says of this host; its checks are in `checks`. Absent where it cannot be asked.
    report: Option<Report>,
}

/// What all checks come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    #[serde(rename = "usable")]
    Usable,
    #[serde(rename = "usable with losses")]
    Losses,
    #[serde(rename = "unusable")]
    Unusable,
}

impl Verdict {
    fn of(checks: &[Check]) -> Self {
        match checks.iter().map(|check| check.level).max() {
            Some(Level::Fail) => Self::Unusable,
            Some(Level::Warn) => Self::Losses,
            Some(Level::Ok | Level::Note) | None => Self::Usable,
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Self::Usable => 0,
            Self::Losses => 1,
            Self::Unusable => 2,
        }
    }
}

/// The command. Failures are printed here.
pub(crate) fn main(args: &DoctorArgs) -> ExitCode {
    let outcome = match &args.listen {
        Some(address) => listen::listen(args, address),
        None => run(args),
    };
    match outcome {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(failure) => {
            eprintln!("mpib: {failure}");
            ExitCode::from(NO_VERDICT)
        }
    }
}

fn run(args: &DoctorArgs) -> Result<Verdict, Failure> {
    let mut document = look(args)?;
    if let Some(peer) = &args.peer {
        peer::check(args, peer, &mut document)?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&document).tool("encode the document")? + "\n"
    } else {
        text::text(&document, args.verbose, text::colours())
    };
    io::stdout().lock().write_all(text.as_bytes()).tool("write to stdout")?;
    Ok(document.verdict)
}

/// Everything about this host.
fn look(args: &DoctorArgs) -> Result<Document, Failure> {
    let plugin = args.plugin.clone().map_or_else(plugin::default_path, Ok);
    let exports = plugin.as_ref().map_err(Clone::clone).and_then(|path| crate::abi::exports(path));
    let (nccl, mut checks) = loader::checks(plugin.as_deref().ok(), &exports, args.nccl.as_deref());
    let mut report = None;
    if let (Ok(path), Ok(_)) = (&plugin, &exports) {
        let found = inspect::inspect(path, args.timeout)?;
        checks.extend(system::checks(Path::new("/"), found.softverbs, found.report.as_ref()));
        if let Some(told) = &found.report {
            checks.extend(told.checks.iter().cloned());
            checks.extend(agent::checks(told));
        }
        checks.extend(found.checks);
        report = found.report;
    }
    let verdict = Verdict::of(&checks);
    Ok(Document {
        format: 1,
        mpib: env!("CARGO_PKG_VERSION"),
        verdict,
        exit_code: verdict.exit_code(),
        plugin: plugin.ok(),
        nccl,
        checks,
        peer: None,
        routes: Vec::new(),
        report,
    })
}

impl Document {
    /// More was found.
    fn add(&mut self, checks: Vec<Check>) {
        self.checks.extend(checks);
        self.verdict = Verdict::of(&self.checks);
        self.exit_code = self.verdict.exit_code();
    }
}
