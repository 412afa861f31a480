//! Two machines check each other. This file has the leading end. Each machine sends what its plugin
//! reports about its ports. The leading end's plugin computes the pairs. Workers of `mpib perf`
//! measure each pair, and then each device, on a separate connection (`session`).

use std::{
    fmt, io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use mpib_host_view::Waits;
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Pair, Port, Report, Setting, Verdict as RouteVerdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    DoctorArgs, Document, Verdict, conf, differs, faults,
    fleet::ranks::Arrival,
    fused,
    head::short,
    inspect,
    judge::{Both, PortFacts},
    session::{Order, Session, Use},
};
use crate::failure::{Failure, Kind};
use crate::perf::{self, Channel, Plan, Trial};

/// First word of a connection, by which other clients are recognised.
pub(super) const MAGIC: &str = "mpib doctor";
/// Changes with the messages below. [`Opening`] and [`Reply`] never change.
pub(crate) const PROTOCOL: u32 = 6;
/// The release of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a peer may take for an answer that needs no work.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait while the peer serves others.
const QUEUE: Duration = Duration::from_secs(600);
/// How long a worker may be idle.
const PROBE: Duration = Duration::from_secs(15);
/// How long a measurement may take in all, at both ends.
pub(super) const MEASURED: Duration = Duration::from_secs(120);
/// Most pairs to measure.
const MOST: usize = 64;

/// The first message of every connection. Its fields stay in every version; others may be added.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) magic: String,
    pub(super) protocol: u32,
    /// The token of the run that this connection belongs to; absent for a new run.
    pub(super) join: Option<String>,
    /// Version of `mpib`; absent in releases before 0.3.
    #[serde(default)]
    pub(super) mpib: Option<String>,
    /// What the listening end shall do by itself; absent if this end leads.
    #[serde(default)]
    pub(super) task: Option<Task>,
}

impl Opening {
    pub(super) fn new(join: Option<String>) -> Self {
        Self { magic: MAGIC.into(), protocol: PROTOCOL, join, mpib: Some(VERSION.into()), task: None }
    }
}

/// What another end does by itself for the one that opens a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Task {
    /// Check itself, and answer with a [`Summary`].
    Describe,
    /// Check the host with this address, and answer with a `Result<Checked, Failure>`. Only a
    /// listener with a file of hosts does so, and only for the hosts in its file.
    Check(String),
    /// Answer who waits for whom on its host, at once.
    Waits,
    /// Let a rank join its job. Rank 0 alone does so.
    Join(Arrival),
}

/// The answer to a new run, in every version.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) magic: String,
    pub(super) protocol: u32,
    /// Version of `mpib`; absent in releases before 0.3.
    #[serde(default)]
    pub(super) mpib: Option<String>,
    pub(super) refused: Option<String>,
    /// Another run is in progress; another answer follows when it has ended.
    pub(super) wait: bool,
    /// The token with which measurements join this run.
    pub(super) token: String,
}

/// A machine's description of itself.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Summary {
    pub(crate) host: String,
    /// Version of `mpib`.
    pub(super) mpib: String,
    pub(super) verdict: Verdict,
    pub(super) checks: Vec<Check>,
    /// Versions of the plugin's tables.
    pub(super) tables: Vec<u32>,
    /// What its plugin sends to a peer about its ports, in hexadecimal.
    pub(super) hello: Option<String>,
    /// The ports that its devices have.
    pub(crate) ports: Vec<PortFacts>,
    /// Other ports that are there and that `NCCL_IB_HCA` does not leave out.
    pub(super) lost: Vec<LostPort>,
    /// Names of its devices, in the order of their numbers.
    pub(crate) devices: Vec<String>,
    /// Its plugin; absent if that gives no report, and in releases before 0.3.
    #[serde(default)]
    pub(super) plugin: Option<PluginRelease>,
    /// What is set there; empty in releases before 0.3.
    #[serde(default)]
    pub(super) settings: Vec<Setting>,
}

