//! `mpib setup`: joins two hosts by their cables. It runs on both at the same time, finds which ports are
//! joined, proposes addresses, and measures once the ports have them.
//!
//! `ports` has the ends of this host, `link` the sockets on them, `announcement` the packets, `meeting`
//! finds the cables, `plan` gives them addresses, and `text` prints.

mod announcement;
mod link;
mod meeting;
mod net;
mod plan;
mod ports;
mod text;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;
use mpib_host_view::hostname;

use self::announcement::{End, Host};
use self::link::Links;
use self::meeting::{Cable, Meeting};
use self::plan::Plan;
use self::ports::{Own, interfaces};
use self::text::Form;
use crate::doctor::{DoctorArgs, check_host};
use crate::failure::{Context, Failure, Kind};
use crate::output;
use crate::perf;
use crate::process::{ending, ends_with_us, wait};
use crate::quantity::{interval, time};

/// The time between two announcements.
const PERIOD: Duration = Duration::from_millis(500);
/// How long this end goes on after it knows the cables: the other one knows them by then.
const LINGER: Duration = Duration::from_secs(4);
/// The sizes of messages that are measured.
const SIZES: &str = "8,64K,16M";
/// How long `mpib perf` may take on top of the measurement, and of the wait for the other host.
const AROUND: Duration = Duration::from_secs(10);
/// How long ends may be joined in a way that is no cable, before that counts.
const CONFUSED: Duration = Duration::from_secs(4);

const EXIT_CODES: &str = "\
Exit codes:
  0  the cables are found, and addresses proposed; or they have addresses, and data moved over them
  1  the tool itself failed, or data did not move
  2  invalid options
  3  no cable is found, or the ports are joined in another way";

/// Exit code for hosts that are not joined.
const NOT_JOINED: u8 = 3;

/// Sets up two hosts that are joined by cables: run it on both at the same time
///
/// It finds which ports are joined, prints addresses for them and the settings of a job, and changes
/// nothing. Run again when the ports have addresses, it measures.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct SetupArgs {
    /// How long to wait for the other host
    #[arg(long, value_name = "TIME", default_value = "120", value_parser = interval)]
    wait: Duration,

    /// How to print addresses [default: netplan, if the host has /etc/netplan]
    #[arg(long, value_enum)]
    form: Option<Form>,

    /// Do not measure
    #[arg(long)]
    no_perf: bool,

    /// Time for each size of the measurement
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = time)]
    time: Duration,

    /// The UDP port for the search on the cables
    #[arg(long, value_name = "PORT", default_value_t = perf::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The plugin's file [default: libnccl-net-mpib.so next to mpib or in ../lib]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &SetupArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.kind == Kind::Peer => {
            failure.print();
            ExitCode::from(NOT_JOINED)
        }
        Err(failure) => failure.end(),
    }
}

fn run(args: &SetupArgs) -> Result<(), Failure> {
    let document = check_host(&DoctorArgs::of(args.plugin.clone(), None, args.wait), &[])?;
    let ports = document.report.map(|report| report.ports).unwrap_or_default();
    let own = Own::new(&ports, &interfaces()?);
    if own.ends.is_empty() {
        let others = own.others.iter().map(|why| format!("\n  {why}")).collect::<String>();
        let text = format!("no port of an adapter here has a link that needs an address{others}");
        return Err(not_joined(if ports.is_empty() { format!("{text}; see mpib doctor") } else { text }));
    }
    let (cables, mut search) = search(args, &own)?;
    let plan = Plan::new(cables, &own.used).map_err(not_joined)?;
    output::print(&text::cables(&plan))?;
    if !plan.is_done() {
        let is_netplan = Path::new("/etc/netplan").is_dir();
        let form = args.form.unwrap_or(if is_netplan { Form::Netplan } else { Form::Ip });
        output::print(&text::addresses(&plan, form))?;
    }
    output::print(&text::settings(&plan))?;
    search.go_on(LINGER, |_| false)?;
    match (plan.is_done(), args.no_perf) {
        (false, _) => output::print("next: with the addresses on both hosts, mpib setup on both again\n"),
        (true, true) => output::print("next: mpib doctor on both hosts\n"),
        (true, false) => measure(args, start_perf(args, &plan)?),
    }
}

fn not_joined(text: impl Into<String>) -> Failure {
    Failure::new(Kind::Peer, text)
}

/// The search on the cables.
struct Search<'a> {
    meeting: Meeting,
    links: Links,
    ends: Vec<&'a End>,
    began: Instant,
    announced: Option<Instant>,
}

