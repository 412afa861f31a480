//! The driver of a handshake. It passes messages, the time and the outcomes of local work to the
//! [`Machine`], and carries out the machine's actions. The machine makes all decisions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{Handle, Hello, Message, Role, Wiring};

use crate::agent::{PATIENCE, Subscription};
use crate::connect::formed::{Formed, check_distance, unhinted};
use crate::connect::known_failures::KnownFailures;
use crate::connect::local_rails::{add_others, prepare, rotation};
use crate::connect::local_work::{Done, LocalWork, out_of_place};
use crate::connect::machine::{Action, Machine, Member, Outcome, Report, expected_stripes};
use crate::control::{Channel, ChannelState, HandshakePermit};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::warned::Subject;

/// How long a connector may take for its proof after the handshake has failed. The proof takes one
/// round trip.
const PROOF_MAX: Duration = Duration::from_secs(10);

/// A handshake in progress.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// The device that NCCL requested.
    device: &'static Device,
    /// `None` after the end of the handshake.
    channel: Option<Channel>,
    /// Whether the peer had proved itself when the channel was last seen.
    proved: bool,
    /// When the peer's last message came.
    last_heard: Instant,
    /// The peer's address, if a fault of the TCP connection has ended the handshake.
    broke_at: Option<IpAddr>,
    /// Why the handshake has failed, and how long a proof of the peer is waited for.
    failed: Option<(Error, Instant)>,
    machine: Machine,
    work: LocalWork,
    known: KnownFailures,
    /// The connection that the probes have confirmed.
    formed: Option<Formed>,
    /// Whether the agent's first hint is waited for.
    awaits_hint: bool,
    /// That of an accepted peer.
    _permit: Option<HandshakePermit>,
}

impl Handshake {
    /// Begins as the connecting end, which becomes the sender.
    pub(crate) fn connect(
        settings: &Arc<Settings>,
        device: &'static Device,
        handle: &Handle,
    ) -> Result<Self> {
        let rotation = rotation(&settings.process, device, handle);
        let (rails, hello) = prepare(settings, device, rotation)?;
        let mut work = LocalWork::new(Role::Connector, settings, rails, None);
        let wiring = guess(&mut work, &hello);
        let (process, config) = (&settings.process, &settings.config);
        let connect = config.connect_timeout;
        let first = (&hello, wiring.as_ref());
        let channel = Channel::connect(&process.control, handle, first, connect, &**config)?;
        Ok(Self::new(device, channel, work, (hello, wiring)))
    }

    /// Creates the queue pairs of the listening end before its peer has come, which creates its own at
    /// the same time. `None` without a guess.
    pub(crate) fn expect(settings: &Arc<Settings>, device: &'static Device) -> Option<LocalWork> {
        let (rails, hello) = prepare(settings, device, 0).ok()?;
        let mut work = LocalWork::new(Role::Acceptor, settings, rails, None);
        guess(&mut work, &hello).map(|_| work)
    }

    /// Begins as the listening end, on a control connection whose peer has sent its HELLO. `expected`
    /// are the queue pairs that exist.
    pub(crate) fn accept(
        settings: &Arc<Settings>,
        device: &'static Device,
        mut channel: Channel,
        expected: Option<LocalWork>,
    ) -> Result<Self> {
        let permit = channel.take_permit();
        match prepare(settings, device, 0) {
            Ok((rails, hello)) => {
                let new = || LocalWork::new(Role::Acceptor, settings, Vec::new(), None);
                let mut work = expected.unwrap_or_else(new);
                work.set_rails(rails);
                let new = Self::new(device, channel, work, (hello, None));
                Ok(Self { _permit: permit, ..new })
            }
            Err(e) => {
                // The error counts, whether the peer receives it or not.
                let _ = channel.send(&Message::Refuse { reason: e.to_string() });
                channel.close();
                Err(e)
            }
        }
    }

    fn new(
        device: &'static Device,
        channel: Channel,
        work: LocalWork,
        first: (Hello, Option<Wiring>),
    ) -> Self {
        let (name, config) = (device.name.to_string_lossy().into_owned(), &work.settings.config);
        let machine = Machine::new(work.role, Instant::now(), config, name, first, PATIENCE);
        Self {
            device,
            channel: Some(channel),
            proved: false,
            last_heard: Instant::now(),
            broke_at: None,
            failed: None,
            machine,
            known: KnownFailures::new(&work.settings),
            work,
            formed: None,
            awaits_hint: false,
            _permit: None,
        }
    }

    /// Advances the handshake as far as possible without waiting. Returns the comm once both ends
    /// use the connection.
    ///
    /// # Errors
    /// The handshake has failed. The peer has been sent the reason.
    pub(crate) fn poll(&mut self) -> Result<Option<(Comm, Option<Subscription>)>> {
        let formed = self.poll_unsent();
        // The messages of one call are one packet.
        self.flush();
        formed
    }

