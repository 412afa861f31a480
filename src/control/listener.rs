//! Listeners: sockets that accept control connections, and the peers that wait for a call of accept.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mpib_proto::{Addr, Handle, Message, Nonce, Role, Secret};
use parking_lot::Mutex;

use super::bounds::{HandshakeLimit, HandshakePermit};
use super::channel::{Channel, ChannelState};
use super::half_open::{FirstFrame, HalfOpen, Look};
use super::interfaces::{fitted, reachable};
use super::link::Link;
use super::options::Options;
use super::reactor::{Control, Reactor};
use super::redial::{Here, RedialListener, RedialTerms};
use super::socket::{self, ListenSocket, Stream, random};
use super::sockets::{Entry, Sockets};
use crate::error::{Error, Result};
use crate::warned::Subject;

/// How long an unknown peer may stay silent, even if the handshake's own limit is longer. One that dials
/// again may take as long after WELCOME.
const FIRST_FRAME_LIMIT: Duration = Duration::from_secs(10);
/// Most peers that may wait for `try_accept`, and most connectors that are remembered.
const WAITING_MAX: usize = 64;
/// How long a connector may take for its proof, which takes one round trip, until another TCP
/// connection of it is answered, too: the way back to the connector may not work.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// Most connections accepted before other sockets are served.
const ACCEPT_BATCH: usize = 16;
/// How long to wait if the process or the system has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listener for peers that know its handle.
#[derive(Debug)]
pub struct Listener {
    accepted: Arc<Accepted>,
    reactor: Arc<Reactor>,
    token: Token,
    handle: Handle,
    redials: Option<(Arc<RedialListener>, Duration)>,
}

/// The peers of a listener whose HELLO has come, until a call of accept takes them.
#[derive(Debug)]
struct Accepted {
    waiting: Mutex<Waiting>,
    /// Those of the process.
    handshakes: Arc<HandshakeLimit>,
    /// Why the last peer that knew the secret was refused.
    refused: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Waiting {
    guests: VecDeque<Guest>,
    /// Whether a call that is in progress takes the next one: its caller flushes the channel.
    wanted: bool,
}

/// A channel that waits.
#[derive(Debug)]
struct Guest {
    token: Token,
    link: Arc<Link>,
    permit: HandshakePermit,
}

impl Listener {
    /// Listens on a port that the system chooses.
    pub fn open(control: &Control, options: &Options<'_>) -> Result<Self> {
        let interfaces = control.interfaces()?;
        let addrs = reachable(&interfaces, options)?;
        let failed = |e| Error::io("listening for control connections", e);
        let socket = socket::listen(options.family).map_err(failed)?;
        let port = socket.local_addr().map_err(|e| Error::io("getsockname of a listener", e))?.port();
        let secret = Arc::new(Secret::from(random()?));
        let (handle, left) = fitted(&secret, port, &addrs).map_err(|e| Error::Internal(e.to_string()))?;
        let handle = handle.on(control.host);
        if !left.is_empty() && control.warned.once(Subject::HandleFull) {
            log_left_out(&handle, &left);
        }
        let failover = options.failover.as_ref();
        let redials =
            failover.map(|failover| control.redials.get(control, &interfaces, failover)).transpose()?;
        let (redials, here) = redials.unzip();
        let redials = redials.zip(failover.map(|failover| failover.wait));
        let reactor = control.reactor()?;
        let (waiting, refused, handshakes) =
            (Mutex::default(), Mutex::default(), Arc::clone(&control.handshakes));
        let accepted = Arc::new(Accepted { waiting, handshakes, refused });
        let acceptor = Acceptor {
            named: handle.addrs().iter().map(Addr::ip).collect(),
            here,
            silence: options.silence,
            ..Acceptor::new(
                socket,
                Some(Arc::clone(&accepted)),
                secret,
                options.timeout.min(FIRST_FRAME_LIMIT),
            )
        };
        let token = reactor.begin(|sockets| acceptor.listen(sockets))?.map_err(failed)?;
        Ok(Self { accepted, reactor, token, handle, redials })
    }

    /// Returns what a peer needs to connect.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the next peer with a whole and valid HELLO, which is the first message of its
    /// channel.
    pub fn try_accept(&self) -> Result<Option<Channel>> {
        let next = self.try_accept_unflushed()?;
        next.iter().for_each(Channel::flush);
        Ok(next)
    }

    /// As [`try_accept`](Self::try_accept), for a caller that flushes the channel soon: WELCOME, and
    /// what the caller sends, are one packet then.
    pub(crate) fn try_accept_unflushed(&self) -> Result<Option<Channel>> {
        let take = |wanted: bool| {
            let mut waiting = self.accepted.waiting.lock();
            let next = waiting.guests.pop_front();
            waiting.wanted = wanted && next.is_none();
            next
        };
        let mut next = take(true);
        if next.is_none() {
            let driven = self.reactor.drive();
            next = take(false);
            driven?;
        }
        let channel = |Guest { token, link, permit }| {
            Channel::new(link, Arc::clone(&self.reactor), token, self.redials.clone()).on(permit)
        };
        Ok(next.map(channel))
    }

