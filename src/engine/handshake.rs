//! From a channel to a comm: the same on both ends, but for who speaks first. Advanced by polling.

use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::offer::{Offer, hello, offers};
use super::peer::Peer;
use super::rail::{Rail, Work};
use super::wiring::{Half, Joined};
use super::{Role, Settings};
use crate::bootstrap::{Channel, State};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::proto::{Handle, Hello, ImmLayout, Message, RailInfo};
use crate::route::pair;
use crate::verbs::{Chain, Remote};

/// A connection under way.
#[derive(Debug)]
pub(super) struct Handshake {
    role: Role,
    settings: Arc<Settings>,
    /// `None` once it has failed.
    channel: Option<Channel>,
    offers: Vec<Offer>,
    ours: Hello,
    /// The peer's rails, once its HELLO has come.
    theirs: Vec<RailInfo>,
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

/// Zero-byte writes on every route.
#[derive(Debug)]
struct Probing {
    joined: Joined,
    /// Routes whose probe is under way.
    pending: u8,
    until: Instant,
}

impl Handshake {
    /// The connecting end, which becomes the sender and speaks first.
    pub(super) fn connect(settings: &Arc<Settings>, device: &Device, handle: &Handle) -> Result<Self> {
        let offers = offers(device, settings.config.strict)?;
        let ours = hello(&offers)?;
        let channel = Channel::connect(handle, &ours, settings.config.connect_timeout)?;
        channel.expect("HELLO");
        Ok(Self::new(Role::Sender, settings, channel, offers, ours))
    }

    /// The listening end, for a channel that has shown its HELLO.
    pub(super) fn accept(settings: &Arc<Settings>, device: &Device, channel: Channel) -> Result<Self> {
        let prepared = offers(device, settings.config.strict).and_then(|o| Ok((hello(&o)?, o)));
        let (ours, offers) = match prepared {
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

    fn new(role: Role, settings: &Arc<Settings>, channel: Channel, offers: Vec<Offer>, ours: Hello) -> Self {
        let settings = Arc::clone(settings);
        Self { role, settings, channel: Some(channel), offers, ours, theirs: Vec::new(), stage: Stage::Hello }
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
                    half.join(self.role, &self.settings, &self.offers, &self.theirs, &name, &wiring)?;
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
                return self.finish(probing, mask, &reasons).map(|core| Progress::Connected(Box::new(core)));
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
        self.theirs = peer.rails;
        let (connector, acceptor) = match self.role {
            Role::Sender => (&self.ours.rails, &self.theirs),
            Role::Receiver => (&self.theirs, &self.ours.rails),
        };
        let pairing = pair(connector, acceptor);
        if pairing.routes.is_empty() {
            return Err(Error::Usage(format!("no rail reaches {}: {pairing}", self.peer())));
        }
        let lost = pairing.left_out(connector, acceptor);
        if !lost.is_empty() {
            let what = format!("rails without a route to {}: {}", self.peer(), lost.join("; "));
            self.lose(what)?;
        }
        let half = Half::new(self.role, &self.settings, &self.offers, &pairing.routes)?;
        self.send(&Message::Wiring(half.message(self.role, self.offers.len())))?;
        self.expect("WIRING");
        self.stage = Stage::Wiring(half);
        Ok(())
    }

    /// Both ends have probed: what works on both is the connection.
    fn finish(&mut self, probing: Probing, mask: u8, reasons: &[(u8, String)]) -> Result<Core> {
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
        if alive.is_empty() {
            return Err(Error::Peer(format!("no rail works to {}: {}", self.peer(), lost.join("; "))));
        }
        if !lost.is_empty() {
            let what = format!("rails that do not work to {}: {}", self.peer(), lost.join("; "));
            self.lose(what)?;
        }
        region.retain(|i| kept.contains(&i));
        let layout = u8::try_from(alive.len()).ok().and_then(ImmLayout::new);
        let layout = layout.ok_or_else(|| Error::Internal(format!("{} rails", alive.len())))?;
        let channel = self.channel.take().ok_or_else(|| Error::Internal("a channel was lost".into()))?;
        channel.settled();
        let routes: Vec<_> = alive.iter().map(|r: &Rail| r.nic.name()).collect();
        tracing::info!(target: "net", "{} {}: rails {}", self.role.verb(), channel.describe(), routes.join(", "));
        Ok(Core::new(alive, region, remote, layout, Peer::new(channel)))
    }

    /// One warning for what a connection must do without, or an error where that is not wanted.
    fn lose(&self, what: String) -> Result<()> {
        if self.settings.config.strict {
            return Err(Error::Usage(format!("{what} (MPIB_STRICT=1)")));
        }
        tracing::warn!(target: "net", "{what}; the connection goes on without them");
        Ok(())
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

impl Probing {
    fn start(mut joined: Joined, until: Instant) -> Self {
        let mut pending = 0;
        let mut chain = Chain::default();
        for (i, place) in joined.rails.iter_mut().enumerate() {
            let Ok(rail) = place else { continue };
            let to = Remote { addr: joined.remote.addr, rkey: joined.remote.rkeys[i] };
            chain.clear();
            let posted = match chain.write(None, to, None, Some(Work::Probe.id())) {
                true => rail.post(&mut chain, true),
                false => Err(Error::Internal("no room for a probe".into())),
            };
            match posted {
                Ok(()) => pending |= 1 << i,
                Err(e) => *place = Err(e),
            }
        }
        Self { joined, pending, until }
    }

    /// Takes what has completed; `true` when every probe has, or the time is up.
    fn over(&mut self) -> Result<bool> {
        for (i, place) in self.joined.rails.iter_mut().enumerate() {
            let Ok(rail) = place else { continue };
            if self.pending >> i & 1 == 0 {
                continue;
            }
            let batch = rail.cq.poll()?;
            let Some(completion) = batch.iter().next() else { continue };
            self.pending &= !(1 << i);
            if completion.status != 0 {
                *place = Err(rail.failed(i, &completion));
            } else {
                rail.sent()?;
            }
        }
        if self.pending != 0 && Instant::now() < self.until {
            return Ok(false);
        }
        for (i, place) in self.joined.rails.iter_mut().enumerate() {
            if self.pending >> i & 1 == 1 {
                *place =
                    Err(Error::Peer("the probe did not complete in time (MPIB_PROBE_TIMEOUT_MS)".into()));
            }
        }
        self.pending = 0;
        Ok(true)
    }

    fn report(&self) -> Message {
        let rails = || (0u8..).zip(&self.joined.rails);
        let mask = rails().filter(|(_, r)| r.is_ok()).fold(0, |mask, (i, _)| mask | 1 << i);
        let reasons = rails().filter_map(|(i, r)| r.as_ref().err().map(|e| (i, e.to_string()))).collect();
        Message::Probed { mask, reasons }
    }
}
