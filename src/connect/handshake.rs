//! From a channel to a comm: the same on both ends, but for who speaks first. Advanced by polling.

use std::sync::Arc;
use std::time::Instant;

use nccl_net_mpib_agent_iface::stats::Direction;

use crate::connect::attempts::{Attempts, Outcome};
use crate::connect::bringup::{Bringup, BringupContext};
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::local_rails::{LocalRail, prepare, turn};
use crate::connect::probe::ProbeRun;
use crate::control::{Channel, State};
use crate::device::Device;
use crate::error::wc_status;
use crate::error::{Error, Result};
use crate::policy::Plan;
use crate::proto::{Ends, Handle, Hello, ImmLayout, Message, Role, Wiring};
use crate::route::Route;
use crate::stats::Counters;
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::transport::peer::Peer;
use crate::transport::rail::Rail;

/// `IBV_WC_RETRY_EXC_ERR`
const NO_ANSWER: u32 = 12;

const VERB: Ends<&str> = Ends { connector: "sending to", acceptor: "receiving from" };
const DIRECTION: Ends<Direction> = Ends { connector: Direction::Send, acceptor: Direction::Receive };

/// A connection under way.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    settings: Arc<Settings>,
    /// Name of the device that NCCL asked for.
    device: String,
    /// `None` once it has failed.
    channel: Option<Channel>,
    local_rails: Vec<LocalRail>,
    ours: Hello,
    /// No round begins later.
    until: Instant,
    stage: Stage,
}

/// What is due next.
#[derive(Debug)]
enum Stage {
    Hello,
    Wiring(Attempts, LocalEndpoint),
    /// An acceptor's answer is made before.
    BringUp(Attempts, Bringup, Option<Wiring>),
    Ready(Attempts, Endpoint),
    Probe(Attempts, ProbeRun),
    Probed(Attempts, ProbeRun),
    Over,
}

impl Handshake {
    /// The connecting end, which becomes the sender and speaks first.
    pub(crate) fn connect(settings: &Arc<Settings>, device: &Device, handle: &Handle) -> Result<Self> {
        let (local_rails, ours) = prepare(&settings.config, device, turn(device, handle))?;
        let channel =
            Channel::connect(handle, &ours, settings.config.connect_timeout, settings.config.peer_timeout)?;
        // It comes when the peer's NCCL calls accept: a rank may be busy with other things for long, and is none the worse for it.
        channel.expect_whenever("the first call of accept");
        Ok(Self::new(Role::Connector, settings, device, channel, (local_rails, ours)))
    }

    /// The listening end, for a channel that has shown its HELLO.
    pub(crate) fn accept(settings: &Arc<Settings>, device: &Device, channel: Channel) -> Result<Self> {
        let brought = match prepare(&settings.config, device, 0) {
            Ok(brought) => brought,
            Err(e) => {
                refuse(channel, &e);
                return Err(e);
            }
        };
        let mut handshake = Self::new(Role::Acceptor, settings, device, channel, brought);
        let said = handshake.send(&Message::Hello(handshake.ours.clone()));
        said.map_err(|e| handshake.give_up(e))?;
        Ok(handshake)
    }

    fn new(
        role: Role,
        settings: &Arc<Settings>,
        device: &Device,
        channel: Channel,
        (local_rails, ours): (Vec<LocalRail>, Hello),
    ) -> Self {
        Self {
            role,
            settings: Arc::clone(settings),
            device: device.name.to_string_lossy().into_owned(),
            channel: Some(channel),
            local_rails,
            ours,
            until: Instant::now() + settings.config.connect_timeout,
            stage: Stage::Hello,
        }
    }

    /// One step further, if it can go one. The peer is told of a failure.
    pub(crate) fn poll(&mut self) -> Result<Option<Comm>> {
        loop {
            match self.step() {
                Ok(Progress::Waiting) => return Ok(None),
                Ok(Progress::Went) => {}
                Ok(Progress::Connected(comm)) => return Ok(Some(*comm)),
                Err(e) => return Err(self.give_up(e)),
            }
        }
    }