    /// Returns why a peer that knows the secret was refused since the last call: its HELLO cannot be
    /// decoded.
    pub fn refused(&self) -> Option<Error> {
        self.accepted.refused.lock().take().map(Error::Protocol)
    }
}

fn log_left_out(handle: &Handle, left: &[Addr]) {
    let [named, left] = [handle.addrs(), left].map(|addrs| {
        let texts: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        texts.join(", ")
    });
    tracing::info!(
        target: "net",
        "this host has more addresses than a handle holds: advertised are {named}; left out are {left}. If a peer reaches \
         only the latter, name them in MPIB_OOB_IF or NCCL_SOCKET_IFNAME"
    );
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.remove(self.token));
    }
}

/// The part of a listener that belongs to its socket.
#[derive(Debug)]
pub(super) struct Acceptor {
    socket: ListenSocket,
    /// `None` for the listener for re-dials.
    accepted: Option<Arc<Accepted>>,
    secret: Arc<Secret>,
    /// How long an unknown peer may take.
    limit: Duration,
    /// How long a peer's host may be silent.
    silence: Duration,
    /// The addresses that the handle names. A connection to another address is closed.
    named: Vec<IpAddr>,
    /// Where new connections are dialled again.
    here: Option<Here>,
    /// The connectors that got WELCOME.
    welcomed: VecDeque<Welcomed>,
    exhausted: bool,
    /// Whether it was reported that too many peers wait.
    full: bool,
}

/// A connector that got WELCOME.
#[derive(Debug)]
struct Welcomed {
    connector: Nonce,
    /// Its last connection.
    link: Arc<Link>,
    /// Until when that may prove itself before another one takes its place.
    until: Instant,
}

/// What becomes of a whole HELLO with the right claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is the only one of its connector.
    First,
    /// Another one of its connector may prove itself until then.
    Beside(Instant),
    /// Its connector has a connection, or had one that this end has closed.
    Denied,
    /// Too many peers wait.
    Full,
}

impl Acceptor {
    /// Makes the one of the listener for re-dials. The TCP connections have the limit of silence of
    /// those that they replace once they do.
    pub(super) fn of_redials(socket: ListenSocket, secret: Arc<Secret>) -> Self {
        Self::new(socket, None, secret, FIRST_FRAME_LIMIT)
    }

    fn new(
        socket: ListenSocket,
        accepted: Option<Arc<Accepted>>,
        secret: Arc<Secret>,
        limit: Duration,
    ) -> Self {
        Self {
            socket,
            accepted,
            secret,
            limit,
            silence: limit,
            named: Vec::new(),
            here: None,
            welcomed: VecDeque::new(),
            exhausted: false,
            full: false,
        }
    }

    /// Adds the socket to the table.
    pub(super) fn listen(mut self, sockets: &mut Sockets) -> std::io::Result<Token> {
        let token = sockets.next_token();
        sockets.register(&mut *self.socket, token)?;
        sockets.insert(token, Entry::Listener(self));
        Ok(token)
    }

    /// Accepts what waits in the backlog. Returns the connections whose first frame has come with
    /// them.
    pub(super) fn on_ready(&mut self, me: Token, sockets: &mut Sockets) -> Vec<Token> {
        let mut whole = Vec::new();
        for _ in 0..ACCEPT_BATCH {
            match socket::accept(&self.socket) {
                Ok((stream, addr)) => {
                    self.exhausted = false;
                    whole.extend(self.begin(me, stream, addr, sockets));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return whole,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    if !self.exhausted {
                        tracing::warn!(target: "net", "accepting control connections fails and is retried: {e} (raise ulimit -n?)");
                    }
                    self.exhausted = true;
                    sockets.wake_at(Instant::now() + EXHAUSTED_PAUSE, me);
                    return whole;
                }
            }
        }
        // More may wait; other sockets are served first.
        sockets.again(me);
        whole
    }

    /// Begins with a new connection. Returns its token if its first frame has come with it.
    fn begin(&self, me: Token, mut stream: Stream, addr: SocketAddr, sockets: &mut Sockets) -> Option<Token> {
        if !self.is_named(&stream) {
            tracing::debug!(target: "net", "dropped {addr}: it connects to an address that is not advertised");
            return None;
        }
        let token = sockets.next_token();
        let tuned = socket::tune(&stream, self.silence);
        if let Err(e) = tuned.and_then(|()| sockets.register(&mut *stream, token)) {
            tracing::debug!(target: "net", "dropped {addr}: {e}");
            return None;
        }
        let until = Instant::now() + self.limit;
        let first = if self.accepted.is_some() { FirstFrame::Hello } else { FirstFrame::Redial };
        let mut half_open = HalfOpen::new(me, (stream, addr), Arc::clone(&self.secret), first, until);
        // Read before anything is closed for it: a right first frame usually comes at once.
        let look = half_open.look();
        if look == Look::Rejected {
            return None;
        }
        if look == Look::Partial {
            sockets.add_half_open(token, me, addr);
            sockets.wake_at(until, token);
        }
        sockets.insert(token, Entry::HalfOpen(half_open));
        (look == Look::Whole).then_some(token)
    }

