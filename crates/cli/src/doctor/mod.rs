//! `mpib doctor`: finds faults of this host before a job does.
//!
//! The plugin reports what it would do here: `worker` calls it in a separate process, which
//! `inspect` supervises. What does not belong to the plugin is checked by `loader` (with the table of
//! `search`), `conf` (NCCL's files), `system`, `provider`, `pcie`, `gpu_path`, `functions`, `subnets`,
//! `memory`, `windows` and `agent`. `peer`
//! and `listen` check a pair of machines, which `differs`, `judge`, `faults` and `fused` rate, by the runs of
//! `session`, and
//! `fleet` pairs of many. `perftest` compares a pair with `ib_write_bw` for `mpib hwcheck`. `expect` compares a
//! host with another one's record. `head`, `text` and `fold` print for people; [`Document`] is the output of
//! `--json`, and `bundle` writes it with
//! what a maintainer asks for.

mod agent;
mod ask;
pub(crate) mod bundle;
mod conf;
mod differs;
mod expect;
mod faults;
mod fleet;
mod fold;
mod functions;
mod fused;
mod gpu_path;
mod head;
mod inspect;
mod judge;
mod listen;
mod loader;
mod memory;
mod pcie;
mod peer;
mod perftest;
mod provider;
mod search;
mod session;
mod subnets;
mod sysfs;
mod system;
mod text;
mod windows;
pub(crate) mod worker;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
pub(crate) use fleet::at_once;
pub(crate) use fused::losses;
pub(crate) use listen::listen;
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Report};
pub(crate) use peer::{PROTOCOL, Summary, check_routes, plugin_message, waits};
pub(crate) use perftest::{Measure, Tools};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub(crate) use session::{Counters, Ends, Order, Session, Use, counters};
pub(crate) use text::checks as text_of;

use crate::failure::{Failure, Kind};
use crate::nccl_conf::{self, ConfFile};
use crate::output::{self, document};
use crate::plugin;

/// Exit codes for `--help`.
const EXIT_CODES: &str = "\
Exit codes:
  0  usable
  1  usable with losses
  2  unusable, or NCCL would not open the plugin (also: invalid options)
  3  no verdict: the doctor itself failed";

/// Exit code for a failure of the doctor itself.
pub(crate) const NO_VERDICT: u8 = 3;

/// Reports what this project's plugin would do on this host with the present environment, what is
/// wrong, and what to do
///
/// Run it as the job would run: as the same user, with the same variables and limits, in the same
/// container.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DoctorArgs {
    /// Also check the routes to another machine, on which "mpib doctor --listen" waits. With several
    /// of them: check pairs of these hosts, as --hosts does
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen")]
    peers: Vec<String>,

    /// Serve other machines' "mpib doctor HOST", one after another, until this command is ended
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    listen: Option<String>,

    /// Check pairs of the hosts in FILE, which has HOST[:PORT] on each line. On each of them
    /// "mpib doctor --listen --hosts FILE" waits. With --listen: connect to these hosts on request,
    /// and to no other
    #[arg(long, value_name = "FILE", conflicts_with = "peers")]
    hosts: Option<PathBuf>,

    /// Check the hosts of all ranks of a job, each with this command: srun mpib doctor --all-ranks.
    /// Rank 0 prints the result, and all end with its exit code
    #[arg(long, conflicts_with_all = ["peers", "listen", "hosts"])]
    all_ranks: bool,

    /// Where rank 0 of --all-ranks is [default: the first host of Slurm's list, or MASTER_ADDR]
    #[arg(long, value_name = "HOST[:PORT]", requires = "all_ranks")]
    root: Option<String>,

    /// How long the ranks of --all-ranks wait for each other
    #[arg(long, value_name = "TIME", default_value = "120", value_parser = crate::quantity::time)]
    wait: Duration,

    /// Which pairs of many hosts are checked: ring, random:N (each host with N others) or all [default:
    /// all up to 16 hosts, else random:3]
    #[arg(long, value_name = "RULE")]
    pairs: Option<fleet::Pairs>,

    /// Decides the pairs of random:N; the same number gives the same pairs [default: another one each
    /// time, which is printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Write the names of bad hosts to FILE, each with the reasons as a comment
    #[arg(long, value_name = "FILE")]
    bad_hosts: Option<PathBuf>,

    /// Write the result of many hosts to FILE as one HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Also measure pairs of ports that a connection would not try first
    #[arg(long, requires = "peers")]
    all: bool,

    /// The plugin's file [default: libnccl-net-mpib.so next to mpib or in ../lib]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// libnccl.so.2, or another file that has NCCL in it [default: the one that the dynamic linker
    /// would load here]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,

    /// Give up on a plugin that does not answer for this long
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = crate::quantity::time)]
    timeout: Duration,

    /// Also write FILE.tar.gz with the report, settings, statistics, versions and the files of /sys and
    /// /proc that matter, for a maintainer. It has host names and addresses, and no secrets
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "hosts", "all_ranks"])]
    bundle: Option<PathBuf>,

    /// Write what this host has to a new FILE, for --expect on hosts that are to be equal
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "hosts", "peers", "all_ranks"])]
    record: Option<PathBuf>,

    /// Every difference to what FILE has is a failure
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    expect: Option<PathBuf>,

    /// Whether another command leads the run: it opens the plugin itself, as NCCL might not.
    #[arg(skip)]
    is_led: bool,

    /// Print one JSON document instead of the lines
    #[arg(long)]
    json: bool,

    /// Print the JSON schema of that document
    #[arg(long, exclusive = true)]
    schema: bool,

    /// Show the good checks, every setting, and the unused entries of GID tables
    #[arg(long, short)]
    verbose: bool,

    /// Print the verdict and the failures alone
    #[arg(long, short, conflicts_with_all = ["verbose", "json"])]
    quiet: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// Version of this document. New fields may be added without a new version.
    format: u32,
    /// This tool's version.
    mpib: &'static str,
    verdict: Verdict,
    exit_code: u8,
    pub(crate) plugin: Option<PathBuf>,
    /// Absent if no libnccl was found.
    nccl: Option<loader::Nccl>,
    /// NCCL's configuration files, in the order in which NCCL reads them.
    conf_files: Vec<ConfFile>,
    /// All checks in order, including the plugin's own.
    pub(crate) checks: Vec<Check>,
    /// The other machine, if one was named.
    peer: Option<Summary>,
    /// Every pair of ports, if another machine was named.
    pub(crate) routes: Vec<peer::Row>,
    /// The plugin's report on this host without its checks, which are in `checks`. Absent if the
    /// plugin gave none.
    pub(crate) report: Option<Report>,
    /// What the peer judges this machine's ports by.
    #[serde(skip)]
    pub(crate) facts: Vec<judge::PortFacts>,
}

