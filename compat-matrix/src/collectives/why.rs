//! Stages what stops or slows a communicator of two hosts, and compares what `mpib why` says on the
//! first one with the cause.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Output, Stdio},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde_json::Value;
use softcuda::{
    DataType,
    rank::{Collective, Operator, Test},
    world::{Director, Start, ends_with_us, on_host},
};

use super::{
    args::CollectivesArgs,
    observe::Fabric,
    place::Place,
    plan::{Net, Plan, Variant},
};
use crate::{
    failure::{Context, Failure, Kind, Result},
    matrix::Release,
    stage::{RAILS, Stage},
};

/// Elements of each rank: 32 MB of floats, more than NCCL's buffers of the connections hold. A send
/// that they hold is over before the peer receives.
const LARGE: usize = 8_000_003;
/// Only a situation without its verdict lasts this long.
const PATIENCE: Duration = Duration::from_secs(90);
/// The port of the agent on the second host, and of the one on the first.
const AGENTS: [&str; 2] = ["9118", "9119"];
/// MB/s of the rails if one is slow.
const RATES: [u32; 2] = [500, 50];
/// Starts a program that sees two rails of 500 MB/s in sysfs, where simulated adapters are not.
const SPEEDS: &str = "
mount -t tmpfs none /sys/class
for rail in $1 $2; do
    mkdir -p /sys/class/infiniband/$rail/ports/1
    echo '4 Gb/sec (1X SDR)' >/sys/class/infiniband/$rail/ports/1/rate
done
shift 2
exec \"$@\"";
/// The second rank, which is at fault where one is.
const GUILTY: usize = 1;

/// What is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Situation {
    /// Nothing.
    Fine,
    /// The second rank is stopped.
    Stopped,
    /// The second rank leaves out a collective, and is not in NCCL.
    Absent,
    /// The ranks call two collectives in different orders.
    Order,
    /// A link of the first host goes down.
    RailDown,
    /// Both links of the first host go down.
    NoRail,
    /// A rail carries a tenth of what its speed promises.
    SlowRail,
    /// A link of the second host is down from the start.
    MissingRail,
    /// The first host's agent keeps data off a port.
    Drained,
    /// The second host's agent is killed, then its rank is stopped.
    AgentDead,
    /// The network of the control connections goes down, and data moves on.
    ControlNetworkDown,
}

/// A staged communicator.
struct Staged<'a> {
    situation: Situation,
    fabric: Fabric,
    /// The rails of each rank, as softverbs names them.
    labels: Vec<[String; 2]>,
    hosts: [String; 2],
    mpib: &'a Path,
    agents: Vec<Ended>,
    /// A verdict that is being made.
    asked: Option<Ended>,
    staged: Option<Instant>,
    /// What the last verdict was, and whether it is the right one.
    last: String,
    is_right: bool,
}

/// A child that ends with the run.
struct Ended(Child);

