//! A run of this machine with another one, on which a listener waits: the requests of the end that
//! leads, and what both ends do for one of them.

use std::{
    collections::BTreeMap,
    env, fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use nccl_net_mpib_agent_iface::doctor::{Port, Report};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Document,
    peer::{MEASURED, Opening, PATIENCE, Row, Summary, only, open_run},
    perftest, sysfs,
};
use crate::failure::{Context, Failure, Kind};
use crate::perf::{self, Channel, Death, Outcome, Plan, Probe, Trial};

/// Longest run that a listener takes part in.
const LONGEST: Duration = Duration::from_secs(3600);
/// Most memory for messages, and the longest message, that another machine may request.
const MOST: usize = 1 << 30;
/// How much longer than the limit of a run an end waits for the other one's outcome.
const GRACE: Duration = Duration::from_secs(10);

/// The plugin's setting for how long a host may be silent.
const PEER_TIMEOUT: &str = "MPIB_PEER_TIMEOUT_MS";

/// Requests of the leading end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Move data between the two machines.
    Run(Box<Order>),
    /// Read the hardware counters of the ports.
    Counters,
    /// Describe what else the host has.
    Tools,
    /// Start one end of `ib_write_bw`; the answer has the server's TCP port.
    Perftest(perftest::End),
    /// Wait for its end, at most so many seconds.
    PerftestEnds(f64),
    /// The run has ended with this result.
    Result(Vec<Row>),
}

/// What a run uses at one end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    /// One port, as `hca:port`, and no other route; absent: the device as NCCL has it.
    pub(crate) port: Option<String>,
    /// Number of the device; 0 with a port.
    pub(crate) device: i32,
    /// The GPU whose memory has the messages; absent: the host's.
    pub(crate) gpu: Option<i32>,
    /// Whether the process at this end dies in the middle.
    pub(crate) dies: bool,
}

impl Use {
    /// One port alone.
    pub(crate) fn port(name: &str) -> Self {
        Self { port: Some(name.to_owned()), ..Self::default() }
    }

    /// The device of this number, as NCCL has it.
    pub(crate) fn device(number: i32) -> Self {
        Self { device: number, ..Self::default() }
    }
}

/// A run between the two ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The end that leads the session.
    pub(crate) here: Use,
    pub(crate) there: Use,
    /// Version of the table; the session sets it.
    pub(crate) version: u32,
    /// Whether the end that leads the session sends.
    pub(crate) out: bool,
    pub(crate) plan: Plan,
    /// How long it may take in all, in seconds.
    pub(crate) limit: f64,
    /// `MPIB_PEER_TIMEOUT_MS` of both ends where it is not set.
    #[serde(default)]
    pub(crate) peer_timeout_ms: Option<u64>,
}

impl Order {
    /// Makes a run over devices.
    pub(crate) fn new(here: Use, there: Use, out: bool, plan: Plan, limit: Duration) -> Self {
        let limit = limit.as_secs_f64();
        Self { here, there, version: 0, out, plan, limit, peer_timeout_ms: None }
    }

    /// Returns the order from the point of view of the other end.
    fn mirrored(self) -> Self {
        Self { here: self.there, there: self.here, out: !self.out, ..self }
    }

    /// Checks the order of another machine.
    pub(super) fn received(self) -> Result<Self, Failure> {
        let order = self.mirrored();
        let limit = Duration::try_from_secs_f64(order.limit).ok().filter(|limit| *limit <= LONGEST);
        if limit.is_none() {
            let text = format!("the other end's limit is {} s, expected at most {LONGEST:?}", order.limit);
            return Err(Failure::new(Kind::Peer, text));
        }
        let plan = order.plan.validate()?;
        if plan.memory > MOST || plan.sizes.iter().any(|size| *size > MOST) {
            let text = format!("the other end requests more than {MOST} bytes of memory for messages");
            return Err(Failure::new(Kind::Peer, text));
        }
        Ok(Self { plan, ..order })
    }

    /// Runs this end, with what it alone does on top.
    pub(super) fn perform(self, document: &Document, trial: Trial, stream: TcpStream) -> Outcome {
        self.probe(document, trial, &stream).map_or_else(Outcome::from, |probe| probe.run(stream.into()))
    }

    fn probe(self, document: &Document, trial: Trial, stream: &TcpStream) -> Result<Probe, Failure> {
        stream.set_nodelay(true).tool("set TCP_NODELAY")?;
        let plugin = document.plugin.clone().ok_or_else(|| {
            Failure::new(Kind::Load, "this host has no plugin: the check of the host has the reason")
        })?;
        let mut env = match &self.here.port {
            Some(port) if ports(document).any(|known| known.name() == *port) => only(port),
            Some(port) => {
                let text = format!("the peer requested a port that this host does not have: {port}");
                return Err(Failure::new(Kind::Peer, text));
            }
            None => Vec::new(),
        };
        if let Some(ms) = self.peer_timeout_ms.filter(|_| env::var_os(PEER_TIMEOUT).is_none()) {
            env.push((PEER_TIMEOUT.into(), Some(ms.to_string())));
        }
        let death = match (self.here.dies, self.there.dies) {
            (true, _) => Some(Death::Own),
            (_, true) => Some(Death::Peer),
            _ => None,
        };
        Ok(Probe {
            plugin,
            version: self.version,
            env,
            device: self.here.device,
            gpu: self.here.gpu,
            sends: self.out,
            plan: self.plan,
            trial: Trial { accounts: true, death, ..trial },
            limit: Duration::try_from_secs_f64(self.limit).unwrap_or(LONGEST),
        })
    }
}

