//! Stages what stops or slows a communicator of two or three hosts, and compares what `mpib why` says on
//! the first one with the cause.

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
    stage::{OURS, RAILS, Stage},
};

/// Elements of each rank: 32 MB of floats, more than NCCL's buffers of the connections hold. A send
/// that they hold is over before the peer receives.
const LARGE: usize = 8_000_003;
/// Only a situation without its verdict lasts this long.
const PATIENCE: Duration = Duration::from_secs(300);
/// The port of the agents.
const AGENTS: &str = "9119";
/// MB/s of the rails if one is slow.
const RATES: [u32; 2] = [500, 50];
/// The rate of a rail that becomes slow.
const SLOWED: &str = "20MB";
/// The first release whose profiler learns of messages.
const PROFILED: &str = "2.26.2";
/// Starts a program that sees two rails of 500 MB/s in sysfs, where simulated adapters are not.
const SPEEDS: &str = "
mount -t tmpfs none /sys/class
for rail in $1 $2; do
    mkdir -p /sys/class/infiniband/$rail/ports/1
    echo '4 Gb/sec (1X SDR)' >/sys/class/infiniband/$rail/ports/1/rate
done
shift 2
exec \"$@\"";
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
    /// A rail becomes slow between two all-reduces. NCCL's profiler is the plugin.
    SlowOperation,
    /// The first host's agent keeps data off a port.
    Drained,
    /// The second host's agent is killed, then its rank is stopped.
    AgentDead,
    /// The network of the control connections goes down, and data moves on.
    ControlNetworkDown,
    /// The third of three ranks is stopped: the second one waits for it, and the first for the second.
    Chain,
}

/// A staged communicator.
struct Staged<'a> {
    situation: Situation,
    fabric: Fabric,
    /// The rails of each rank, as softverbs names them.
    labels: Vec<[String; 2]>,
    hosts: Vec<String>,
    mpib: &'a Path,
    agents: Vec<Ended>,
    /// A verdict that is being made.
    asked: Option<Ended>,
    /// Laps that are over.
    laps: u32,
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
    let (mut staged, mut failed) = (0, 0);
    for situation in all {
        let (begun, name) = (Instant::now(), format!("why, {situation:?}"));
        if *situation == Situation::SlowOperation && !release.is_at_least(PROFILED) {
            println!(
                "NCCL {release:13} {name:52} left out: needs {PROFILED}, whose profiler learns of messages"
            );
            continue;
        }
        staged += 1;
        let (word, text) = match run(args, library, release, stage, *situation) {
            Ok(verdict) => ("ok", verdict),
            Err(failure) if failure.kind == Kind::Unfit => return Err(failure),
            Err(failure) => ("FAILED", failure.message),
        };
        failed += usize::from(word == "FAILED");
        println!("NCCL {release:13} {name:52} {word:6} {:5.1} s  {text}", begun.elapsed().as_secs_f32());
    }
    println!("\n{staged} situations, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(
    args: &CollectivesArgs,
    library: &Path,
    release: &Release,
    stage: &Stage,
    situation: Situation,
) -> Result<String> {
    let ranks = situation.ranks();
    own_network(ranks)?;
    let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
    let rates = (situation == Situation::SlowRail).then_some(RATES);
    // What a rail carries is measured if that decides its share.
    let net = if rates.is_some() { Net::Fused } else { Net::Mpib };
    let plan = Plan { net, variant: Variant { ranks, ..Variant::PLAIN }, tests: Vec::new(), rates };
    let mut common = args.common.clone();
    if net == Net::Mpib {
        // Otherwise one rail carries all data of two hosts of an island.
        common.set.push(("MPIB_SUP_SHARE".into(), "512".into()));
    }
    let place = Place::new(&common, &plan, release, stage, scratch.path())?;
    let world = super::world(&common, scratch.path(), PATIENCE * 2)?;
    let mpib = fs::canonicalize(common.build.join("mpib")).cannot("find build/mpib")?;
    let hosts = (0..ranks).map(|rank| place.settings(rank).host).collect();
    let mut staged = Staged {
        situation,
        fabric: Fabric::new(place.fabric(), &common.build),
        labels: place.labels(),
        hosts,
        mpib: &mpib,
        agents: Vec::new(),
        asked: None,
        laps: 0,
        staged: None,
        last: "none".into(),
        is_right: false,
    };
    for rank in 0..ranks {
        let agent = staged.agent(rank, scratch.path())?;
        staged.agents.push(agent);
    }
    let starts = (0..ranks).map(|rank| {
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

/// Gives this process, and those that it starts, a network with the control network of hosts.
fn own_network(hosts: u32) -> Result<()> {
    // SAFETY: changes the network of this thread and of what it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        let e = io::Error::last_os_error();
        return Err(Failure::unfit(format!("cannot make a network for hosts: {e}")));
    }
    let interface = |host: u32| {
        let (name, address) = (interface(host), address(host));
        let peer = format!("{name}-peer");
        ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer])?;
        ip(&["address", "add", &address, "dev", &name])?;
        ip(&["link", "set", &name, "up"])?;
        ip(&["link", "set", &peer, "up"])
    };
    // Hosts of one machine reach each other over its loopback.
    ip(&["link", "set", "lo", "up"])
        .and_then(|()| (0..hosts).try_for_each(interface))
        .cannot("set up a network")
}