impl Ended {
    /// Returns what a child that has ended has written.
    fn output(&mut self) -> io::Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut stdout))?;
        self.0.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut stderr))?;
        Ok(Output { status: self.0.wait()?, stdout, stderr })
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stages the situations that are named, or else all, one after the other.
pub(super) fn main(
    args: &CollectivesArgs,
    named: &[Situation],
    library: &Path,
    release: &Release,
    stage: &Stage,
) -> Result<ExitCode> {
    let all = if named.is_empty() { Situation::value_variants() } else { named };
    let mut failed = 0;
    for situation in all {
        let begun = Instant::now();
        let (word, text) = match run(args, library, release, stage, *situation) {
            Ok(verdict) => ("ok", verdict),
            Err(failure) if failure.kind == Kind::Unfit => return Err(failure),
            Err(failure) => ("FAILED", failure.message),
        };
        failed += usize::from(word == "FAILED");
        let name = format!("why, {situation:?}");
        println!("NCCL {release:13} {name:52} {word:6} {:5.1} s  {text}", begun.elapsed().as_secs_f32());
    }
    println!("\n{} situations, {failed} failed", all.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(
    args: &CollectivesArgs,
    library: &Path,
    release: &Release,
    stage: &Stage,
    situation: Situation,
) -> Result<String> {
    own_network()?;
    let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
    let rates = (situation == Situation::SlowRail).then_some(RATES);
    // What a rail carries is measured if that decides its share.
    let net = if rates.is_some() { Net::Fused } else { Net::Mpib };
    let plan = Plan { net, variant: Variant::PLAIN, tests: Vec::new(), rates };
    let mut common = args.common.clone();
    if net == Net::Mpib {
        // Otherwise one rail carries all data of two hosts of an island.
        common.set.push(("MPIB_SUP_SHARE".into(), "512".into()));
    }
    let place = Place::new(&common, &plan, release, stage, scratch.path())?;
    let world = super::world(&common, scratch.path(), PATIENCE * 2)?;
    let mpib = fs::canonicalize(common.build.join("mpib")).cannot("find build/mpib")?;
    let hosts = [0, 1].map(|rank| place.settings(rank).host);
    let mut staged = Staged {
        situation,
        fabric: Fabric::new(place.fabric(), &common.build),
        labels: place.labels(),
        hosts,
        mpib: &mpib,
        agents: Vec::new(),
        asked: None,
        staged: None,
        last: "none".into(),
        is_right: false,
    };
    for host in 0..2 {
        let agent = staged.agent(host, scratch.path())?;
        staged.agents.push(agent);
    }
    let starts = (0..2).map(|rank| {
        let mut start = super::start(&place, &plan, library, rank);
        start.job.tests = situation.tests(rank);
        start.job.laps = true;
        start.host_name = Some(staged.hosts[rank as usize].clone());
        situation.prepare(&mut start, scratch.path());
        start
    });
    let starts = starts.collect();
    let ended = world.direct(starts, &mut staged);
    match (staged.is_right, ended) {
        (true, _) => Ok(staged.last),
        (false, ended) => {
            let ended = ended.map_or_else(|e| e.to_string(), |ends| format!("{ends:?}"));
            Err(Failure::wrong(format!("the last verdict: {}; the ranks: {ended}", staged.last)))
        }
    }
}

/// Gives this process, and those that it starts, a network with a loopback alone.
fn own_network() -> Result<()> {
    // SAFETY: changes the network of this thread and of what it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        let e = io::Error::last_os_error();
        return Err(Failure::unfit(format!("cannot make a network for hosts: {e}")));
    }
    loopback("up").cannot("set up the loopback")
}

fn loopback(state: &str) -> io::Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", state]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip link set lo {state}: {status}"))) }
}

fn test(collective: Collective) -> Test {
    Test { collective, element: DataType::F32, operator: Operator::Sum, count: LARGE, times: 1 }
}

impl Situation {
    /// Returns the tests of each lap of a rank.
    fn tests(self, rank: u32) -> Vec<Test> {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce};
        let tests = match (self, rank) {
            (Self::Absent, 1) => &[AllReduce][..],
            // Rank 0 is the root of the first test: each rank sends to the other, and none receives.
            (Self::Order, 0) => &[Broadcast, Reduce],
            (Self::Order, _) => &[Reduce, Broadcast],
            _ => &[AllReduce, AllGather],
        };
        tests.iter().map(|collective| test(*collective)).collect()
    }

    /// Returns whether the ranks come to the end of a lap.
    fn has_laps(self) -> bool {
        !matches!(self, Self::Absent | Self::Order)
    }

    /// Changes what is there from the start.
    fn prepare(self, start: &mut Start, scratch: &Path) {
        let rank = start.job.rank;
        let mut set = |name: &str, value: String| start.environment.insert(name.into(), value);
        set("MPIB_AGENT_SOCKET", folder(scratch, rank as usize).join("agent.sock").display().to_string());
        if self == Self::MissingRail && rank as usize == GUILTY {
            set("SOFTVERBS_FAULTS", format!("{}:link=down", RAILS[1]));
        }
    }

    /// Returns the kind of the first finding, and what its sentence has in it.
    fn expected(self, guilty: u32) -> (&'static str, String) {
        let sup = format!("{}:1", RAILS[1]);
        let who = format!("host host1, pid {guilty}");
        let name = format!("{who} (collective-rank), which");
        match self {
            Self::Fine | Self::ControlNetworkDown => ("fine", "nothing is wrong with the network".into()),
            Self::Stopped => ("held", format!("{name} is stopped (state T)")),
            Self::Absent => {
                ("no-receive", format!("{name} has posted no receive: NCCL in it asks for nothing"))
            }
            Self::Order => ("circle", format!("{who} (collective-rank) wait for each other in a circle")),
            Self::RailDown | Self::MissingRail => ("degraded", format!("without {sup} for ")),
            Self::SlowRail => ("slow-rail", format!("{sup} is slow: it carries ")),
            Self::NoRail => ("no-rail", "none is left".into()),
            Self::Drained => ("drained", format!("{sup} is drained")),
            Self::AgentDead => ("no-receive", format!("wait for {who}, which has posted no receive")),
        }
    }
}

