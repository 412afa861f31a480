//! The owner's end of a control connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mpib_proto::{Claim, Handle, Hello, Message, Role, Transcript, Wiring, hello_of_version};

use super::bounds::HandshakePermit;
use super::connector::{Connector, Opening};
use super::interfaces::Interface;
use super::link::{Break, Link};
use super::options::Tolerance;
use super::reactor::{Control, Reactor};
use super::redial::{RedialListener, RedialTerms};
use super::socket::random;
use super::sockets::Entry;
use super::targets::Targets;
use super::wire::encoded;
use crate::error::Result;

/// How long a listener of another version is tried.
const REPORT_MAX: Duration = Duration::from_secs(2);

/// State of the connection to the peer, as far as this end knows. Read with one atomic load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelState {
    /// No end of the connection is known. A connection that is not established yet counts as open.
    Open,
    /// The peer has sent BYE.
    ByePeer,
    /// The peer's process has ended without a BYE, or breaks the protocol. Without failover also: the
    /// peer cannot be reached.
    Lost,
    /// With failover: the TCP connection of an established connection broke, which is no sign of the
    /// peer's death. It is dialled again until the channel is closed.
    Broken,
}

impl ChannelState {
    pub(super) fn from_raw(n: u8) -> Self {
        [Self::Open, Self::ByePeer, Self::Lost, Self::Broken][usize::from(n.min(3))]
    }
}

/// Something that the owner of a channel is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Messages have come, which [`Channel::received`](super::Channel::received) returns.
    Message,
    /// The TCP connection broke. It is dialled again. Messages that the peer has not received are
    /// lost, and so is what is sent until [`Resumed`](Self::Resumed).
    Broken,
    /// A new TCP connection has replaced the broken one. Messages that the peer may not have
    /// received must be repeated.
    Resumed,
    /// The connection is closed or lost.
    Ended,
}

/// What is called on each event of a channel.
///
/// The thread `mpib-bootstrap` calls it, which serves the control connections of the process. No
/// lock of the control connections is held. An implementation must not wait, and must not panic.
pub trait ChannelObserver: fmt::Debug + Send + Sync {
    /// Handles an event.
    fn on_event(&self, event: ChannelEvent);
}

/// A control connection. If it is dropped without [`close`](Self::close), no BYE is sent, and the
/// peer sees a loss.
#[derive(Debug)]
pub struct Channel {
    link: Arc<Link>,
    reactor: Arc<Reactor>,
    token: Token,
    closed: bool,
    /// That of an accepted peer, until the owner takes it.
    permit: Option<HandshakePermit>,
    /// Keeps the listener for re-dials open, with how long a break may last.
    redials: Option<(Arc<RedialListener>, Duration)>,
}

impl Channel {
    pub(super) fn new(
        link: Arc<Link>,
        reactor: Arc<Reactor>,
        token: Token,
        redials: Option<(Arc<RedialListener>, Duration)>,
    ) -> Self {
        Self { link, reactor, token, closed: false, permit: None, redials }
    }

    /// Adds the permit of an accepted peer.
    pub(super) fn on(mut self, permit: HandshakePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Takes the permit of an accepted peer, to hold it until the handshake is over.
    pub(crate) fn take_permit(&mut self) -> Option<HandshakePermit> {
        self.permit.take()
    }

    /// Begins to connect to the listener behind `handle`, with `hello` as the first message; its
    /// claim and whether WIRING follows are filled in. `wiring` is sent in the same
    /// packet. Returns at once. [`try_recv`](Self::try_recv) returns the
    /// listener's own HELLO, or a failure after `timeout` at the latest. Messages may be sent from
    /// now on: they wait. `tolerance` is how long the peer's host may be silent, and whether the
    /// connection outlives a break.
    pub fn connect(
        control: &Control,
        handle: &Handle,
        (hello, wiring): (&Hello, Option<&Wiring>),
        timeout: Duration,
        tolerance: impl Into<Tolerance>,
    ) -> Result<Self> {
        let Tolerance { silence, failover } = tolerance.into();
        let interfaces = control.interfaces()?;
        let token = random()?;
        let (claim, wiring_follows) = (Claim::new(handle.secret(), token), wiring.is_some());
        let mut bytes = encoded(&Message::Hello(Hello { claim, wiring_follows, ..hello.clone() }))?;
        let transcript = Transcript::new(handle.secret(), &bytes);
        let (mut redials, mut terms, mut callback) = (None, None, None);
        if let Some(failover) = &failover {
            let (listener, here) = control.redials.get(control, &interfaces, failover)?;
            callback = Some(here.callback(&token, Role::Connector));
            terms = Some(RedialTerms::new(Role::Connector, token, silence));
            redials = Some((listener, failover.wait));
        }
        let mut early = transcript.early_key();
        for message in callback.into_iter().chain(wiring.cloned().map(Message::Wiring)) {
            let mut frame = encoded(&message)?;
            early.seal(&mut frame);
            bytes.extend(frame);
        }
        let opening = Opening { bytes: bytes.into(), transcript };
        let link = Arc::new(Link::new(terms));
        let (id, reactor) = dial(control, &interfaces, handle, (&link, opening), (timeout, silence))?;
        Ok(Self::new(link, reactor, id, redials))
    }

    /// Reports this end's version to the listener of `handle`, which is of another version: its end
    /// then names both versions, too. Returns at once, and does no more than try for a while.
    pub(crate) fn report_version(control: &Control, handle: &Handle) -> Result<()> {
        let bytes = hello_of_version(&Claim::new(handle.secret(), random()?));
        let transcript = Transcript::new(handle.secret(), &bytes);
        let opening = Opening { bytes: bytes.into(), transcript };
        let link = Arc::new(Link::new(None));
        // No channel comes of it.
        link.fail("the versions differ".into());
        let times = (REPORT_MAX, REPORT_MAX);
        dial(control, &control.interfaces()?, handle, (&link, opening), times).map(drop)
    }

    /// Sends a message, or queues what the socket does not accept. An error means that the
    /// connection has ended. A message that is sent while the connection is broken is lost.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.link.enqueue(message)?;
        self.link.flush();
        Ok(())
    }