/// What a plugin says of its release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PluginRelease {
    /// Version of the file.
    pub(super) version: String,
    /// Version of the wire protocol.
    pub(super) protocol: u16,
}

impl fmt::Display for PluginRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol {})", self.version, self.protocol)
    }
}

impl Summary {
    pub(super) fn new(document: &Document) -> Self {
        let report = document.report.as_ref();
        let tables = document.plugin.as_ref().and_then(|path| nccl_net_host::exported_versions(path).ok());
        Self {
            host: report.map_or_else(|| "?".into(), |r| r.host.clone()),
            mpib: VERSION.into(),
            verdict: document.verdict,
            checks: document.checks.clone(),
            tables: tables.unwrap_or_default(),
            hello: report.and_then(|r| r.hello.clone()),
            ports: document.facts.clone(),
            lost: report.map_or_else(Vec::new, LostPort::all),
            devices: report.map_or_else(Vec::new, |r| r.devices.iter().map(|d| d.name.clone()).collect()),
            plugin: report.map(|r| PluginRelease { version: r.plugin.clone(), protocol: r.protocol }),
            settings: differs::settings(report),
        }
    }
}

/// A port that connections cannot use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LostPort {
    /// `hca:port`
    pub(super) name: String,
    /// Why not.
    pub(super) why: String,
}

impl LostPort {
    fn all(report: &Report) -> Vec<Self> {
        let lost = report.ports.iter().filter(|port| port.selected && !port.usable);
        let of = |port: &Port| Self { name: port.name(), why: port.trouble.clone().unwrap_or_default() };
        lost.map(of).collect()
    }
}

/// A pair of ports and its rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) pair: Pair,
    /// From this machine to the peer; absent if not measured.
    pub(super) out: Option<Measured>,
    /// From the peer to this machine.
    pub(super) back: Option<Measured>,
}

impl Row {
    /// Names both ports.
    pub(crate) fn name(&self) -> String {
        format!("{} to {}", self.pair.ours, self.pair.theirs)
    }

    /// Returns why a transfer failed, else why the plugin would choose the pair or not.
    pub(super) fn why(&self) -> &str {
        self.error().unwrap_or(&self.pair.why)
    }

    pub(super) fn error(&self) -> Option<&str> {
        [&self.out, &self.back].into_iter().flatten().find_map(|m| m.error.as_deref())
    }

    pub(crate) fn works(&self) -> bool {
        self.out.is_some() && self.back.is_some() && self.error().is_none()
    }
}

/// The result for one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Measured {
    /// 10^9 bytes per second, with every byte checked.
    pub(super) gigabytes_per_second: Option<f64>,
    /// Why there is no rate.
    pub(super) error: Option<String>,
}

