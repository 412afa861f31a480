//! Another TCP connection for a connection whose own one broke.
//!
//! With failover each process has one listener for re-dials, and the ends say in CALLBACK where theirs
//! is. An end that finds the connection broken dials the other's, the acceptor a little later, and sends
//! REDIAL. After WELCOME it sends RESUME, and both ends go on with the new TCP connection; what the peer
//! has not acknowledged is repeated by the owner. A break may show at one end only.
//!
//! Nothing here ends a connection but a peer that proves that it has no such connection any more. How
//! long a break may last is decided by the owner.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mio::Token;
use mpib_proto::{
    Addr, Callback, MAX_CALLBACK_ADDRS, Message, Nonce, Redial, Role, Secret, Tag, Transcript,
    ended_commitment, ended_proof,
};
use parking_lot::Mutex;

use super::connector::{Dialer, Opening, Outcome};
use super::interfaces::{Interface, reachable};
use super::link::{FailedDials, Link};
use super::listener::Acceptor;
use super::options::{Failover, Options};
use super::reactor::{Control, Reactor};
use super::socket::{self, random};
use super::sockets::{BOTH, Entry, Sockets};
use super::targets::Target;
use super::wire::{Rest, Wire, encoded};
use crate::error::{Error, Result};

/// How long an address is tried before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(250);
/// How long an address may take to answer.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// The longest pause before an address that has failed is retried.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long the acceptor waits for the connector before it dials.
const ACCEPTOR_WAITS: Duration = Duration::from_millis(100);
/// How long to wait after a break if the connection was resumed just before.
const AGAIN: Duration = Duration::from_secs(1);

/// By what a connection of this process is found: the token of its HELLO, and this end's role. Both
/// ends may be in one process.
pub(super) type RedialId = (Nonce, Role);

/// How one connection is dialled again.
#[derive(Debug, Clone)]
pub(super) struct RedialTerms {
    id: RedialId,
    /// How long the peer's host may be silent.
    silence: Duration,
    /// The secret of both ends, which is never sent. Known after WELCOME.
    key: Option<Secret>,
    /// Where the peer is reached; `None` until it is known, and if the peer has no failover.
    peer: Option<Callback>,
}

impl RedialTerms {
    /// Makes the terms of the end with `role` of the connection with this token, whose handshake begins.
    pub(super) fn new(role: Role, token: Nonce, silence: Duration) -> Self {
        Self { id: (token, role), silence, key: None, peer: None }
    }

    pub(super) fn set_key(&mut self, key: Nonce) {
        self.key = Some(key.into());
    }

    /// Sets where the peer is reached. Returns whether that was known.
    pub(super) fn set_peer(&mut self, callback: Callback) -> bool {
        self.peer.replace(callback).is_some()
    }

    /// Returns whether both ends accept re-dials.
    pub(super) fn is_agreed(&self) -> bool {
        self.peer.is_some() && self.key.is_some()
    }

    pub(super) fn id(&self) -> RedialId {
        self.id
    }

    pub(super) fn key(&self) -> Option<Secret> {
        self.key.clone()
    }

    /// Returns the peer's addresses, and what a dial sends there first.
    fn dial(&self) -> Option<(Vec<SocketAddr>, Opening)> {
        let (Self { peer: Some(peer), key: Some(key), .. }, (token, role)) = (self, self.id) else {
            return None;
        };
        // The kernel always has random bytes, and a REDIAL has a fixed length.
        let redial = Redial::new(key, peer.id, token, role, random().ok()?);
        let frame = encoded(&Message::Redial(redial)).ok()?;
        let transcript = Transcript::new(key, &frame);
        let addrs = peer.addrs.iter().map(|addr| SocketAddr::new(addr.ip(), peer.port)).collect();
        Some((addrs, Opening { bytes: frame.into(), transcript }))
    }

    /// Returns whether these bytes show that the connection has ended in the peer's process.
    fn is_end(&self, proof: &Tag) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.ended == ended_commitment(proof))
    }
}

/// Where the connections of this process are dialled again.
#[derive(Debug, Clone)]
pub(super) struct Here {
    /// The listener's. It stays in this process.
    secret: Arc<Secret>,
    port: u16,
    addrs: Vec<Addr>,
}

