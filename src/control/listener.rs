//! Listeners: sockets that accept control connections.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use parking_lot::{Mutex, MutexGuard};

use super::channel::Channel;
use super::end::ChannelState;
use super::half_open::{HalfOpen, Look};
use super::interfaces::{fitted, reachable};
use super::link::Link;
use super::options::Options;
use super::reactor::{Control, Reactor};
use super::redial_listener::RedialListener;
use super::redial_terms::{RedialTerms, random};
use super::redialed::Redialed;
use super::seats::{Seat, Seats};
use super::socket::{self, ListenSocket, Stream};
use super::sockets::{Entry, Sockets};
use crate::error::{Error, Result};
use crate::proto::{Addr, Handle, Nonce, Role, Secret};
use crate::warned::Subject;

/// Most channels that may wait for `try_accept`, and most tokens that are remembered.
const WAITING_MAX: usize = 64;
/// Most connections accepted before other sockets are served.
const ACCEPT_BATCH: usize = 16;
/// How long to wait if the process or the system has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How long an unknown peer may stay silent, even if the handshake's own limit is longer.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// A listener for peers that know its handle.
#[derive(Debug)]
pub struct Listener {
    accepted: Arc<Accepted>,
    reactor: Arc<Reactor>,
    token: Token,
    handle: Handle,
    redials: Option<(Arc<RedialListener>, Duration)>,
}

/// Peers whose HELLO has come.
#[derive(Debug)]
struct Accepted {
    waiting: Mutex<Waiting>,
    /// Those of the process.
    seats: Arc<Seats>,
    /// Why the last peer that knew the secret was refused.
    refused: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Waiting {
    links: VecDeque<Guest>,
    /// Whether a call that is in progress takes the next one: its caller flushes the channel.
    wanted: bool,
}

/// A channel that waits.
#[derive(Debug)]
struct Guest {
    token: Token,
    link: Arc<Link>,
    seat: Seat,
}

impl Waiting {
    /// Returns whether no more than `limit` channels may wait, and all have proved themselves.
    fn is_full(&self, limit: usize) -> bool {
        self.links.len() >= limit && self.links.iter().all(|guest| guest.link.is_proved())
    }

    /// Adds a channel. Returns one that has proved nothing and must be closed for it, if there are
    /// `limit` already.
    fn add(&mut self, guest: Guest, limit: usize) -> Option<Token> {
        let full = self.links.len() >= limit;
        let unproved = self.links.iter().position(|guest| !guest.link.is_proved()).filter(|_| full);
        self.links.push_back(guest);
        unproved.and_then(|at| self.links.remove(at)).map(|guest| guest.token)
    }

    /// Takes the next peer: one that has proved itself, if there is one.
    fn next(&mut self) -> Option<Guest> {
        let proved = self.links.iter().position(|guest| guest.link.is_proved());
        self.links.remove(proved.unwrap_or(0))
    }
}

impl Accepted {
    fn with<T>(&self, f: impl FnOnce(&mut Waiting) -> T) -> T {
        f(&mut self.waiting.lock())
    }

    /// Returns how many channels may wait.
    fn limit(&self) -> usize {
        self.seats.limit(WAITING_MAX)
    }

    fn refused(&self) -> MutexGuard<'_, Option<String>> {
        self.refused.lock()
    }
}