/// What both ends of a run found.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    pub(crate) here: Outcome,
    pub(crate) there: Outcome,
}

impl Ends {
    /// Returns the failure that most likely caused the others.
    pub(crate) fn cause(&self) -> Option<Failure> {
        let there = self.there.failure.clone().map(|failure| failure.at("there"));
        [self.here.failure.clone(), there].into_iter().flatten().min_by_key(|failure| failure.kind.rank())
    }
}

/// Hardware counters by port and name.
pub(crate) type Counters = BTreeMap<String, BTreeMap<String, u64>>;

/// Reads the hardware counters of this host's ports.
pub(crate) fn counters(document: &Document) -> Counters {
    let of = |port: &Port| {
        let folder = Path::new(port.hw_counters.as_ref()?);
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
        let names = sysfs::names(folder).into_iter();
        Some((port.name(), names.filter_map(|name| Some((name.clone(), number(&name)?))).collect()))
    };
    ports(document).filter_map(of).collect()
}

pub(super) fn ports(document: &Document) -> impl Iterator<Item = &Port> {
    document.report.iter().flat_map(|report: &Report| &report.ports)
}

/// A session that this end leads.
pub(crate) struct Session {
    channel: Channel,
    address: String,
    token: String,
    /// Addresses of the connection: this end's, and the other one's.
    pub(crate) addresses: [IpAddr; 2],
    /// What the other machine says of itself.
    pub(crate) theirs: Summary,
    /// The newest table that both plugins have.
    pub(crate) version: Option<u32>,
    /// When the present step has to end.
    pub(crate) deadline: Option<Instant>,
}

impl Session {
    /// Begins a session: both machines describe themselves.
    pub(crate) fn open(address: &str, document: &Document) -> Result<Self, Failure> {
        let stream = connect(address)?;
        let address_of = |end: io::Result<SocketAddr>| {
            end.map(|end| perf::canonical(end).ip()).tool("read the address of a connection")
        };
        let addresses = [address_of(stream.local_addr())?, address_of(stream.peer_addr())?];
        let mut channel = Channel::new(stream.into(), "the other machine")?;
        channel.send(&Opening::new(None))?;
        let token = open_run(&mut channel, address)?;
        let ours = Summary::new(document);
        channel.send(&ours)?;
        let theirs: Summary = channel.recv(MEASURED, || Ok(()))?;
        let version = ours.tables.iter().copied().find(|v| theirs.tables.contains(v));
        let address = address.to_owned();
        Ok(Self { channel, address, token, addresses, theirs, version, deadline: None })
    }

    /// Runs both ends. An error ends the session: the other machine is lost.
    pub(crate) fn run(
        &mut self,
        document: &Document,
        mut order: Order,
        trial: Trial,
    ) -> Result<Ends, Failure> {
        order.version = self.version.ok_or_else(|| {
            Failure::new(Kind::Load, "the plugins of the two hosts have no table in common")
        })?;
        if let Some(deadline) = self.deadline {
            order.limit = order.limit.min(deadline.saturating_duration_since(Instant::now()).as_secs_f64());
        }
        let limit = Duration::try_from_secs_f64(order.limit).unwrap_or(LONGEST);
        self.channel.send(&Request::Run(Box::new(order.clone())))?;
        let stream = connect(&self.address)?;
        let lent = stream.try_clone().tool("share a connection")?;
        Channel::new(lent.into(), "the other machine")?.send(&Opening::new(Some(self.token.clone())))?;
        let here = order.perform(document, trial, stream);
        let there = self.channel.recv(limit + GRACE, || Ok(()))?;
        Ok(Ends { here, there })
    }

    /// Reads the hardware counters of the other machine.
    pub(crate) fn counters(&mut self) -> Result<Counters, Failure> {
        self.ask(&Request::Counters, PATIENCE)
    }

    /// Sends a request, and returns its answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        limit: Duration,
    ) -> Result<T, Failure> {
        self.channel.send(request)?;
        self.channel.recv(limit, || Ok(()))
    }

    /// Ends the session with its result.
    pub(crate) fn end(mut self, rows: Vec<Row>) -> Result<(), Failure> {
        self.channel.send(&Request::Result(rows))
    }
}

fn connect(address: &str) -> Result<TcpStream, Failure> {
    let (host, port) = perf::split(address)?;
    perf::dial(host, port, "mpib doctor --listen")
}