/// Returns the interface of a host in the control network.
fn interface(host: u32) -> String {
    format!("control{host}")
}

/// Returns the address of a host in the control network.
fn address(host: u32) -> String {
    format!("10.8.0.{}", host + 1)
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("ip {}: {status}", arguments.join(" "))))
    }
}

fn test(collective: Collective) -> Test {
    Test { collective, element: DataType::F32, operator: Operator::Sum, count: LARGE, times: 1 }
}

impl Situation {
    fn ranks(self) -> u32 {
        if self == Self::Chain { 3 } else { 2 }
    }

    /// Returns the rank that is at fault where one is: the last one.
    fn guilty(self) -> u32 {
        self.ranks() - 1
    }

    /// Returns the tests of each lap of a rank.
    fn tests(self, rank: u32) -> Vec<Test> {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce};
        let tests = match (self, rank) {
            (Self::Absent, 1) => &[AllReduce][..],
            // Rank 0 is the root of the first test: each rank sends to the other, and none receives.
            (Self::Order, 0) => &[Broadcast, Reduce],
            (Self::Order, _) => &[Reduce, Broadcast],
            // From each rank to the next one.
            (Self::Chain, _) => &[Broadcast],
            _ => &[AllReduce, AllGather],
        };
        tests.iter().map(|collective| test(*collective)).collect()
    }

    /// Returns how many laps are over when it is staged.
    fn laps_before(self) -> u32 {
        match self {
            // The root of a broadcast changes from lap to lap: it is the first rank again.
            Self::Chain => self.ranks(),
            // So many show what is usual.
            Self::SlowOperation => 12,
            _ => 1,
        }
    }

    /// Returns whether the ranks come to the end of a lap.
    fn has_laps(self) -> bool {
        !matches!(self, Self::Absent | Self::Order)
    }

    /// Changes what is there from the start.
    fn prepare(self, start: &mut Start, scratch: &Path) {
        let rank = start.job.rank;
        let mut set = |name: &str, value: String| start.environment.insert(name.into(), value);
        set("MPIB_AGENT_SOCKET", folder(scratch, rank).join("agent.sock").display().to_string());
        set("MPIB_OOB_IF", interface(rank));
        if self == Self::SlowOperation {
            set("NCCL_PROFILER_PLUGIN", OURS.into());
        }
        if self == Self::MissingRail && rank == self.guilty() {
            set("SOFTVERBS_FAULTS", format!("{}:link=down", RAILS[1]));
        }
    }

    /// Returns the kind of the first finding, what its sentence has in it, and what its evidence has.
    fn expected(self, processes: &[u32]) -> (&'static str, String, String) {
        let sup = format!("{}:1", RAILS[1]);
        let process = |rank: u32| format!("host host{rank}, pid {}", processes[rank as usize]);
        let who = process(self.guilty());
        let name = format!("{who} (collective-rank), which");
        let evidence =
            if self == Self::Chain { format!("{} (collective-rank): ", process(1)) } else { String::new() };
        let (kind, text) = match self {
            Self::Fine | Self::ControlNetworkDown => ("fine", "nothing is wrong with the network".into()),
            Self::Stopped | Self::Chain => ("held", format!("{name} is stopped (state T)")),
            Self::Absent => {
                ("no-receive", format!("{name} has posted no receive: NCCL in it asks for nothing"))
            }
            Self::Order => ("circle", format!("{who} (collective-rank) wait for each other in a circle")),
            Self::RailDown | Self::MissingRail => ("degraded", format!("without {sup} for ")),
            Self::SlowRail => ("slow-rail", format!("{sup} is slow: it carries ")),
            Self::SlowOperation => {
                ("slow-operation", format!(": {sup} carried 50 % of it, and its messages took "))
            }
            Self::NoRail => ("no-rail", "none is left".into()),
            Self::Drained => ("drained", format!("{sup} is drained")),
            Self::AgentDead => ("no-receive", format!("wait for {who}, which has posted no receive")),
        };
        (kind, text, evidence)
    }
}

