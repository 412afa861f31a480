//! From a channel to a comm: the same on both ends, but for who speaks first. Advanced by polling.

use std::sync::Arc;
use std::time::Instant;

use nccl_net_mpib_agent_iface::stats::Direction;

use super::core::Core;
use super::offer::{Offers, hello, offers};
use super::peer::Peer;
use super::probing::Probing;
use super::rail::Rail;
use super::wiring::{Half, Joined};
use super::{Role, Settings};
use crate::bootstrap::{Channel, State};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::policy::{self, Plan, rail_name};
use crate::proto::{Handle, Hello, ImmLayout, Message, RailInfo};
use crate::route::{Route, pair, pair_roles};
use crate::stats::Counters;

/// A connection under way.
#[derive(Debug)]
pub(super) struct Handshake {
    role: Role,
    settings: Arc<Settings>,
    /// `None` once it has failed.
    channel: Option<Channel>,
    offers: Offers,
    ours: Hello,
    /// The peer's rails, once its HELLO has come.
    theirs: Vec<RailInfo>,
    /// What both HELLOs made of the connection.
    plan: Plan,
    /// Routes that the plan does without unless its own fail.
    reserve: Vec<Route>,
    stage: Stage,
}

/// What is due next.
#[derive(Debug)]
enum Stage {
    Hello,
    Wiring(Half),
    Ready(Joined),
    Probing(Probing),
    Probed(Probing),
    Over,
}

impl Handshake {
    /// The connecting end, which becomes the sender and speaks first.
    pub(super) fn connect(settings: &Arc<Settings>, device: &Device, handle: &Handle) -> Result<Self> {
        let (offers, ours) = prepare(settings, device)?;
        let channel = Channel::connect(handle, &ours, settings.config.connect_timeout)?;
        channel.expect("HELLO");
        Ok(Self::new(Role::Sender, settings, channel, offers, ours))
    }

    /// The listening end, for a channel that has shown its HELLO.
    pub(super) fn accept(settings: &Arc<Settings>, device: &Device, channel: Channel) -> Result<Self> {
        let (offers, ours) = match prepare(settings, device) {
            Ok(prepared) => prepared,
            Err(e) => {
                refuse(channel, &e);
                return Err(e);
            }
        };
        let mut handshake = Self::new(Role::Receiver, settings, channel, offers, ours);
        let said = handshake.send(&Message::Hello(handshake.ours.clone()));
        said.map_err(|e| handshake.give_up(e))?;
        Ok(handshake)
    }

    fn new(role: Role, settings: &Arc<Settings>, channel: Channel, offers: Offers, ours: Hello) -> Self {
        Self {
            role,
            settings: Arc::clone(settings),
            channel: Some(channel),
            offers,
            ours,
            theirs: Vec::new(),
            plan: Plan::Plain,
            reserve: Vec::new(),
            stage: Stage::Hello,
        }
    }

    /// One step further, if it can go one. The peer is told of a failure.
    pub(super) fn poll(&mut self) -> Result<Option<Core>> {
        loop {
            match self.step() {
                Ok(Progress::Waiting) => return Ok(None),
                Ok(Progress::Went) => {}
                Ok(Progress::Connected(core)) => return Ok(Some(*core)),
                Err(e) => return Err(self.give_up(e)),
            }
        }
    }