/// Returns the variables for a worker that uses this port alone and no other route than the
/// measured one.
pub(super) fn only(port: &str) -> Vec<(String, Option<String>)> {
    let set = [
        ("NCCL_IB_HCA", Some(format!("={port}"))),
        ("MPIB_ROUTE", Some("strict".into())),
        ("MPIB_PROBE_TIMEOUT_MS", Some("3000".into())),
        ("MPIB_CONNECT_TIMEOUT_MS", Some("10000".into())),
        // A route that does not work is a result.
        ("MPIB_FAILOVER_WAIT", Some("0".into())),
        ("MPIB_HCA_SOUT", None),
        ("MPIB_HCA_SUP", None),
        ("MPIB_MODE", None),
        ("MPIB_SUP_SHARE", None),
        ("MPIB_STRICT", None),
        ("MPIB_STATS", Some("0".into())),
    ];
    set.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Returns the plugin's own message if the failure of a call ends with one.
pub(crate) fn plugin_message(message: &str) -> &str {
    let sentence =
        message.split_once("its last warning: NET/MPIB : ").map_or(message, |(_, sentence)| sentence);
    sentence.strip_prefix("in short: ").unwrap_or(sentence)
}

/// Requests a task of a listening end, and returns its answer.
pub(super) fn request<T: DeserializeOwned>(address: &str, task: Task, limit: Duration) -> Result<T, Failure> {
    let (host, port) = perf::split(address)?;
    let stream = perf::dial(host, port, "mpib doctor --listen --hosts FILE")?;
    let mut channel = Channel::new(stream.into(), "it")?;
    channel.send(&Opening { task: Some(task), ..Opening::new(None) })?;
    open_run(&mut channel, address)?;
    channel.recv(limit, || Ok(()))
}

/// Adds the checks of the other machine and of the routes to it to the document, within a limit if
/// another end waits for them.
pub(super) fn check(
    args: &DoctorArgs,
    address: &str,
    document: &mut Document,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut session = Session::open(address, document)?;
    session.deadline = end;
    check_routes(args, &mut session, document)?;
    session.end(document.routes.clone())
}

/// Adds these checks in a session.
pub(crate) fn check_routes(
    args: &DoctorArgs,
    session: &mut Session,
    document: &mut Document,
) -> Result<(), Failure> {
    let (ours, theirs) = (Summary::new(document), session.theirs.clone());
    document.add(vec![of_peer(&theirs)]);
    let hello = document.report.as_ref().and_then(|report| report.hello.as_deref());
    let pairs = match (&document.plugin, hello, &theirs.hello) {
        (Some(plugin), Some(ours), Some(theirs)) => {
            inspect::routes(plugin, args.timeout, ours, theirs)?.map_err(|e| vec![fail(e)])
        }
        _ => Err(vec![fail("a host without a device has no route to another".into())]),
    };
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    match pairs {
        Err(found) => checks = found,
        Ok(routes) => {
            checks.extend(routes.error.map(fail));
            checks.extend(routes.differences.iter().map(|text| {
                let text = text.replacen(" here and ", &format!(" here ({}) and ", ours.host), 1);
                fail(format!("{text} ({}): the hosts refuse each other's connections", theirs.host))
                    .remedy("set it to the same value on both")
            }));
            checks.extend(differs::checks(&ours, &theirs, &routes.differences));
            conf::name_files(&mut checks, &document.conf_files);
            rows.extend(routes.pairs.into_iter().map(|pair| Row { pair, out: None, back: None }));
            if session.version.is_some() {
                measure(session, document, &mut rows, args.all)?;
            }
            checks.extend(faults::checks(&rows, &ours.host, &theirs.host));
            let both = Both { ours: &document.facts, theirs: &theirs.ports };
            checks.extend(both.mtu(&rows));
            checks.extend(both.speeds(&rows));
            checks.extend(both.number(&ours, &theirs));
            checks.extend(both.rates(&rows));
            if rows.iter().any(Row::works) {
                checks.extend(fused::checks(session, document, &rows)?);
            }
        }
    }
    document.peer = Some(theirs);
    document.routes = rows;
    document.add(checks);
    Ok(())
}

fn fail(text: String) -> Check {
    Check::new("routes", Level::Fail, text)
}

/// Asks the listening end at an address who waits for whom on this host.
pub(crate) fn waits(address: SocketAddr, host: &str, limit: Duration) -> Result<Waits, Failure> {
    let fail = |text: String| Failure::new(Kind::Peer, text);
    let end = Instant::now() + limit;
    let stream = TcpStream::connect_timeout(&address, limit).map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => fail("no \"mpib doctor --listen\" listens there".into()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => fail(format!("no answer within {limit:?}")),
        _ => fail(e.to_string()),
    })?;
    let mut channel = Channel::new(stream.into(), "it")?;
    channel.send(&Opening { task: Some(Task::Waits), ..Opening::new(None) })?;
    let left = || end.saturating_duration_since(Instant::now());
    let reply = channel.first(left(), MAGIC)?;
    accepted(reply, &address.to_string())?;
    channel.recv::<Waits>(left(), || Ok(()))?.of_host(host).map_err(fail)
}