impl Listener {
    /// Listens on a port that the system chooses.
    pub fn open(control: &Control, options: &Options<'_>) -> Result<Self> {
        let interfaces = control.interfaces()?;
        let addrs = reachable(&interfaces, options)?;
        let failed = |e| Error::io("listening for control connections", e);
        let mut socket = socket::listen(options.family).map_err(failed)?;
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
        let (redials, callback) = redials.unzip();
        let redials = redials.zip(failover.map(|failover| failover.wait));
        let reactor = control.reactor()?;
        let (waiting, refused, seats) = (Mutex::default(), Mutex::default(), Arc::clone(&control.seats));
        let accepted = Arc::new(Accepted { waiting, seats, refused });
        let limits = (options.timeout.min(STRANGER_LIMIT), options.silence);
        let guests = Guests::Connectors { accepted: Arc::clone(&accepted), callback: callback.map(Box::new) };
        let token = reactor.begin(|sockets| {
            let token = sockets.next_token();
            sockets.register(&mut *socket, token)?;
            let mut acceptor = Acceptor::new(socket, guests, secret, limits);
            acceptor.name(handle.addrs());
            sockets.insert(token, Entry::Listener(acceptor));
            Ok(token)
        });
        let token = token?.map_err(failed)?;
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
            self.accepted.with(|waiting| {
                let next = waiting.next();
                waiting.wanted = wanted && next.is_none();
                next
            })
        };
        let mut next = take(true);
        if next.is_none() {
            let driven = self.reactor.drive();
            next = take(false);
            driven?;
        }
        let channel = |Guest { token, link, seat }| {
            Channel::new(link, Arc::clone(&self.reactor), token, self.redials.clone()).on(seat)
        };
        Ok(next.map(channel))
    }

    /// Returns why a peer that knows the secret was refused since the last call: its HELLO cannot be
    /// decoded.
    pub fn refused(&self) -> Option<Error> {
        self.accepted.refused().take().map(Error::Protocol)
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
    pub(super) socket: ListenSocket,
    guests: Guests,
    secret: Arc<Secret>,
    /// How long an unknown peer may take.
    limit: Duration,
    /// How long a peer's host may be silent.
    silence: Duration,
    /// The addresses that handles name. A connection to another address is closed.
    named: Vec<IpAddr>,
    /// The connectors that got WELCOME, and the first connection of each.
    welcomed: VecDeque<(Nonce, Arc<Link>)>,
    exhausted: bool,
    /// Whether it was reported that too many peers wait.
    full: bool,
}

/// Whom a listener serves.
#[derive(Debug)]
enum Guests {
    /// Connectors of new connections, and the handle by which those are dialled again.
    Connectors { accepted: Arc<Accepted>, callback: Option<Box<Handle>> },
    /// Peers of this process's connections.
    Redials,
}

/// What becomes of a whole HELLO with the right claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is the first one of its connector.
    First,
    /// The first one of its connector has proved nothing yet: of both, one will.
    Beside,
    /// Its connector has a connection.
    Denied,
    /// Too many channels wait.
    Full,
}

impl Acceptor {
    /// Makes the one of the listener for re-dials. The connections have the limit of silence of those
    /// that they replace once they do.
    pub(super) fn of_redials(socket: ListenSocket, secret: Arc<Secret>, limit: Duration) -> Self {
        Self::new(socket, Guests::Redials, secret, (limit, limit))
    }

    fn new(
        socket: ListenSocket,
        guests: Guests,
        secret: Arc<Secret>,
        (limit, silence): (Duration, Duration),
    ) -> Self {
        Self {
            socket,
            guests,
            secret,
            limit,
            silence,
            named: Vec::new(),
            welcomed: VecDeque::new(),
            exhausted: false,
            full: false,
        }
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
        let (secret, until) = (Arc::clone(&self.secret), Instant::now() + self.limit);
        // Read before anything is closed for it: a right first frame usually comes at once.
        let (entry, look) = match self.guests {
            Guests::Connectors { .. } => {
                let mut half_open = HalfOpen::new(me, stream, addr, secret, until);
                let look = half_open.look();
                (Entry::HalfOpen(half_open), look)
            }
            Guests::Redials => {
                let mut redialed = Redialed::new(me, stream, addr, secret, until);
                let look = redialed.look();
                (Entry::Redialed(redialed), look)
            }
        };
        if look == Look::Stranger {
            return None;
        }
        if look == Look::Partial {
            let closed = sockets.half_open.add(token, me, addr.ip());
            closed.into_iter().for_each(|token| sockets.remove(token));
            sockets.wake_at(until, token);
        }
        sockets.insert(token, entry);
        (look == Look::Whole).then_some(token)
    }

    /// Sets the addresses to which connections may come.
    pub(super) fn name(&mut self, addrs: &[Addr]) {
        self.named = addrs.iter().map(Addr::ip).collect();
    }