/// The result of all checks.
// The best comes first: the greatest of several verdicts is the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub(crate) enum Verdict {
    #[serde(rename = "usable")]
    Usable,
    #[serde(rename = "usable with losses")]
    Losses,
    /// NCCL would not open the plugin.
    #[serde(rename = "not used")]
    NotUsed,
    #[serde(rename = "unusable")]
    Unusable,
}

impl Verdict {
    fn of(checks: &[Check]) -> Self {
        if checks.iter().any(|check| check.id == loader::OPENED && check.level == Level::Fail) {
            return Self::NotUsed;
        }
        Self::of_level(checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok))
    }

    /// Returns the verdict on checks whose worst level is this.
    fn of_level(worst: Level) -> Self {
        match worst {
            Level::Fail => Self::Unusable,
            Level::Warn => Self::Losses,
            Level::Ok | Level::Note => Self::Usable,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Losses => "usable with losses",
            Self::NotUsed => "not used",
            Self::Unusable => "unusable",
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Self::Usable => 0,
            Self::Losses => 1,
            Self::NotUsed | Self::Unusable => 2,
        }
    }
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &DoctorArgs) -> ExitCode {
    if args.schema {
        return document::show_schema::<Document>();
    }
    let files = nccl_conf::apply();
    let outcome = args.check_for_many().and_then(|()| match &args.listen {
        Some(address) => listen(args, &files, address).map(Verdict::exit_code),
        None if args.all_ranks => fleet::ranks::main(args, &files),
        None if args.is_for_many() => fleet::main(args).map(Verdict::exit_code),
        None => run(args, &files).map(Verdict::exit_code),
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => document::failed(args.json, failure, NO_VERDICT),
    }
}

fn run(args: &DoctorArgs, files: &[ConfFile]) -> Result<Verdict, Failure> {
    if let Some(path) = &args.bundle {
        bundle::check_name(path)?;
    }
    let mut document = check_host(args, files)?;
    if let Some(peer) = args.peers.first() {
        peer::check(args, peer, &mut document, None)?;
    }
    if let Some(path) = &args.bundle {
        bundle::write(path, Path::new("/"), &document, &[])?;
        eprintln!("mpib: wrote {}; look through it before you send it", path.display());
    }
    if let Some(path) = &args.record {
        expect::record(path, Path::new("/"), &document)?;
        eprintln!("mpib: wrote {}", path.display());
    }
    match args.json {
        true => document::print(&document)?,
        false => output::print(&text::text(&document, args.detail()))?,
    }
    Ok(document.verdict)
}

/// Checks this host. `files`: NCCL's configuration files, which are in effect.
pub(crate) fn check_host(args: &DoctorArgs, files: &[ConfFile]) -> Result<Document, Failure> {
    let plugin = args.plugin.clone().map_or_else(plugin::default_path, Ok);
    let exports = plugin.as_ref().map_err(Clone::clone).and_then(|path| crate::abi::exports(path));
    let (nccl, mut checks) = loader::checks(plugin.as_deref().ok(), &exports, args.nccl.as_deref());
    if args.is_led {
        checks.iter_mut().filter(|check| check.id == loader::OPENED).for_each(loader::noted);
    }
    checks.extend(conf::checks(files));
    let (mut report, mut softverbs) = (None, false);
    if let (Ok(path), Ok(_)) = (&plugin, &exports) {
        let found = inspect::inspect(path, args.timeout)?;
        let root = Path::new("/");
        softverbs = found.softverbs;
        checks.extend(system::checks(root, found.softverbs, found.report.as_ref()));
        if let Some(report) = &found.report {
            checks.extend(report.checks.iter().cloned());
            checks.extend(pcie::checks(&report.ports));
            checks.extend(gpu_path::checks(root, &report.ports));
            checks.extend(functions::checks(root, &report.ports));
            checks.extend(subnets::checks(root, &report.ports));
            checks.extend(memory::checks(root, cfg!(target_arch = "aarch64")));
            let release = nccl.as_ref().and_then(loader::Nccl::release);
            // The plugin's: a warning if a GPU's driver is loaded, and nothing gives its memory to adapters.
            let reached = !report.checks.iter().any(|check| check.id == "gpu" && check.level > Level::Note);
            checks.push(windows::check(release, &report.ports, reached, |name| env::var(name).ok()));
            checks.extend(agent::checks(report));
        }
        if found.report.is_none() && found.checks.iter().any(|check| check.level == Level::Fail) {
            // The tables of a file that does not load are of no use.
            checks
                .retain(|check| !["plugin", loader::OPENED].contains(&&*check.id) || check.level > Level::Ok);
            checks.push(not_checked());
        }
        checks.extend(found.checks);
        report = found.report;
    }
    let known = report.as_ref().map_or(&[][..], |report: &Report| &report.settings);
    checks.extend(conf::environment(variables(), files, known));
    conf::name_files(&mut checks, files);
    let verdict = Verdict::of(&checks);
    let facts = report.as_ref().map_or_else(Vec::new, |report| judge::facts(report, softverbs));
    let mut document = Document {
        format: 1,
        mpib: env!("CARGO_PKG_VERSION"),
        verdict,
        exit_code: verdict.exit_code(),
        plugin: plugin.ok(),
        nccl,
        conf_files: files.to_vec(),
        checks,
        peer: None,
        routes: Vec::new(),
        report,
        facts,
    };
    if let Some(path) = &args.expect {
        let found = expect::checks(path, Path::new("/"), &document)?;
        document.add(found);
    }
    Ok(document)
}

/// Returns the variables of the environment that are text.
fn variables() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Returns whether a check found a loss or a failure.
pub(crate) fn is_wrong(check: &Check) -> bool {
    check.level >= Level::Warn
}

/// Names what only the plugin can check.
fn not_checked() -> Check {
    let text = "not checked, since the plugin gives no report: settings, devices, ports, addresses, control, gpu, memlock";
    Check::new("report", Level::Note, text).remedy("correct the failure of the plugin first")
}

impl DoctorArgs {
    /// Makes the options of a run that another command leads.
    pub(crate) fn of(plugin: Option<PathBuf>, nccl: Option<PathBuf>, timeout: Duration) -> Self {
        Self {
            peers: Vec::new(),
            listen: None,
            hosts: None,
            all_ranks: false,
            root: None,
            wait: Duration::ZERO,
            pairs: None,
            seed: None,
            bad_hosts: None,
            report: None,
            is_led: true,
            all: false,
            plugin,
            nccl,
            timeout,
            bundle: None,
            record: None,
            expect: None,
            json: false,
            schema: false,
            verbose: false,
            quiet: false,
        }
    }

    /// Whether pairs of many hosts are checked.
    fn is_for_many(&self) -> bool {
        self.listen.is_none() && (self.all_ranks || self.hosts.is_some() || self.peers.len() > 1)
    }

    /// Returns an error if an option for many hosts has only one, or the reverse.
    fn check_for_many(&self) -> Result<(), Failure> {
        let of_many = [
            ("--pairs", self.pairs.is_some()),
            ("--seed", self.seed.is_some()),
            ("--bad-hosts", self.bad_hosts.is_some()),
            ("--report", self.report.is_some()),
        ];
        let of_one = [("--bundle", self.bundle.is_some()), ("--all", self.all)];
        let (wrong, expected) = match self.is_for_many() {
            true => (of_one.iter().find(|(_, is_set)| *is_set), "one HOST at most"),
            false => {
                (of_many.iter().find(|(_, is_set)| *is_set), "several HOSTs, --hosts FILE or --all-ranks")
            }
        };
        match wrong {
            Some((name, _)) => Err(Failure::new(Kind::Usage, format!("{name}: expected {expected}"))),
            None => Ok(()),
        }
    }

    fn detail(&self) -> text::Detail {
        match (self.quiet, self.verbose) {
            (true, _) => text::Detail::Quiet,
            (false, true) => text::Detail::Verbose,
            (false, false) => text::Detail::Normal,
        }
    }
}

impl Document {
    /// Adds checks.
    fn add(&mut self, checks: Vec<Check>) {
        self.checks.extend(checks);
        self.verdict = Verdict::of(&self.checks);
        self.exit_code = self.verdict.exit_code();
    }
}