    fn step(&mut self) -> Result<Progress> {
        // No change of a queue pair is tried again later. The peer waits twice as long for what follows.
        let again_until = self.until - self.settings.config.connect_timeout / 2;
        if let Stage::BringUp(attempts, bringup, _) = &mut self.stage {
            let (role, settings, local_rails) = (self.role, &self.settings, &self.local_rails);
            let with = BringupContext { role, settings, local_rails, peer: &attempts.theirs().rails };
            if !bringup.poll(&with, again_until) {
                return self.still_there("queue pairs were set up");
            }
            let Stage::BringUp(attempts, bringup, answer) = std::mem::replace(&mut self.stage, Stage::Over)
            else {
                return Err(Error::Internal("a handshake lost its place".into()));
            };
            let endpoint = bringup.finish();
            if let Some(answer) = answer {
                self.send(&Message::Wiring(endpoint.answer(answer)))?;
            }
            self.send(&Message::Ready)?;
            self.expect("READY");
            self.stage = Stage::Ready(attempts, endpoint);
        }
        if let Stage::Probe(_, probe) = &mut self.stage {
            if !probe.over()? {
                return self.still_there("the rails were probed");
            }
            let Stage::Probe(attempts, probe) = std::mem::replace(&mut self.stage, Stage::Over) else {
                return Err(Error::Internal("a handshake lost its place".into()));
            };
            self.send(&probe.report())?;
            self.expect("PROBED");
            self.stage = Stage::Probed(attempts, probe);
        }
        let Some(message) = self.channel()?.try_recv()? else { return Ok(Progress::Waiting) };
        match (std::mem::replace(&mut self.stage, Stage::Over), message) {
            (_, Message::Refuse { reason }) => {
                return Err(Error::Peer(format!("{} refuses: {reason}", self.peer())));
            }
            (Stage::Hello, Message::Hello(hello)) => self.met(hello)?,
            (Stage::Wiring(attempts, local), Message::Wiring(wiring)) => {
                let answer = match self.role {
                    Role::Connector => None,
                    Role::Acceptor => Some(local.message(self.role, &self.settings)?),
                };
                let (name, theirs) = (self.peer(), &attempts.theirs().rails);
                let bringup = local.join(self.role, &self.local_rails, theirs, &name, wiring)?;
                self.stage = Stage::BringUp(attempts, bringup, answer);
            }
            (Stage::Ready(attempts, endpoint), Message::Ready) => {
                let config = &self.settings.config;
                // The peer waits for our report as long as its own settings say: stay well within.
                let limit = config.probe_timeout.min(config.connect_timeout / 2);
                self.stage = Stage::Probe(attempts, ProbeRun::start(endpoint, Instant::now() + limit));
            }
            (Stage::Probed(attempts, probe), Message::Probed { mask, reasons }) => {
                return self.finish(attempts, probe, mask, &reasons);
            }
            (stage, message) => {
                let due = stage.due();
                return Err(Error::Protocol(format!(
                    "{} sent {} while {due} was due",
                    self.peer(),
                    message.name()
                )));
            }
        }
        Ok(Progress::Went)
    }

    /// The peer's HELLO has come: both ends now know the routes.
    fn met(&mut self, peer: Hello) -> Result<()> {
        let differences = self.ours.terms.differences(&peer.terms);
        if !differences.is_empty() {
            return Err(Error::Usage(format!(
                "settings that both ends must have alike differ from those of {}: {}",
                self.peer(),
                differences.join("; ")
            )));
        }
        self.until = Instant::now() + self.settings.config.connect_timeout;
        let attempts = Attempts::new(self.role, self.ours.clone(), peer, &self.peer())?;
        attempts.missing(&self.settings, &self.peer())?;
        self.wire(attempts)
    }

    /// Makes the queue pairs of a round's routes. The connector tells its own; the acceptor has endpoint its own by when it answers.
    fn wire(&mut self, attempts: Attempts) -> Result<()> {
        // From here on each stripe is a route of its own.
        let stripes = |r: &Route| vec![(*r, attempts.stripes(r).turns); attempts.stripes(r).stripes];
        let stripes: Vec<_> = attempts.now().iter().flat_map(stripes).collect();
        let local = LocalEndpoint::new(self.role, &self.settings, &self.local_rails, &stripes)?;
        if self.role == Role::Connector {
            self.send(&Message::Wiring(local.message(self.role, &self.settings)?))?;
        }
        self.expect("WIRING");
        self.stage = Stage::Wiring(attempts, local);
        Ok(())
    }

    /// Both ends have probed: what works on both is the connection.
    fn finish(
        &mut self,
        mut attempts: Attempts,
        probe: ProbeRun,
        mask: u8,
        reasons: &[(u8, String)],
    ) -> Result<Progress> {
        let endpoint = probe.endpoint;
        let n = endpoint.rails.len();
        if n < 8 && mask >> n != 0 {
            return Err(Error::Protocol(format!("{} probed rails {mask:#010b} of {n}", self.peer())));
        }
        let each = n / attempts.now().len().max(1);
        let theirs = |i: usize| mask >> i & 1 == 1;
        let good = |i: &usize| endpoint.rails[*i].is_ok() && theirs(*i);
        // A route of which a stripe does not work is none.
        let stripes = |route: usize| route * each..(route + 1) * each;
        let works: Vec<bool> =
            (0..attempts.now().len()).map(|route| stripes(route).all(|i| good(&i))).collect();
        let why = |route: usize| {
            let Some(i) = stripes(route).find(|i| !good(i)) else { return String::new() };
            let ours = endpoint.rails[i].as_ref().err().map(ToString::to_string);
            let said =
                || reasons.iter().find(|(r, _)| usize::from(*r) == i).map_or("no reason", |(_, why)| why);
            let said = (!theirs(i)).then(|| format!("the peer says: {}", said()));
            [ours, said].into_iter().flatten().collect::<Vec<_>>().join("; ")
        };
        let routes = attempts.now().to_vec();
        match attempts.judge(&works, why) {
            Outcome::Kept(kept) => {
                let stripes: Vec<usize> = kept.iter().flat_map(|route| stripes(*route)).collect();
                let routes: Vec<_> = kept.iter().map(|i| routes[*i]).collect();
                if attempts.plan != Plan::Plain && works.contains(&false) {
                    attempts.failed(&self.settings, &self.peer(), &routes)?;
                }
                let host = self.channel()?.peer().map(|peer| peer.ip());
                attempts.settle(&self.settings, &self.device, &self.peer(), host, &routes)?;
                self.connected(&attempts, endpoint, &stripes, attempts.elsewhere(&routes))
            }
            Outcome::Again if Instant::now() < self.until => {
                // The peer has the same two masks, and comes to the same end.
                drop(endpoint);
                if attempts.plan != Plan::Plain {
                    attempts.failed(&self.settings, &self.peer(), attempts.now())?;
                }
                self.wire(attempts)?;
                Ok(Progress::Went)
            }
            Outcome::Again | Outcome::Nothing => {
                // That nothing answers has the same causes on every route.
                let (table, advice) = (attempts.table(), wc_status(NO_ANSWER).advice);
                Err(Error::Peer(format!("no rail works to {}: {table}. {advice}", self.peer())))
            }
        }
    }