    /// Sends what is queued.
    pub(crate) fn flush(&self) {
        self.channel.iter().for_each(Channel::flush);
    }

    fn poll_unsent(&mut self) -> Result<Option<(Comm, Option<Subscription>)>> {
        loop {
            while let Some(action) = self.machine.poll_action() {
                match action {
                    Action::Established => {
                        let channel = self.take_channel()?;
                        channel.flush();
                        let formed = self.formed.take().ok_or_else(out_of_place)?;
                        return Ok(Some(formed.into_comm(&self.work.settings.process, channel)));
                    }
                    Action::Fail(e) => self.failed = Some((e, Instant::now() + PROOF_MAX)),
                    action => self.perform(action),
                }
            }
            if self.failed.is_some() {
                return self.poll_failed();
            }
            if !self.advance()? {
                return Ok(None);
            }
        }
    }

    /// Ends a failed handshake once it is known whether the peer was this listener's: an acceptor
    /// may fail before the connector's proof has come.
    fn poll_failed(&mut self) -> Result<Option<(Comm, Option<Subscription>)>> {
        let channel = self.channel.as_ref().ok_or_else(ended)?;
        let waits = |(_, until): &mut (Error, Instant)| {
            !channel.is_proved() && channel.state() == ChannelState::Open && Instant::now() < *until
        };
        if self.failed.as_mut().is_some_and(waits) {
            channel.flush();
            // Serves the sockets. Messages do not matter any more.
            let _ = channel.try_recv();
            return Ok(None);
        }
        let (e, _) = self.failed.take().ok_or_else(ended)?;
        self.take_channel()?.close();
        Err(e)
    }

    /// Passes one input to the machine; returns whether there was one. Finished work and messages
    /// take precedence over time limits: a rank that polls late may find what it waited for.
    fn advance(&mut self) -> Result<bool> {
        let now = Instant::now();
        if let Some(outcome) = self.poll_work() {
            self.machine.on_done(now, outcome.unwrap_or_else(Outcome::Failed));
            return Ok(true);
        }
        let channel = self.channel.as_ref().ok_or_else(ended)?;
        match channel.try_recv() {
            Ok(Some(message)) => {
                self.machine.set_peer(channel.describe());
                self.last_heard = now;
                self.machine.on_message(now, message);
            }
            Ok(None) => {
                if channel.peer().is_some() {
                    self.machine.on_connected(now);
                }
                if self.machine.deadline().is_none_or(|deadline| now < deadline) {
                    return Ok(false);
                }
                self.machine.set_peer(channel.describe());
                self.machine.on_timer(now);
            }
            Err(e) => {
                if !self.machine.has_ended() {
                    self.broke_at = channel.broken_at().map(|addr| addr.ip());
                }
                self.machine.on_lost(e);
            }
        }
        Ok(true)
    }

    fn perform(&mut self, action: Action) {
        let done = match self.try_perform(action) {
            Ok(None) => return,
            Ok(Some(outcome)) => outcome,
            Err(e) => Outcome::Failed(e),
        };
        self.machine.on_done(Instant::now(), done);
    }

    fn try_perform(&mut self, action: Action) -> Result<Option<Outcome>> {
        let channel = self.channel.as_ref().ok_or_else(ended)?;
        match action {
            Action::Send(message) => match channel.queue(&message) {
                Err(e) if channel.state() == ChannelState::Open => return Err(e),
                // The loss of the peer is found behind its last messages, which may contain the
                // reason.
                Ok(()) | Err(_) => {}
            },
            Action::Await(Some(step)) => channel.expect(step),
            Action::Await(None) => channel.expect_nothing(),
            Action::Warn(text) => tracing::warn!(target: "net", "{text}"),
            Action::Report(report) => self.log_first(&report, channel),
            Action::Flush => channel.flush(),
            action => return self.work_on(action),
        }
        Ok(None)
    }