/// Waits until the peer serves this run; returns the run's token.
pub(super) fn open_run(channel: &mut Channel, address: &str) -> Result<String, Failure> {
    let mut limit = PATIENCE;
    loop {
        match accepted(channel.first(limit, MAGIC)?, address)? {
            Reply { wait: true, .. } => {
                eprintln!("mpib: {address} is busy with another machine; waiting");
                limit = QUEUE;
            }
            Reply { token, .. } => return Ok(token),
        }
    }
}

/// Returns the reply, if it is one of this release and refuses nothing.
pub(super) fn accepted(reply: Reply, address: &str) -> Result<Reply, Failure> {
    let fail = |text: String| Err(Failure::new(Kind::Peer, text));
    if reply.magic != MAGIC {
        return fail(format!("{address} is not an \"mpib doctor --listen\""));
    }
    if reply.protocol != PROTOCOL {
        return fail(format!("{address} {}", other_release(reply.mpib.as_deref(), reply.protocol)));
    }
    match &reply.refused {
        Some(why) => fail(format!("{address} refused: {why}")),
        None => Ok(reply),
    }
}

/// Says which releases do not understand each other. `mpib`: that of the other end.
pub(super) fn other_release(mpib: Option<&str>, protocol: u32) -> String {
    let theirs =
        mpib.map_or_else(|| "an mpib of another release".into(), |mpib| format!("mpib {}", short(mpib)));
    format!(
        "has {theirs} (protocol {protocol}), expected that of this end, {VERSION} (protocol {PROTOCOL}); use the same \
         release of mpib at both ends"
    )
}

/// Makes the check of the other machine alone.
fn of_peer(peer: &Summary) -> Check {
    let worst = peer.checks.iter().max_by_key(|c| c.level);
    let level = match peer.verdict {
        Verdict::Usable => Level::Ok,
        Verdict::Losses => Level::Warn,
        Verdict::NotUsed | Verdict::Unusable => Level::Fail,
    };
    let word = peer.verdict.word();
    let why = worst.filter(|_| level != Level::Ok);
    let why = why.map_or_else(String::new, |c| format!(": {}: {}", c.id, c.text));
    Check::new("peer", level, format!("{} by itself is {word}{why}", peer.host))
}

/// Measures the pairs that a connection tries first; the other pairs if none of these works or all
/// were requested.
fn measure(session: &mut Session, document: &Document, rows: &mut [Row], all: bool) -> Result<(), Failure> {
    for wanted in [RouteVerdict::First, RouteVerdict::Later] {
        if wanted == RouteVerdict::Later && !all && rows.iter().any(Row::works) {
            break;
        }
        for row in rows.iter_mut().filter(|r| r.pair.verdict == wanted).take(MOST) {
            if wanted == RouteVerdict::Later && session.deadline.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            row.out = Some(one(session, document, &row.pair, true)?);
            // A pair that fails in one direction would cost its time limit again.
            if row.error().is_none() {
                row.back = Some(one(session, document, &row.pair, false)?);
            }
            if wanted == RouteVerdict::Later && !all && row.works() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Measures one direction. An error ends the session: the other machine is lost.
fn one(session: &mut Session, document: &Document, pair: &Pair, out: bool) -> Result<Measured, Failure> {
    let plan = Plan::of(&[1 << 20], Duration::from_millis(200), PROBE);
    let order = Order::new(Use::port(&pair.ours), Use::port(&pair.theirs), out, plan, MEASURED);
    let ends = session.run(document, order, Trial::default())?;
    let failure = ends.cause().map(|f| plugin_message(&f.message).to_owned());
    let gigabytes_per_second = ends.here.rate().filter(|_| failure.is_none());
    Ok(Measured { gigabytes_per_second, error: failure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_sentence_is_what_is_shown() {
        let text =
            "sender: the plugin's connect returned 6 (x); its last warning: NET/MPIB : connect: no rail";
        assert_eq!(plugin_message(text), "connect: no rail");
        assert_eq!(plugin_message(&text.replace("connect:", "in short: connect:")), "connect: no rail");
        assert_eq!(plugin_message("it died"), "it died");
    }
}