    /// Returns whether the handle names the local address of a connection. A handle with a loopback
    /// address names all of them. The listener for re-dials has no handle.
    fn is_named(&self, stream: &Stream) -> bool {
        let local = stream.local_addr().map(|addr| socket::canonical(addr).ip());
        let names = |ip: &IpAddr, local: IpAddr| *ip == local || ip.is_loopback() && local.is_loopback();
        self.accepted.is_none() || local.is_ok_and(|local| self.named.iter().any(|ip| names(ip, local)))
    }

    /// Decides on a whole HELLO with the right claim. A connector sends the same HELLO to several
    /// addresses.
    pub(super) fn admission(&self, connector: &Nonce) -> Admission {
        let full = |accepted: &Arc<Accepted>| {
            let limit = accepted.limit();
            accepted.waiting.lock().guests.len() >= limit
        };
        let now = Instant::now();
        match self.welcomed.iter().find(|welcomed| welcomed.connector == *connector) {
            _ if self.accepted.as_ref().is_none_or(full) => Admission::Full,
            // Late copies of one HELLO, on other addresses.
            Some(Welcomed { link, .. }) if link.is_proved() || link.has_left() => Admission::Denied,
            Some(Welcomed { link, until, .. }) if link.state() == ChannelState::Open && now < *until => {
                Admission::Beside(*until)
            }
            _ => Admission::First,
        }
    }

    /// Remembers the connection of a connector, in place of one that has proved nothing.
    pub(super) fn welcome(&mut self, connector: Nonce, link: &Arc<Link>) {
        let same = self.welcomed.iter().position(|welcomed| welcomed.connector == connector);
        let full = (self.welcomed.len() == WAITING_MAX).then_some(0);
        if let Some(before) = same.or(full).and_then(|at| self.welcomed.remove(at))
            && same.is_some()
        {
            // If the connector has it nevertheless, a reset makes it begin again.
            before.link.interrupt("the connector has another TCP connection");
        }
        let until = Instant::now() + PROOF_MAX;
        self.welcomed.push_back(Welcomed { connector, link: Arc::clone(link), until });
    }

    /// Reports once that a peer is closed since too many wait.
    pub(super) fn report_full(&mut self, addr: SocketAddr) {
        let limit = self.accepted.as_ref().map_or(0, |accepted| accepted.limit());
        if !std::mem::replace(&mut self.full, true) {
            tracing::info!(
                target: "net",
                "closed the control connection of {addr}, which has the handle: {limit} peers of its listener wait for \
                 accept already{}. A connector retries; further ones are not reported",
                if limit < WAITING_MAX { ", and the process has too many" } else { "" }
            );
        }
    }

    /// Records why a peer that has the secret was refused.
    pub(super) fn refuse(&self, why: String) {
        if let Some(accepted) = &self.accepted {
            *accepted.refused.lock() = Some(why);
        }
    }

    /// Passes the channel, whose queue has WELCOME, to `try_accept`.
    pub(super) fn hand_over(&self, token: Token, link: &Arc<Link>) {
        let Some(accepted) = &self.accepted else { return };
        let guest = Guest { token, link: Arc::clone(link), permit: accepted.handshakes.take() };
        let mut waiting = accepted.waiting.lock();
        // A call takes one channel.
        if !std::mem::take(&mut waiting.wanted) {
            link.flush();
        }
        waiting.guests.push_back(guest);
    }

    /// Returns how a new connection with this token is dialled again, and the CALLBACK for its peer;
    /// nothing without failover.
    pub(super) fn redial(&self, token: Nonce) -> (Option<RedialTerms>, Option<Message>) {
        let role = Role::Acceptor;
        let agree = |here: &Here| (RedialTerms::new(role, token, self.silence), here.callback(&token, role));
        self.here.as_ref().map(agree).unzip()
    }

    /// Closes all connections that nobody will accept any more.
    pub(super) fn close(self, me: Token, sockets: &mut Sockets) {
        let waiting = |accepted: &Arc<Accepted>| std::mem::take(&mut accepted.waiting.lock().guests);
        let waiting = self.accepted.as_ref().map(waiting).into_iter().flatten().map(|guest| guest.token);
        sockets.half_open.of_listener(me).into_iter().chain(waiting).for_each(|token| sockets.remove(token));
    }
}

impl Accepted {
    /// Returns how many channels may wait.
    fn limit(&self) -> usize {
        self.handshakes.limit(WAITING_MAX)
    }
}