impl Here {
    /// Returns the message by which the peer of a connection learns that.
    pub(super) fn callback(&self, token: &Nonce, role: Role) -> Message {
        let ended = ended_commitment(&ended_proof(&self.secret, token, role));
        let (id, port, addrs) = (*self.secret.id(), self.port, self.addrs.clone());
        Message::Callback(Callback { id, port, addrs, ended })
    }
}

/// The listener for re-dials, which a process opens with the first connection that needs it and
/// closes with the last.
///
/// Channels and listeners hold it, and sockets never do: its drop locks the table of the sockets.
#[derive(Debug)]
pub(super) struct RedialListener {
    reactor: Arc<Reactor>,
    token: Token,
    secret: Arc<Secret>,
    port: u16,
}

/// The listener of a process.
#[derive(Debug, Default)]
pub(super) struct SharedListener(Mutex<Weak<RedialListener>>);

impl SharedListener {
    /// Returns the listener, and where peers reach it.
    pub(super) fn get(
        &self,
        control: &Control,
        interfaces: &[Interface],
        failover: &Failover,
    ) -> Result<(Arc<RedialListener>, Here)> {
        let mut shared = self.0.lock();
        let listener = match shared.upgrade() {
            Some(listener) if listener.reactor.alive().is_ok() => listener,
            _ => {
                let new = Arc::new(RedialListener::open(control.reactor()?, failover)?);
                *shared = Arc::downgrade(&new);
                new
            }
        };
        drop(shared);
        let mut addrs = reachable(interfaces, &Options::of_redials(failover))?;
        addrs.truncate(MAX_CALLBACK_ADDRS);
        let here = Here { secret: Arc::clone(&listener.secret), port: listener.port, addrs };
        Ok((listener, here))
    }
}

impl RedialListener {
    fn open(reactor: Arc<Reactor>, failover: &Failover) -> Result<Self> {
        let failed = |e| Error::io("listening for control connections that are dialled again", e);
        let socket = socket::listen(failover.family).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        let secret = Arc::new(Secret::from(random()?));
        let acceptor = Acceptor::of_redials(socket, Arc::clone(&secret));
        let token = reactor.with(|sockets| acceptor.listen(sockets))?.map_err(failed)?;
        Ok(Self { token, reactor, secret, port })
    }
}

impl Drop for RedialListener {
    fn drop(&mut self) {
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.remove(self.token));
    }
}

/// An accepted TCP connection whose REDIAL was answered. A copy of a REDIAL comes this far: nothing
/// happens before RESUME, under both challenges.
#[derive(Debug)]
pub(super) struct Redialled {
    wire: Wire,
    channel: Token,
    /// The end that dials.
    from: Role,
    until: Instant,
}

impl Redialled {
    pub(super) fn new(wire: Wire, channel: Token, from: Role, until: Instant) -> Self {
        // If this end gives the TCP connection up, a FIN would look like the end of this process.
        socket::reset_on_close(&wire.stream);
        Self { wire, channel, from, until }
    }

    /// Continues to read. Returns the entry that replaces this one in the thread's table, if any.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        self.wire.write();
        let rest = self.wire.read();
        let next = self.wire.next();
        if matches!((&rest, &next), (Rest::Nothing, Ok(None))) && Instant::now() < self.until {
            return Some(Entry::Redialled(self));
        }
        sockets.half_open.remove(me);
        // A peer that has reset the TCP connection meanwhile has given it up.
        if matches!(rest, Rest::Broken(_)) || !matches!(next, Ok(Some(Message::Resume))) {
            let from = self.wire.peer().map_or("a peer".into(), |peer| peer.to_string());
            tracing::debug!(target: "net", "dropped a re-dialled control connection from {from}: its RESUME did not come");
            return None;
        }
        sockets.replace(self.channel, self.from, self.wire);
        None
    }
}

/// A connection whose TCP connection broke.
#[derive(Debug)]
pub(super) struct Redialer {
    link: Arc<Link>,
    terms: RedialTerms,
    dialer: Dialer,
}