    /// The connection, over the stripes that are `kept`.
    fn connected(
        &mut self,
        attempts: &Attempts,
        endpoint: Endpoint,
        kept: &[usize],
        elsewhere: bool,
    ) -> Result<Progress> {
        let Endpoint { rails, mut region, mut remote, .. } = endpoint;
        let mut alive: Vec<Rail> = Vec::with_capacity(kept.len());
        for (i, rail) in rails.into_iter().enumerate() {
            if let (Ok(rail), true) = (rail, kept.contains(&i)) {
                remote.rkeys[alive.len()] = remote.rkeys[i];
                alive.push(rail);
            }
        }
        region.retain(|i| kept.contains(&i));
        let layout = u8::try_from(alive.len()).ok().and_then(ImmLayout::new);
        let layout = layout.ok_or_else(|| Error::Internal(format!("{} rails", alive.len())))?;
        let channel = self.channel.take().ok_or_else(|| Error::Internal("a channel was lost".into()))?;
        channel.settled();
        let (plan, mut routes) = (attempts.plan, alive.iter().map(Rail::describe).collect::<Vec<_>>());
        // The stripes of a rail stand beside each other.
        routes.dedup();
        tracing::info!(
            target: "net",
            "{} {} ({plan}): rails {}", VERB.local(self.role), channel.describe(), routes.join(", ")
        );
        let named: Vec<_> = alive.iter().map(|r: &Rail| (r.role, r.nic.name())).collect();
        let peer = Peer::new(channel);
        let stats = Counters::open(
            &self.settings.config,
            *DIRECTION.local(self.role),
            plan,
            peer.name(),
            &named,
            elsewhere,
        );
        let comm = Comm::new(alive, region, remote, layout, peer, plan, stats);
        Ok(Progress::Connected(Box::new(comm)))
    }

    /// While this end is at work: has the peer given up?
    fn still_there(&self, at: &str) -> Result<Progress> {
        if self.channel()?.state() == State::Open {
            return Ok(Progress::Waiting);
        }
        // What it said before it gave up is of no use any more. The end of the channel is an error, too.
        while let Some(message) = self.channel()?.try_recv()? {
            if let Message::Refuse { reason } = message {
                return Err(Error::Peer(format!("{} refuses: {reason}", self.peer())));
            }
        }
        Err(Error::Peer(format!("{} went away while {at}", self.peer())))
    }

    fn give_up(&mut self, e: Error) -> Error {
        self.stage = Stage::Over;
        if let Some(channel) = self.channel.take() {
            refuse(channel, &e);
        }
        e
    }

    fn channel(&self) -> Result<&Channel> {
        self.channel.as_ref().ok_or_else(|| Error::Internal("the handshake is over".into()))
    }

    fn send(&self, message: &Message) -> Result<()> {
        self.channel()?.send(message)
    }

    fn expect(&self, step: &'static str) {
        if let Some(channel) = &self.channel {
            channel.expect(step);
        }
    }

    fn peer(&self) -> String {
        self.channel.as_ref().map_or_else(|| "the peer".into(), Channel::describe)
    }
}

/// Tells the peer why, and ends it.
fn refuse(channel: Channel, why: &Error) {
    // Whether it still listens does not matter.
    let _ = channel.send(&Message::Refuse { reason: why.to_string() });
    channel.close();
}

/// What a step did.
enum Progress {
    Waiting,
    Went,
    Connected(Box<Comm>),
}

impl Stage {
    fn due(&self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::Wiring(..) => "WIRING",
            Self::BringUp(..) => "nothing",
            Self::Ready(..) => "READY",
            Self::Probe(..) | Self::Probed(..) => "PROBED",
            Self::Over => "nothing",
        }
    }
}
