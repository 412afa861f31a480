//! Replacing the TCP connection of a channel that broke.
//!
//! The connector dials the acceptor's listener for re-dials and sends REDIAL. After WELCOME it sends
//! RESUME, and both ends go on with the new TCP connection. The acceptor waits for that, and dials
//! the connector's listener meanwhile, which makes the connector dial: a break may show at one end
//! only.
//!
//! A process that has ended resets its connections if it has not read all bytes. Its host then
//! refuses connections to its listener for re-dials, which is how the death becomes known. Only the
//! address over which the connection was established counts: another may lead to another host.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;

use super::attempt::{Attempt, Opening, Outcome};
use super::link::Link;
use super::redial_terms::{RedialTerms, random};
use super::socket::Stream;
use super::sockets::{Entry, Sockets};
use crate::proto::{Keys, Message, Role, Session, Transcript};

/// How long an address is tried before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(250);
/// How long an address may take to answer.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// How long to wait before an address that has failed is retried. Doubles with each failure ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often in a row the peer's address must refuse a connection until the peer counts as dead.
const REFUSALS: u32 = 3;
/// How long the acceptor waits for the connector before it dials.
const ACCEPTOR_WAITS: Duration = Duration::from_millis(100);
/// How long to wait after a break if the connection was resumed just before, and after the connector
/// was reached.
const AGAIN: Duration = Duration::from_secs(1);

/// A channel whose TCP connection broke.
#[derive(Debug)]
pub(super) struct Redialer {
    link: Arc<Link>,
    terms: RedialTerms,
    opening: Opening,
    targets: Vec<Target>,
    /// The address whose refusals show that the peer's process has ended.
    established: Option<SocketAddr>,
    /// The earliest timer that is set.
    wake: Option<Instant>,
}

/// An address of the peer.
#[derive(Debug)]
struct Target {
    addr: SocketAddr,
    /// The attempt in progress, and since when.
    attempt: Option<(Token, Instant)>,
    next_at: Instant,
    failures: u32,
    /// How many of the last failures were refused connections.
    refusals: u32,
}