impl Redialer {
    /// Begins to dial. `me` is the token of the channel.
    pub(super) fn start(link: Arc<Link>, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let terms = link.redial_terms()?;
        let (mut addrs, opening) = terms.dial()?;
        if let Some(broke) = link.broken() {
            tracing::info!(target: "net", "the control connection to {} is dialled again: {broke}", link.describe());
        }
        // The address over which the ends were connected is first.
        let last = link.peer().map(|last| last.ip());
        addrs.sort_by_key(|addr| Some(addr.ip()) != last);
        let pause = match terms.id.1 {
            _ if link.just_resumed() => AGAIN,
            Role::Connector => Duration::ZERO,
            Role::Acceptor => ACCEPTOR_WAITS,
        };
        let from = Instant::now() + pause;
        let target = |(n, addr)| Target { addr, next_at: from + STAGGER * n };
        let targets = (0..).zip(addrs).map(target).collect();
        let dialer = Dialer::new(targets, from, opening, terms.silence, (PAUSE_MAX, Some(ATTEMPT_MAX)));
        Self { link, terms, dialer }.on_timer(me, sockets)
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Starts the attempts that are due, and ends those that have had no answer.
    pub(super) fn on_timer(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        self.dialer.advance(me, None, sockets);
        let failures = self.dialer.failures().join("; ");
        let is_refused = self.link.peer().is_some_and(|last| self.dialer.is_refused(last.ip()));
        self.link.set_failed_dials(FailedDials { failures, is_refused });
        Some(Entry::Redialer(self))
    }

    /// Handles the result of one attempt.
    pub(super) fn on_result(
        mut self,
        me: Token,
        addr: SocketAddr,
        result: Outcome,
        sockets: &mut Sockets,
    ) -> Option<Entry> {
        match result {
            Outcome::Welcome(stream, rest, session) => {
                let mut wire = Wire::new(stream, session.keys_of(self.terms.id.1, None), rest);
                // Has no fields: it always encodes.
                wire.append(encoded(&Message::Resume).ok()?);
                self.dialer.end_attempts(sockets);
                return sockets.attach(me, self.link, wire);
            }
            Outcome::Ended(proof) if self.terms.is_end(&proof) => {
                self.link.fail(format!("{addr}: its process has closed the connection"));
                sockets.ended(me, &self.link);
                self.close(sockets);
                return None;
            }
            // Perhaps the peer can be reached there later.
            missed => self.dialer.missed(addr, missed, None),
        }
        self.on_timer(me, sockets)
    }

    /// Ends the attempts in progress.
    pub(super) fn close(mut self, sockets: &mut Sockets) {
        self.dialer.end_attempts(sockets);
    }
}

/// The part of the table that replaces TCP connections.
impl Sockets {
    /// Replaces the TCP connection of a channel by one that the peer, the end `from`, has dialled. If both
    /// ends have dialled, the connector's TCP connection counts.
    fn replace(&mut self, channel: Token, from: Role, wire: Wire) {
        let entry = match self.take(channel) {
            Some(Entry::Link(link)) if from == Role::Connector || !link.just_resumed() => {
                self.attach(channel, link, wire)
            }
            Some(Entry::Redialer(redialer)) => {
                let link = Arc::clone(redialer.link());
                redialer.close(self);
                self.attach(channel, link, wire)
            }
            other => other,
        };
        self.put_back(channel, entry);
    }

    /// Replaces the TCP connection of a channel. Returns the channel's entry.
    fn attach(&mut self, channel: Token, link: Arc<Link>, mut wire: Wire) -> Option<Entry> {
        socket::close_in_order(&wire.stream);
        if let Some(terms) = link.redial_terms() {
            // A socket that has ended refuses options, and the next read finds that.
            let _ = socket::tune(&wire.stream, terms.silence);
        }
        // A socket that is registered nowhere gives an error and needs nothing.
        let _ = link.with_wire(|old| self.established.deregister(&mut *old.stream));
        let _ = self.handshakes.registry().deregister(&mut *wire.stream);
        if let Err(e) = self.established.register(&mut *wire.stream, channel, BOTH) {
            link.fail(format!("epoll_ctl failed: {e}"));
            return self.step_link(channel, link);
        }
        let broke = link.attach(wire);
        let peer = link.describe();
        let how = broke.map_or("is replaced by the peer, which found it broken".into(), |broke| {
            format!("works again, after {} ms", broke.since.elapsed().as_millis())
        });
        tracing::info!(target: "net", "the control connection to {peer} {how}");
        self.step_link(channel, link)
    }
}