    fn step(&mut self) -> Result<Progress> {
        if let Stage::Probing(probing) = &mut self.stage {
            if !probing.over()? {
                return self.still_there();
            }
            let Stage::Probing(probing) = std::mem::replace(&mut self.stage, Stage::Over) else {
                return Err(Error::Internal("a handshake lost its place".into()));
            };
            self.send(&probing.report())?;
            self.expect("PROBED");
            self.stage = Stage::Probed(probing);
        }
        let Some(message) = self.channel()?.try_recv()? else { return Ok(Progress::Waiting) };
        match (std::mem::replace(&mut self.stage, Stage::Over), message) {
            (_, Message::Refuse { reason }) => {
                return Err(Error::Peer(format!("{} refuses: {reason}", self.peer())));
            }
            (Stage::Hello, Message::Hello(hello)) => self.met(hello)?,
            (Stage::Wiring(half), Message::Wiring(wiring)) => {
                let name = self.peer();
                let joined =
                    half.join(self.role, &self.settings, &self.offers.usable, &self.theirs, &name, &wiring)?;
                self.send(&Message::Ready)?;
                self.expect("READY");
                self.stage = Stage::Ready(joined);
            }
            (Stage::Ready(joined), Message::Ready) => {
                let config = &self.settings.config;
                // The peer waits for our report as long as its own settings say: stay well within.
                let limit = config.probe_timeout.min(config.connect_timeout / 2);
                self.stage = Stage::Probing(Probing::start(joined, Instant::now() + limit));
            }
            (Stage::Probed(probing), Message::Probed { mask, reasons }) => {
                return self.finish(probing, mask, &reasons);
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
        self.theirs = peer.rails;
        let (connector, acceptor) = match self.role {
            Role::Sender => (&self.ours.rails, &self.theirs),
            Role::Receiver => (&self.theirs, &self.ours.rails),
        };
        let plan = Plan::new(&self.ours.terms, &peer.terms, connector, acceptor);
        let pairing = match plan {
            Plan::Plain => pair(connector, acceptor),
            _ => pair_roles(connector, acceptor),
        };
        if pairing.routes.is_empty() {
            return Err(Error::Usage(format!("no rail reaches {}: {pairing}", self.peer())));
        }
        let down = self.offers.lost.iter().filter(|(role, _)| plan.joins(*role)).map(|(_, why)| why.clone());
        let lost: Vec<_> =
            down.chain(pairing.left_out(connector, acceptor, |role| plan.joins(role))).collect();
        let role = |route: &Route| connector[route.connector].role;
        let (mut routes, mut reserve): (Vec<_>, Vec<_>) =
            pairing.routes.iter().partition(|r| plan.joins(role(r)));
        if routes.is_empty() {
            std::mem::swap(&mut routes, &mut reserve);
        }
        let roles: Vec<u8> = routes.iter().map(role).collect();
        (self.plan, self.reserve) = (plan, reserve);
        if !lost.is_empty() {
            self.lose("rails without a route to", &lost, &roles)?;
        }
        self.wire(routes)
    }

    /// Makes the queue pairs of these routes and tells the peer.
    fn wire(&mut self, routes: Vec<Route>) -> Result<()> {
        let qps = |r: &Route| self.plan.qps(&self.ours.terms, self.role_of(r));
        let routes: Vec<_> = routes.into_iter().map(|r| (r, qps(&r))).collect();
        let offers = &self.offers.usable;
        let half = Half::new(self.role, &self.settings, offers, &routes)?;
        self.send(&Message::Wiring(half.message(self.role, offers.len())))?;
        self.expect("WIRING");
        self.stage = Stage::Wiring(half);
        Ok(())
    }

    /// Both ends have probed: what works on both is the connection.
    fn finish(&mut self, probing: Probing, mask: u8, reasons: &[(u8, String)]) -> Result<Progress> {
        let Joined { rails, mut region, mut remote } = probing.joined;
        if rails.len() < 8 && mask >> rails.len() != 0 {
            let n = rails.len();
            return Err(Error::Protocol(format!("{} probed rails {mask:#010b} of {n}", self.peer())));
        }
        let mut alive = Vec::new();
        let mut lost = Vec::new();
        let mut kept = Vec::new();
        for (i, rail) in rails.into_iter().enumerate() {
            let theirs = mask >> i & 1 == 1;
            let said = || {
                let said =
                    reasons.iter().find(|(r, _)| usize::from(*r) == i).map_or("no reason", |(_, why)| why);
                format!("route {i}, the peer says: {said}")
            };
            match rail {
                Ok(rail) if theirs => {
                    remote.rkeys[alive.len()] = remote.rkeys[i];
                    kept.push(i);
                    alive.push(rail);
                }
                Ok(_) => lost.push(said()),
                Err(e) => lost.push(format!("route {i}: {e}")),
            }
        }
        if alive.is_empty() && !self.reserve.is_empty() {
            // The peer has the same two masks, and comes to the same end.
            let reserve = std::mem::take(&mut self.reserve);
            let roles: Vec<u8> = reserve.iter().map(|r| self.role_of(r)).collect();
            self.lose("rails that do not work to", &lost, &roles)?;
            self.wire(reserve)?;
            return Ok(Progress::Went);
        }
        if alive.is_empty() {
            return Err(Error::Peer(format!("no rail works to {}: {}", self.peer(), lost.join("; "))));
        }
        if !lost.is_empty() {
            let roles: Vec<u8> = alive.iter().map(|r: &Rail| r.role).collect();
            self.lose("rails that do not work to", &lost, &roles)?;
        }
        region.retain(|i| kept.contains(&i));
        let layout = u8::try_from(alive.len()).ok().and_then(ImmLayout::new);
        let layout = layout.ok_or_else(|| Error::Internal(format!("{} rails", alive.len())))?;
        let channel = self.channel.take().ok_or_else(|| Error::Internal("a channel was lost".into()))?;
        channel.settled();
        let routes: Vec<_> = alive.iter().map(Rail::describe).collect();
        tracing::info!(
            target: "net",
            "{} {} ({}): rails {}", self.role.verb(), channel.describe(), self.plan, routes.join(", ")
        );
        let direction = match self.role {
            Role::Sender => Direction::Send,
            Role::Receiver => Direction::Receive,
        };
        let named: Vec<_> = alive.iter().map(|r: &Rail| (r.role, r.nic.name())).collect();
        let peer = Peer::new(channel);
        let stats = Counters::open(&self.settings.config, direction, self.plan, peer.name(), &named);
        let core = Core::new(alive, region, remote, layout, peer, self.plan, stats);
        Ok(Progress::Connected(Box::new(core)))
    }

    /// One warning for what a connection must do without, or an error where that is not wanted. `left` are the
    /// indices in their device of the rails that remain.
    fn lose(&self, what: &str, lost: &[String], left: &[u8]) -> Result<()> {
        let what = format!("{what} {}: {}", self.peer(), lost.join("; "));
        let what = match (self.plan, self.plan.home().filter(|home| !left.contains(home))) {
            (Plan::Isolated(class), Some(home)) => {
                format!("{what}; {class} data belongs on {} (MPIB_MODE=0)", rail_name(home))
            }
            _ => what,
        };
        let what = self.settings.config.lose(what)?;
        let left: Vec<_> = left.iter().map(|role| rail_name(*role)).collect();
        tracing::warn!(target: "net", "{what}; the connection goes on with {} alone", left.join(", "));
        Ok(())
    }

    /// Index of a route's rails in their device.
    fn role_of(&self, route: &Route) -> u8 {
        match self.role {
            Role::Sender => self.ours.rails[route.connector].role,
            Role::Receiver => self.theirs[route.connector].role,
        }
    }

    /// While probes are under way: has the peer given up?
    fn still_there(&self) -> Result<Progress> {
        if self.channel()?.state() == State::Open {
            return Ok(Progress::Waiting);
        }
        match self.channel()?.try_recv()? {
            Some(Message::Refuse { reason }) => {
                Err(Error::Peer(format!("{} refuses: {reason}", self.peer())))
            }
            // It reported and closed: it is gone all the same.
            Some(_) | None => {
                Err(Error::Peer(format!("{} went away while the rails were probed", self.peer())))
            }
        }
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

/// What this end brings.
fn prepare(settings: &Settings, device: &Device) -> Result<(Offers, Hello)> {
    let offers = offers(device)?;
    let hello = hello(&offers.usable, policy::terms(&settings.config, device.is_mpib))?;
    Ok((offers, hello))
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
    Connected(Box<Core>),
}

impl Stage {
    fn due(&self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::Wiring(_) => "WIRING",
            Self::Ready(_) => "READY",
            Self::Probing(_) | Self::Probed(_) => "PROBED",
            Self::Over => "nothing",
        }
    }
}