impl Redialer {
    /// Begins to dial. `me` is the token of the channel.
    pub(super) fn start(link: Arc<Link>, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let terms = link.redial_terms()?;
        // The kernel always has random bytes, and a REDIAL has a fixed length.
        let (peer, redial) = terms.dial(random().ok()?)?;
        let frame = redial.encode().ok()?;
        let transcript = Transcript::new(&terms.key()?, &frame);
        let opening = Opening { bytes: frame.into(), transcript };
        if let Some((_, why)) = link.broken() {
            tracing::info!(target: "net", "the control connection to {} is dialled again: {why}", link.describe());
        }
        let mut addrs: Vec<_> = peer.addrs.iter().map(|a| SocketAddr::new(a.ip(), peer.port)).collect();
        let last = link.peer().map(|last| SocketAddr::new(last.ip(), peer.port));
        let established = last.filter(|last| addrs.contains(last));
        addrs.sort_by_key(|addr| Some(*addr) != established);
        let pause = match terms.role {
            _ if link.just_resumed() => AGAIN,
            Role::Connector => Duration::ZERO,
            Role::Acceptor => ACCEPTOR_WAITS,
        };
        let from = Instant::now() + pause;
        let target =
            |(n, addr)| Target { addr, attempt: None, next_at: from + STAGGER * n, failures: 0, refusals: 0 };
        let targets = (0..).zip(addrs).map(target).collect();
        Self { link, terms, opening, targets, established, wake: None }.on_timer(me, sockets)
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Starts the attempts that are due, and ends those that have had no answer.
    pub(super) fn on_timer(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let now = Instant::now();
        for i in 0..self.targets.len() {
            let target = &mut self.targets[i];
            if let Some((attempt, _)) = target.attempt.take_if(|(_, since)| *since + ATTEMPT_MAX <= now) {
                sockets.remove(attempt);
                target.failed(false);
            }
            if target.attempt.is_none() && target.next_at <= now {
                match Attempt::start(me, target.addr, &self.opening, self.terms.silence, sockets) {
                    Ok(attempt) => target.attempt = Some((attempt, now)),
                    Err(e) => {
                        let addr = target.addr;
                        if self.failed_at(addr, &e) {
                            return self.end_as_dead(me, sockets);
                        }
                    }
                }
            }
        }
        let due = |t: &Target| t.attempt.map_or(t.next_at, |(_, since)| since + ATTEMPT_MAX);
        if let Some(soonest) = self.targets.iter().map(due).min()
            && self.wake.is_none_or(|at| at <= now || soonest < at)
        {
            self.wake = Some(soonest);
            sockets.wake_at(soonest, me);
        }
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
        if let Some(target) = self.targets.iter_mut().find(|t| t.addr == addr) {
            target.attempt = None;
        }
        match result {
            Outcome::Welcome(stream, rest, session) => match self.terms.role {
                Role::Connector => return self.resume(me, stream, (rest, &session), sockets),
                // The connector dials when it has read this. The connection has no other use.
                Role::Acceptor => {
                    let (resume, _) = sealed_resume(&session, Role::Acceptor)?;
                    // The socket has room for it. If it is lost, this end dials again.
                    let _ = (&*stream).write_all(&resume);
                    self.retry_at(Instant::now() + AGAIN, sockets);
                }
            },
            Outcome::Ended(proof) if self.terms.is_end(&proof) => {
                return self.end(me, format!("{addr}: its process has closed the connection"), sockets);
            }
            // Somebody who has proved nothing: perhaps the peer can be reached there later.
            Outcome::Refused(_) | Outcome::Ended(_) | Outcome::Unanswered(_) => {
                self.targets.iter_mut().filter(|t| t.addr == addr).for_each(|t| t.failed(false))
            }
            Outcome::Failed(e) => {
                if self.failed_at(addr, &e) {
                    return self.end_as_dead(me, sockets);
                }
            }
        }
        self.on_timer(me, sockets)
    }

    fn resume(
        mut self,
        me: Token,
        stream: Stream,
        (rest, session): (Vec<u8>, &Session),
        sockets: &mut Sockets,
    ) -> Option<Entry> {
        self.end_attempts(sockets);
        let (resume, keys) = sealed_resume(session, Role::Connector)?;
        sockets.resume(me, self.link, (stream, rest), keys, &resume)
    }

    /// Dials again at once: the peer has found that the connection is broken.
    pub(super) fn hurry(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let now = Instant::now();
        self.targets.iter_mut().for_each(|t| t.next_at = t.next_at.min(now));
        self.on_timer(me, sockets)
    }

    /// Ends the attempts in progress. Each address is retried after `at`.
    fn retry_at(&mut self, at: Instant, sockets: &mut Sockets) {
        self.end_attempts(sockets);
        let times = (0..).map(|n| at + STAGGER * n);
        self.targets
            .iter_mut()
            .zip(times)
            .for_each(|(t, at)| (t.next_at, t.failures, t.refusals) = (at, 0, 0));
    }

    /// Records a failure. Returns whether the peer's process has ended.
    fn failed_at(&mut self, addr: SocketAddr, e: &io::Error) -> bool {
        let refused = e.kind() == ErrorKind::ConnectionRefused;
        let Some(target) = self.targets.iter_mut().find(|t| t.addr == addr) else { return false };
        target.failed(refused);
        target.refusals >= REFUSALS && self.established == Some(addr)
    }

    fn end_as_dead(self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let why = self.link.broken().map_or(String::new(), |(_, why)| why);
        let text = format!("{why}; its host refuses connections to the process: did its process end?");
        self.end(me, text, sockets)
    }

    fn end(self, me: Token, why: String, sockets: &mut Sockets) -> Option<Entry> {
        self.link.fail(why);
        sockets.ended(me, &self.link);
        self.close(sockets);
        None
    }

    /// Ends the attempts in progress.
    pub(super) fn close(mut self, sockets: &mut Sockets) {
        self.end_attempts(sockets);
    }

    fn end_attempts(&mut self, sockets: &mut Sockets) {
        let attempts = self.targets.iter_mut().filter_map(|t| t.attempt.take());
        attempts.for_each(|(attempt, _)| sockets.remove(attempt));
    }
}

/// Returns the RESUME of an end, and its keys for what follows.
fn sealed_resume(session: &Session, role: Role) -> Option<(Vec<u8>, Keys)> {
    let mut keys = session.keys_of(role, None);
    // Has no fields: it always encodes.
    let mut resume = Message::Resume.encode().ok()?;
    keys.seal(&mut resume);
    Some((resume, keys))
}

impl Target {
    fn failed(&mut self, refused: bool) {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX);
        self.next_at = Instant::now() + pause;
        self.failures += 1;
        self.refusals = if refused { self.refusals + 1 } else { 0 };
    }
}