    /// Returns whether a handle names the local address of a connection. A handle with a loopback
    /// address names all of them.
    fn is_named(&self, stream: &Stream) -> bool {
        let local = stream.local_addr().map(|addr| socket::canonical(addr).ip());
        local.is_ok_and(|local| {
            self.named.iter().any(|ip| *ip == local || ip.is_loopback() && local.is_loopback())
        })
    }

    /// Decides on a whole HELLO with the right claim.
    pub(super) fn admission(&self, connector: &Nonce) -> Admission {
        let full = self.accepted().is_none_or(|accepted| {
            let limit = accepted.limit();
            accepted.with(|waiting| waiting.is_full(limit))
        });
        let first = self.welcomed.iter().find(|(token, _)| token == connector);
        match first {
            _ if full => Admission::Full,
            Some((_, first)) if first.is_proved() => Admission::Denied,
            Some((_, first)) if first.state() == ChannelState::Open => Admission::Beside,
            // The first one has ended and has proved nothing.
            _ => Admission::First,
        }
    }

    /// Remembers the first connection of a connector.
    pub(super) fn welcome(&mut self, connector: Nonce, link: &Arc<Link>) {
        self.welcomed.retain(|(token, _)| *token != connector);
        if self.welcomed.len() == WAITING_MAX {
            self.welcomed.pop_front();
        }
        self.welcomed.push_back((connector, Arc::clone(link)));
    }

    /// Puts a connection that has proved itself in place of the connector's first one. Returns the
    /// channels that are to be removed; `None` if that one has proved itself, too: then both are the
    /// connector's.
    pub(super) fn supersede(&mut self, connector: Nonce, link: &Arc<Link>) -> Option<Vec<Token>> {
        let mut removed = Vec::new();
        let first = self.welcomed.iter().find(|(token, _)| *token == connector);
        if let Some((_, first)) = first {
            if first.is_proved() {
                return None;
            }
            first.fail("another connection has proved to be its connector's".into());
            removed = self.accepted().map_or(Vec::new(), |accepted| {
                accepted.with(|waiting| {
                    let is_first = |guest: &Guest| Arc::ptr_eq(&guest.link, first);
                    let tokens = waiting.links.iter().filter(|w| is_first(w)).map(|w| w.token).collect();
                    waiting.links.retain(|w| !is_first(w));
                    tokens
                })
            });
        }
        self.welcome(connector, link);
        Some(removed)
    }

    /// Reports once that a peer is closed since too many wait.
    pub(super) fn report_full(&mut self, addr: SocketAddr) {
        let limit = self.accepted().map_or(0, |accepted| accepted.limit());
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
        if let Some(accepted) = self.accepted() {
            *accepted.refused() = Some(why);
        }
    }

    /// Passes the channel, whose queue has WELCOME, to `try_accept`.
    /// Returns another channel that must be removed for it.
    pub(super) fn hand_over(&self, token: Token, link: &Arc<Link>) -> Option<Token> {
        let accepted = self.accepted()?;
        let (limit, seat) = (accepted.limit(), accepted.seats.take());
        let guest = Guest { token, link: Arc::clone(link), seat };
        accepted.with(|waiting| {
            // A call takes one channel.
            if !std::mem::take(&mut waiting.wanted) {
                link.flush();
            }
            waiting.add(guest, limit)
        })
    }

    /// Returns how a new connection with this token is dialled again; `None` without failover.
    pub(super) fn redial_terms(&self, token: Nonce) -> Option<RedialTerms> {
        let Guests::Connectors { callback: Some(handle), .. } = &self.guests else { return None };
        Some(RedialTerms::new(Role::Acceptor, token, handle, self.silence))
    }

    fn accepted(&self) -> Option<&Arc<Accepted>> {
        match &self.guests {
            Guests::Connectors { accepted, .. } => Some(accepted),
            Guests::Redials => None,
        }
    }

    /// Closes all connections that nobody will accept any more.
    pub(super) fn close(self, me: Token, sockets: &mut Sockets) {
        let accepted = self.accepted();
        let waiting =
            accepted.map_or(VecDeque::new(), |accepted| accepted.with(|w| std::mem::take(&mut w.links)));
        for token in sockets.half_open.of_listener(me).into_iter().chain(waiting.into_iter().map(|w| w.token))
        {
            sockets.remove(token);
        }
    }
}