/// Returns the folder of a host's agent.
fn folder(scratch: &Path, host: u32) -> PathBuf {
    scratch.join(format!("agent-{host}"))
}

impl Staged<'_> {
    /// Starts the agent of a host.
    fn agent(&self, host: u32, scratch: &Path) -> Result<Ended> {
        let config = scratch.join(format!("agent-{host}.toml"));
        let is_drained = self.situation == Situation::Drained && host == 0;
        let drain = if is_drained { format!("drain = [\"{}:1\"]\n", RAILS[1]) } else { String::new() };
        fs::write(&config, drain).cannot(format!("write {}", config.display()))?;
        let mut command = Command::new(self.mpib);
        command.arg("agent").arg("--config").arg(&config);
        command.arg("--socket-dir").arg(folder(scratch, host));
        command.arg("--http").arg(format!("{}:{AGENTS}", address(host)));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        on_host(&mut command, &self.hosts[host as usize]);
        ends_with_us(&mut command);
        let mut child = command.spawn().cannot("start an agent")?;
        let log = child.stderr.take().map(BufReader::new);
        let agent = Ended(child);
        let mut lines = log.into_iter().flat_map(BufReader::lines).map_while(io::Result::ok);
        if !lines.any(|line| line.contains("serves http://")) {
            return Err(Failure::tool(format!("the agent of {} serves no HTTP", self.hosts[host as usize])));
        }
        std::thread::spawn(move || lines.for_each(drop));
        Ok(agent)
    }

    /// Stages what is not there from the start.
    fn stage(&mut self, processes: &[u32]) -> io::Result<()> {
        let guilty = processes[self.situation.guilty() as usize];
        let down = |rail: usize| self.fabric.link_down(&self.labels[0][rail]).map_err(io::Error::other);
        match self.situation {
            Situation::Stopped | Situation::Chain => stop(guilty),
            Situation::RailDown => down(1),
            Situation::SlowOperation => {
                self.fabric.slow_down(&self.labels[0][1], SLOWED).map_err(io::Error::other)
            }
            Situation::NoRail => down(0).and_then(|()| down(1)),
            Situation::AgentDead => {
                drop(self.agents.pop());
                stop(guilty)
            }
            Situation::ControlNetworkDown => ip(&["link", "set", "lo", "down"]),
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
        command.args(["why", &pid, "--time", "0.5", "--json", "--agent-port", AGENTS]);
        on_host(&mut command, &self.hosts[0]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Ended)
    }

    /// Returns whether its answer names the cause.
    fn judge(&mut self, answer: &Output, processes: &[u32]) -> bool {
        let document: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let first = &document["findings"][0];
        let (kind, part, evidence) = self.situation.expected(processes);
        let text = first["text"].as_str().unwrap_or_default();
        self.last = match text {
            "" => String::from_utf8_lossy(&answer.stderr).into(),
            text => text.to_owned(),
        };
        first["kind"] == kind && text.contains(&part) && first["evidence"].to_string().contains(&evidence)
    }
}

impl Director for Staged<'_> {
    fn lap(&mut self, processes: &[u32]) -> io::Result<bool> {
        self.laps += 1;
        if self.staged.is_none() && self.laps == self.situation.laps_before() {
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