/// Searches until both hosts know the same cables.
fn search<'a>(args: &SetupArgs, own: &'a Own) -> Result<(Vec<Cable>, Search<'a>), Failure> {
    let host = Host { name: hostname(), id: fastrand::u64(..), used: own.used.clone() };
    let ends: Vec<&End> = own.ends.iter().map(|(end, _)| end).collect();
    let named: Vec<(&str, u32)> = own.ends.iter().map(|(end, index)| (&*end.interface, *index)).collect();
    let links = Links::open(&named, args.port)?;
    let names: Vec<&str> = ends.iter().map(|end| &*end.interface).collect();
    eprintln!(
        "mpib: waits on {} for \"mpib setup\" of the other host, at most {:.0} s",
        names.join(", "),
        args.wait.as_secs_f64()
    );
    let meeting = Meeting::new(host, ends.iter().map(|end| (*end).clone()).collect());
    let mut search = Search { meeting, links, ends, began: Instant::now(), announced: None };
    let mut confused: Option<Instant> = None;
    let mut found = None;
    search.go_on(args.wait, |search| {
        let now = search.began.elapsed();
        confused = search.meeting.cables().is_err().then(|| confused.unwrap_or_else(Instant::now));
        found = search.meeting.agreed(now);
        found.is_some() || confused.is_some_and(|since| since.elapsed() > CONFUSED)
    })?;
    match found {
        Some(cables) => Ok((cables, search)),
        None => Err(not_joined(search.why_not())),
    }
}

impl Search<'_> {
    /// Announces and listens until `is_over`, for so long at most.
    fn go_on(&mut self, time: Duration, mut is_over: impl FnMut(&mut Self) -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < time && !is_over(self) {
            if self.announced.is_none_or(|at| at.elapsed() >= PERIOD) {
                self.announced = Some(Instant::now());
                for (place, end) in self.ends.iter().enumerate() {
                    self.links.send(place, &end.interface, &self.meeting.announcement(place));
                }
            }
            let (meeting, now) = (&mut self.meeting, self.began.elapsed());
            self.links.receive(PERIOD / 4, |end, announcement| meeting.hear(now, end, announcement))?;
            self.meeting.settle(self.began.elapsed());
        }
        Ok(())
    }

    /// Returns why no cable was found.
    fn why_not(&self) -> String {
        if let Err(confusion) = self.meeting.cables() {
            return confusion.to_string();
        }
        let mut lines = self.meeting.one_way();
        let heard =
            if lines.is_empty() { "no port hears one" } else { "the ends do not hear each other both ways" };
        lines.extend(self.links.troubles());
        let lines = lines.iter().map(|line| format!("\n  {line}")).collect::<String>();
        format!(
            "no cable to another host is found: {heard}. mpib setup must run on both hosts at the same time, and a firewall must \
             let IPv6 multicast and UDP pass{lines}"
        )
    }
}

/// Starts `mpib perf` over the cables: the lower host listens.
fn start_perf(args: &SetupArgs, plan: &Plan) -> Result<Child, Failure> {
    let row = plan.rows.first().ok_or_else(|| not_joined("there is no cable"))?;
    let program = env::current_exe().tool("find this program")?;
    let mut command = Command::new(program);
    command.arg("perf").envs(plan.settings());
    ends_with_us(&mut command);
    if let Some(plugin) = &args.plugin {
        command.arg("--plugin").arg(plugin);
    }
    if plan.is_lower {
        command.arg("--listen").arg(row.here.addr.to_string());
    } else {
        let [wait, time] = [args.wait, args.time].map(|time| time.as_secs_f64().to_string());
        command.arg("--connect").arg(row.there.addr.to_string());
        command.args(["--wait", &wait, "--sizes", SIZES, "--time", &time]);
    }
    eprintln!("mpib: {command:?}");
    command.spawn().tool("start mpib perf")
}

/// Waits until the data has moved. The other host may not measure, so a listener has a limit.
fn measure(args: &SetupArgs, mut perf: Child) -> Result<(), Failure> {
    let sizes = SIZES.split(',').count() as u32;
    let limit = args.wait.saturating_add(args.time.saturating_mul(sizes)).saturating_add(AROUND);
    let fail = |why: String| Failure::new(Kind::Tool, format!("mpib perf over the cables failed: {why}"));
    match wait(&mut perf, limit).tool("wait for mpib perf")? {
        Some(status) if status.success() => output::print("next: mpib doctor on both hosts\n"),
        Some(status) => Err(fail(ending(status))),
        None => Err(fail(format!(
            "it did not end within {:.0} s; does mpib setup measure on the other host, too?",
            limit.as_secs_f64()
        ))),
    }
}