/// Returns the folder of a host's agent.
fn folder(scratch: &Path, host: usize) -> PathBuf {
    scratch.join(format!("agent-{host}"))
}

impl Staged<'_> {
    /// Starts the agent of a host.
    fn agent(&self, host: usize, scratch: &Path) -> Result<Ended> {
        let config = scratch.join(format!("agent-{host}.toml"));
        let is_drained = self.situation == Situation::Drained && host == 0;
        let drain = if is_drained { format!("drain = [\"{}:1\"]\n", RAILS[1]) } else { String::new() };
        fs::write(&config, drain).cannot(format!("write {}", config.display()))?;
        let mut command = Command::new(self.mpib);
        command.arg("agent").arg("--config").arg(&config);
        command.arg("--socket-dir").arg(folder(scratch, host));
        command.arg("--http").arg(format!("127.0.0.1:{}", AGENTS[host]));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        on_host(&mut command, &self.hosts[host]);
        ends_with_us(&mut command);
        let mut child = command.spawn().cannot("start an agent")?;
        let log = child.stderr.take().map(BufReader::new);
        let agent = Ended(child);
        let mut lines = log.into_iter().flat_map(BufReader::lines).map_while(io::Result::ok);
        if !lines.any(|line| line.contains("serves http://")) {
            return Err(Failure::tool(format!("the agent of {} serves no HTTP", self.hosts[host])));
        }
        std::thread::spawn(move || lines.for_each(drop));
        Ok(agent)
    }

    /// Stages what is not there from the start.
    fn stage(&mut self, processes: &[u32]) -> io::Result<()> {
        let down = |rail: usize| self.fabric.link_down(&self.labels[0][rail]).map_err(io::Error::other);
        match self.situation {
            Situation::Stopped => stop(processes[GUILTY]),
            Situation::RailDown => down(1),
            Situation::NoRail => down(0).and_then(|()| down(1)),
            Situation::AgentDead => {
                drop(self.agents.pop());
                stop(processes[GUILTY])
            }
            Situation::ControlNetworkDown => loopback("down"),
            Situation::Fine
            | Situation::Absent
            | Situation::Order
            | Situation::SlowRail
            | Situation::MissingRail
            | Situation::Drained => Ok(()),
        }
    }

    /// Starts `mpib why` on the first host.
    fn ask(&self, processes: &[u32]) -> io::Result<Ended> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", SPEEDS, "sh"]).args(RAILS).arg(self.mpib);
        let pid = processes[0].to_string();
        command.args(["why", &pid, "--time", "0.5", "--json", "--agent-port", AGENTS[1]]);
        on_host(&mut command, &self.hosts[0]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Ended)
    }

    /// Returns whether its answer names the cause.
    fn judge(&mut self, answer: &Output, processes: &[u32]) -> bool {
        let document: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let first = &document["findings"][0];
        let (kind, part) = self.situation.expected(processes[GUILTY]);
        let text = first["text"].as_str().unwrap_or_default();
        self.last = match text {
            "" => String::from_utf8_lossy(&answer.stderr).into(),
            text => text.to_owned(),
        };
        first["kind"] == kind && text.contains(&part)
    }
}

impl Director for Staged<'_> {
    fn lap(&mut self, processes: &[u32]) -> io::Result<bool> {
        if self.staged.is_none() {
            self.stage(processes)?;
            self.staged = Some(Instant::now());
        }
        Ok(true)
    }

    fn tick(&mut self, processes: &[u32]) -> io::Result<()> {
        if !self.situation.has_laps() {
            self.staged.get_or_insert_with(Instant::now);
        }
        let Some(staged) = self.staged else { return Ok(()) };
        // The ranks have to be served while it looks.
        let mut asked = match self.asked.take() {
            Some(asked) => asked,
            None => self.ask(processes)?,
        };
        if asked.0.try_wait()?.is_none() {
            self.asked = Some(asked);
            return Ok(());
        }
        let answer = asked.output()?;
        self.is_right = self.judge(&answer, processes);
        match (self.is_right, staged.elapsed() > PATIENCE) {
            (false, false) => Ok(()),
            // The ranks of most situations would not end.
            (true, _) => Err(io::Error::other("the verdict is there")),
            (false, true) => Err(io::Error::other(format!("not named within {PATIENCE:?}"))),
        }
    }
}

/// Stops a process.
fn stop(process: u32) -> io::Result<()> {
    // SAFETY: a signal to a process of this run.
    match unsafe { libc::kill(process.cast_signed(), libc::SIGSTOP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