    /// Queues a message for the next [`flush`](Self::flush): several messages are one packet then.
    /// An error means that the connection has ended.
    pub(crate) fn queue(&self, message: &Message) -> Result<()> {
        self.link.enqueue(message)
    }

    /// Sends the queued messages.
    pub fn flush(&self) {
        self.link.flush();
    }

    /// Returns the next message, or `None` if none has come. Messages from before the end of the
    /// connection come first. Then an error names the peer and the step: closed or lost.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        if let Some(message) = self.link.try_recv()? {
            return Ok(Some(message));
        }
        self.reactor.drive()?;
        self.link.try_recv()
    }

    /// Returns the next message of an established connection, whose socket the thread serves.
    pub fn received(&self) -> Result<Option<Message>> {
        self.link.try_recv()
    }

    /// Returns whether the peer has shown that it knows the secret of the handle. Before that its
    /// messages may be the copy of another process.
    pub fn is_proved(&self) -> bool {
        self.link.is_proved()
    }

    /// Returns whether there is something to look at: a message, or the end of the connection.
    pub(crate) fn has_news(&self) -> bool {
        self.state() != ChannelState::Open || self.link.has_message()
    }

    /// Returns whether a message has come that the owner has not read.
    pub(crate) fn has_message(&self) -> bool {
        self.link.has_message()
    }

    /// Calls `hook` on each event of the connection from now on: see [`ChannelObserver`]. What has happened
    /// before is found by [`state`](Self::state) and [`received`](Self::received), which the caller
    /// calls once after this.
    pub fn observe(&self, hook: Arc<dyn ChannelObserver>) {
        self.link.observe(Some(hook));
    }

    /// Returns since when the connection is [`Broken`](ChannelState::Broken), and why. `None` if it
    /// is not.
    pub fn broken(&self) -> Option<Break> {
        self.link.broken()
    }

    /// Does so if this is true of the break. Nothing is copied otherwise.
    pub(crate) fn broken_if(&self, is_wanted: impl FnOnce(&Break) -> bool) -> Option<Break> {
        self.link.broken_if(is_wanted)
    }

    /// Returns how long the connection may be broken while nothing shows that the peer is alive.
    /// `None` without failover.
    pub fn wait(&self) -> Option<Duration> {
        self.redials.as_ref().map(|(_, wait)| *wait)
    }

    /// Ends the handshake: the thread alone serves the connection from now on. With failover the
    /// connection outlives a break of its TCP connection from now on.
    pub fn end_handshake(&self) -> Result<()> {
        self.reactor.with(|sockets| sockets.hand_over(self.token))
    }

    /// Names the message that the owner waits for. Errors of [`try_recv`](Self::try_recv) contain
    /// the name.
    pub fn expect(&self, step: &'static str) {
        self.link.expect(Some(step));
    }

    /// Ends the last step: no message is due any more.
    pub fn expect_nothing(&self) {
        self.link.expect(None);
    }

    /// Returns whether the peer is there: one atomic load, for the data path. Shows a BYE or a loss
    /// even while earlier messages wait to be read.
    pub fn state(&self) -> ChannelState {
        self.link.state()
    }

    /// Returns the peer's address; `None` until connected.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.link.peer()
    }

    /// Returns the peer's address if a fault of the TCP connection has ended the connection: the peer
    /// may live, and another handshake with it may succeed.
    pub(crate) fn broken_at(&self) -> Option<SocketAddr> {
        self.link.peer().filter(|_| self.link.is_broken_for_good())
    }

    /// Returns this end's address; `None` while there is no connection.
    pub fn local(&self) -> Option<SocketAddr> {
        self.link.local()
    }

    /// Describes the peer for a log: address, and host and process once known.
    pub fn describe(&self) -> Arc<str> {
        self.link.describe()
    }

    /// Sends a BYE after everything sent before, and closes. The socket stays a while until the
    /// peer has read it and closed too. A channel that is not connected yet just ends.
    pub fn close(mut self) {
        self.closed = true;
        self.link.observe(None);
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.close(self.token));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.closed {
            self.link.observe(None);
            // As in `close`.
            let _ = self.reactor.with(|sockets| sockets.remove(self.token));
        }
    }
}

/// Begins to connect `link` to the listener behind `handle`, as its entry in the table, within the first
/// of `times`. The second one is how long the peer's host may be silent.
fn dial(
    control: &Control,
    interfaces: &[Interface],
    handle: &Handle,
    (link, opening): (&Arc<Link>, Opening),
    times: (Duration, Duration),
) -> Result<(Token, Arc<Reactor>)> {
    let known = Arc::clone(&control.known);
    let (host, worked) = (handle.addrs(), known.of(handle.addrs()));
    let targets = Targets::of(handle, (control.host, interfaces), worked, Instant::now());
    let connector = Connector::new(Arc::clone(link), host, targets, opening, times, known);
    let reactor = control.reactor()?;
    let id = reactor.begin(|sockets| {
        let id = sockets.next_token();
        sockets.insert(id, Entry::Connector(connector));
        sockets.began(id, link);
        sockets.step(id);
        id
    })?;
    Ok((id, reactor))
}
