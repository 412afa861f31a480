//! The socket of a listener: whom it accepts, and what becomes of them.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;

use super::accepted::{Accepted, Guest, WAITING_MAX};
use super::beginnings::Beginnings;
use super::end::ChannelState;
use super::half_open::{HalfOpen, Look};
use super::link::Link;
use super::redial_terms::{Here, RedialTerms};
use super::redialed::Redialed;
use super::socket::{self, ListenSocket, Stream};
use super::sockets::{Entry, Sockets};
use crate::proto::{Addr, Nonce, Role, Secret};

/// Most connections accepted before other sockets are served.
const ACCEPT_BATCH: usize = 16;
/// How long to wait if the process or the system has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

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
pub(super) enum Guests {
    /// Connectors of new connections, and where those are dialled again.
    Connectors { accepted: Arc<Accepted>, here: Option<Box<Here>> },
    /// Peers of this process's connections, and those that they cannot dial again yet.
    Redials(Arc<Beginnings>),
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
    pub(super) fn of_redials(
        socket: ListenSocket,
        secret: Arc<Secret>,
        beginnings: Arc<Beginnings>,
        limit: Duration,
    ) -> Self {
        Self::new(socket, Guests::Redials(beginnings), secret, (limit, limit))
    }

    pub(super) fn new(
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
        let (entry, look) = match &self.guests {
            Guests::Connectors { .. } => {
                let mut half_open = HalfOpen::new(me, stream, addr, secret, until);
                let look = half_open.look();
                (Entry::HalfOpen(half_open), look)
            }
            Guests::Redials(beginnings) => {
                let mut redialed = Redialed::new(me, (stream, addr), secret, Arc::clone(beginnings), until);
                let look = redialed.look();
                (Entry::Redialed(redialed), look)
            }
        };
        if look == Look::Stranger {
            return None;
        }
        if look == Look::Partial {
            sockets.add_half_open(token, me, addr);
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
        let Guests::Connectors { here: Some(here), .. } = &self.guests else { return None };
        Some(RedialTerms::new(Role::Acceptor, token, here, self.silence))
    }

    fn accepted(&self) -> Option<&Arc<Accepted>> {
        match &self.guests {
            Guests::Connectors { accepted, .. } => Some(accepted),
            Guests::Redials(_) => None,
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