    /// Starts, ends or carries out the local work of an action; returns the outcome of work that takes
    /// no time.
    fn work_on(&mut self, action: Action) -> Result<Option<Outcome>> {
        let Self { device, channel, work, known, .. } = self;
        let channel = channel.as_ref().ok_or_else(ended)?;
        match action {
            Action::MakeEndpoint(stripes) => {
                known.remember();
                return work.make(&stripes).map(|wiring| Some(Outcome::Made(wiring)));
            }
            Action::Adopt(stripes) => work.adopt(stripes.each.iter().map(|(route, _)| *route).collect())?,
            Action::ListPorts(first) => {
                let hello = add_others(&work.settings, device, &mut work.rails, &first)?;
                return Ok(Some(Outcome::Listed(hello)));
            }
            Action::ListAgain(rotation) => {
                work.discard();
                known.clear();
                let (rails, hello) = prepare(&work.settings, device, rotation)?;
                work.rails = rails;
                return Ok(Some(Outcome::Listed(hello)));
            }
            Action::MakeSearch(sought) => {
                known.begin(&sought.rails, &sought.host, false);
                return work.make_search(sought, known).map(|search| Some(Outcome::SearchMade(search)));
            }
            Action::AnswerSearch(sought, peer) => {
                known.begin(&sought.rails, &sought.host, false);
                work.make_search(sought, known)?;
                work.begin_search(peer)?;
            }
            Action::Search(peer) => work.begin_search(peer)?,
            Action::Learn(learnt) => {
                work.discard();
                known.searched(work.role, &work.rails, learnt);
            }
            Action::EndSilent { all } => work.probes()?.end_silent(all),
            Action::BringUp(peer) => {
                known.begin(&peer.rails, &peer.host, peer.last);
                work.join(channel.describe(), peer, Some(known))?;
            }
            Action::Probe => work.probe()?,
            Action::Stop if self.awaits_hint => {
                let flow = self.formed.as_ref().and_then(|formed| formed.flow.as_ref());
                let flow = flow.ok_or_else(out_of_place)?;
                return Err(unhinted(&channel.describe(), flow, &work.settings.config));
            }
            Action::Stop => work.stop()?,
            Action::Abandon(which) => work.probes()?.abandon(which),
            Action::PeerFailed(which) => work.probes()?.peer_failed(which),
            Action::Forget(routes) => known.forget(&routes),
            Action::Keep(keep) => {
                known.remember();
                if keep.substitute {
                    let nic = |member: &Member| &work.rails[*member.route().rails.local(work.role)].nic;
                    let used: Vec<_> = keep.members.iter().map(nic).collect();
                    check_distance(&work.settings, &device.rails, &used)?;
                }
                let formed = Formed::new(work, channel, keep)?;
                let registered = formed.flow.is_some();
                self.formed = Some(formed);
                return Ok(Some(Outcome::Kept { registered }));
            }
            Action::AwaitHint => self.awaits_hint = true,
            _ => return Err(out_of_place()),
        }
        Ok(None)
    }

    /// Advances the local work in progress; returns its outcome once it has ended.
    fn poll_work(&mut self) -> Option<Result<Outcome>> {
        if self.awaits_hint {
            let flow = self.formed.as_ref().and_then(|formed| formed.flow.as_ref());
            self.awaits_hint = !flow.is_some_and(Subscription::hinted);
            return (!self.awaits_hint).then_some(Ok(Outcome::Hinted));
        }
        Some(match self.work.poll()? {
            Done::BroughtUp => self.work.endpoint().map(|endpoint| Outcome::BroughtUp(endpoint.eces.clone())),
            Done::Probed => self.known.learn(&self.work).map(Outcome::Probed),
            Done::Searched => self.searched(),
        })
    }

    /// Returns the outcome of a search at this end.
    fn searched(&self) -> Result<Outcome> {
        let search = self.work.search()?;
        Ok(match self.work.role {
            Role::Connector => Outcome::Searched(search.replies()),
            Role::Acceptor => Outcome::SearchMade(search.message(&self.work.settings)),
        })
    }

    /// Logs a report if it is the first on its device and host.
    fn log_first(&self, Report { fault, text, more }: &Report, channel: &Channel) {
        let (device, host) = (self.device.name.to_string_lossy(), channel.peer().map(|peer| peer.ip()));
        let first = Subject::Substituted(device.into_owned(), host);
        if !self.work.settings.process.warned.once(first) {
            return;
        }
        match fault {
            true => tracing::warn!(target: "net", "{text}"),
            false => tracing::info!(target: "net", "{text}"),
        }
        if let Some(more) = more {
            tracing::info!(target: "net", "{more}");
        }
    }

    /// Returns whether the peer has shown that it knows the secret of the handle.
    pub(crate) fn is_proved(&self) -> bool {
        self.channel.as_ref().map_or(self.proved, Channel::is_proved)
    }

    /// Returns the peer's address if the handshake has failed by a fault of its TCP connection alone.
    /// Another one may succeed.
    pub(crate) fn broke_at(&self) -> Option<IpAddr> {
        self.broke_at
    }

    /// Returns when the peer's last message came.
    pub(crate) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Describes the peer for a log.
    pub(crate) fn peer(&self) -> Arc<str> {
        self.channel.as_ref().map_or_else(|| "a peer".into(), Channel::describe)
    }

    fn take_channel(&mut self) -> Result<Channel> {
        self.proved = self.is_proved();
        self.channel.take().ok_or_else(ended)
    }
}

/// Creates the queue pairs of the stripes that this end expects. Without a guess the handshake creates
/// them, and reports what fails then.
fn guess(work: &mut LocalWork, hello: &Hello) -> Option<Wiring> {
    expected_stripes(hello).and_then(|stripes| work.make(&stripes).ok())
}

fn ended() -> Error {
    Error::Internal("the handshake has ended".into())
}
