//! Connecting: several addresses are tried, one is used.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mpib_proto::{Addr, HEADER_BYTES, Message, Peeked, Role, Session, Tag, Transcript, same_tag};

use super::channel::ChannelState;
use super::link::{Link, PROOF_WAITS};
use super::socket::{self, Stream, read_some, write_some};
use super::sockets::{Entry, Sockets};
use super::targets::{KnownAddresses, Target, Targets};
use super::wire::Wire;

/// How long to wait before an address that has failed once is retried. Doubles with each failure.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest such wait of a connector: a fault of the network may pass, such as a flood of
/// connections at a job's start.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a connector waits before an address that connected and closed without an answer is
/// retried.
const AGAIN: Duration = Duration::from_millis(200);
/// How long addresses are retried if every one refuses connections: the listener is closed then.
const REFUSED_MAX: Duration = Duration::from_secs(3);

/// Begins what is said of an address that answers otherwise than a listener does.
const NO_LISTENER: &str = "answers, but not as an MPIB listener: ";

/// What an attempt sends first.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    /// The first frame, and others behind it.
    pub(super) bytes: Arc<[u8]>,
    /// From which the session is derived once the listener has answered.
    pub(super) transcript: Transcript,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The listener has proved itself. The bytes after its answer.
    Welcome(Stream, Vec<u8>, Box<Session>),
    /// The reason of somebody who has proved nothing: the listener, or another process that has
    /// this address.
    Refused(String),
    /// Bytes by which the listener may show that the connection has ended in its process.
    Ended(Tag),
    /// The address connected and closed: a busy listener may do that, or another host.
    Unanswered(io::Error),
    /// The address did not connect.
    Failed(io::Error),
}

/// One address being tried: a TCP connection, the first frame, and the listener's answer.
#[derive(Debug)]
pub(super) struct Attempt {
    owner: Token,
    stream: Stream,
    addr: SocketAddr,
    connected: bool,
    opening: Opening,
    sent: usize,
    read: Vec<u8>,
}

impl Attempt {
    /// Begins to connect, for the entry `owner`.
    fn start(
        owner: Token,
        addr: SocketAddr,
        opening: &Opening,
        silence: Duration,
        sockets: &mut Sockets,
    ) -> io::Result<Token> {
        let mut stream = socket::connect(addr)?;
        socket::tune(&stream, silence)?;
        let me = sockets.next_token();
        sockets.register(&mut *stream, me)?;
        let (opening, read) = (opening.clone(), Vec::new());
        let attempt = Self { owner, stream, addr, connected: false, opening, sent: 0, read };
        sockets.insert(me, Entry::Attempt(attempt));
        Ok(me)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Continues the attempt. Passes the result to its owner when there is one.
    pub(super) fn on_ready(mut self, sockets: &mut Sockets) -> Option<Entry> {
        let stranger = |what: &str| Outcome::Unanswered(io::Error::other(format!("{NO_LISTENER}{what}")));
        let outcome = match self.advance() {
            Ok(None) => return Some(Entry::Attempt(self)),
            Ok(Some((Message::Welcome { challenge, proof }, end))) => {
                let session = self.opening.transcript.session(&challenge);
                match same_tag(&proof, &session.proof) {
                    true => Outcome::Welcome(self.stream, self.read.split_off(end), Box::new(session)),
                    false => stranger("its proof is wrong, so it is another process"),
                }
            }
            Ok(Some((Message::Refuse { reason }, _))) => Outcome::Refused(reason),
            Ok(Some((Message::Ended { proof }, _))) => Outcome::Ended(proof),
            Ok(Some((other, _))) => stranger(&format!("it sent {}", other.name())),
            Err(e) if self.connected => Outcome::Unanswered(e),
            Err(e) => Outcome::Failed(e),
        };
        sockets.attempt_ended(self.owner, self.addr, outcome);
        None
    }

    /// Returns the listener's first message, and where it ends in the bytes that were read.
    fn advance(&mut self) -> io::Result<Option<(Message, usize)>> {
        if !self.connected {
            if let Some(e) = self.stream.take_error()? {
                return Err(e);
            }
            match self.stream.peer_addr() {
                Ok(_) => self.connected = true,
                Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        self.sent += write_some(&mut self.stream, &self.opening.bytes[self.sent..])?;
        let stranger = |e: &dyn Display| io::Error::other(format!("{NO_LISTENER}{e}"));
        let closed = |e: io::Error| match e.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "connected, then closed without an answer"),
            _ => e,
        };
        while read_some(&mut self.stream, &mut self.read).map_err(closed)? {
            if let Peeked::Whole { len } = Peeked::at(&self.read).map_err(|e| stranger(&e))? {
                let end = HEADER_BYTES + len;
                let message = Message::decode(&self.read[HEADER_BYTES..end]).map_err(|e| stranger(&e))?;
                return Ok(Some((message, end)));
            }
        }
        Ok(None)
    }
}

/// The addresses of a peer, which are dialled until one of them answers.
#[derive(Debug)]
pub(super) struct Dialer {
    addresses: Vec<Address>,
    opening: Opening,
    /// How long the peer's host may be silent.
    silence: Duration,
    /// The longest pause after a failure.
    pause_max: Duration,
    /// How long an attempt may take; `None`: as long as its owner waits.
    attempt_max: Option<Duration>,
    /// The earliest timer that is set.
    wake: Option<Instant>,
}

/// An address of a peer.
#[derive(Debug)]
struct Address {
    addr: SocketAddr,
    /// The attempt in progress, and since when.
    attempt: Option<(Token, Instant)>,
    /// No attempt begins before this ...
    from: Instant,
    /// ... and while others are in progress, not before this.
    next_at: Instant,
    failures: u32,
    failure: Option<Failure>,
}

/// The latest failure of an address.
#[derive(Debug)]
struct Failure {
    why: String,
    /// Whether it was a refused connection.
    refused: bool,
}

impl Dialer {
    /// Makes the one of `targets`, and dials nothing before `from`.
    pub(super) fn new(
        targets: Vec<Target>,
        from: Instant,
        opening: Opening,
        silence: Duration,
        (pause_max, attempt_max): (Duration, Option<Duration>),
    ) -> Self {
        let address = |Target { addr, next_at }| {
            let (attempt, failures, failure) = (None, 0, None);
            Address { addr, attempt, from, next_at, failures, failure }
        };
        let mut addresses: Vec<_> = targets.into_iter().map(address).collect();
        // Results are found by address. A peer may name one twice.
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(address.addr));
        Self { addresses, opening, silence, pause_max, attempt_max, wake: None }
    }

    /// Starts the attempts that are due: at least one unless all addresses wait for their retry. Ends
    /// those that have had no answer. Wakes `me` when the next one is due, or at `until`.
    pub(super) fn advance(&mut self, me: Token, until: Option<Instant>, sockets: &mut Sockets) {
        let now = Instant::now();
        for i in 0..self.addresses.len() {
            let late =
                |(_, since): &mut (Token, Instant)| self.attempt_max.is_some_and(|max| *since + max <= now);
            if let Some((attempt, _)) = self.addresses[i].attempt.take_if(late) {
                sockets.remove(attempt);
                self.failed(self.addresses[i].addr, "it did not answer".into(), false, None);
            }
        }
        while let Some(i) = self.due(now) {
            let addr = self.addresses[i].addr;
            match Attempt::start(me, addr, &self.opening, self.silence, sockets) {
                Ok(token) => self.addresses[i].attempt = Some((token, now)),
                Err(e) => self.failed_by(addr, &e),
            }
        }
        let idle = self.is_idle();
        let next = self.addresses.iter().filter_map(|a| match a.attempt {
            Some((_, since)) => self.attempt_max.map(|max| since + max),
            None if idle => Some(a.from),
            None => Some(a.from.max(a.next_at)),
        });
        let Some(soonest) = next.chain(until).min() else { return };
        if self.wake.is_none_or(|at| at <= now || soonest < at) {
            self.wake = Some(soonest);
            sockets.wake_at(soonest, me);
        }
    }

    fn is_idle(&self) -> bool {
        self.addresses.iter().all(|a| a.attempt.is_none())
    }

    fn due(&self, now: Instant) -> Option<usize> {
        let waiting = self.addresses.iter().enumerate().filter(|(_, a)| a.attempt.is_none() && a.from <= now);
        let (i, next) = waiting.min_by_key(|(_, a)| a.next_at)?;
        (self.is_idle() || next.next_at <= now).then_some(i)
    }

    /// Records the end of the attempt at an address. Its next one begins after `pause`, or after one
    /// that doubles with each failure.
    fn failed(&mut self, addr: SocketAddr, why: String, refused: bool, pause: Option<Duration>) {
        let Some(address) = self.addresses.iter_mut().find(|a| a.addr == addr) else { return };
        let doubled = PAUSE.saturating_mul(1 << address.failures.min(16)).min(self.pause_max);
        let from = Instant::now() + pause.unwrap_or(doubled);
        (address.attempt, address.from, address.next_at) = (None, from, from);
        address.failures += 1;
        address.failure = Some(Failure { why, refused });
    }

    fn failed_by(&mut self, addr: SocketAddr, e: &io::Error) {
        self.failed(addr, e.to_string(), e.kind() == ErrorKind::ConnectionRefused, None);
    }

    /// Records that an attempt has not led to the peer. `unanswered` is the pause after one that was
    /// not answered.
    pub(super) fn missed(&mut self, addr: SocketAddr, outcome: Outcome, unanswered: Option<Duration>) {
        match outcome {
            Outcome::Welcome(..) => {}
            Outcome::Refused(reason) => {
                let why = format!("it refuses the connection and has not proved who it is: {reason}");
                self.failed(addr, why, false, None);
            }
            Outcome::Ended(_) => self.failed(addr, format!("{NO_LISTENER}it sent ENDED"), false, None),
            Outcome::Unanswered(e) => self.failed(addr, e.to_string(), false, unanswered),
            Outcome::Failed(e) => self.failed_by(addr, &e),
        }
    }

    /// Returns whether the last attempt at each address has failed.
    fn have_all_failed(&self) -> bool {
        self.addresses.iter().all(|a| a.failure.is_some())
    }

    /// Returns whether the last attempt at each address has failed, and that at `ip` was refused.
    pub(super) fn is_refused(&self, ip: IpAddr) -> bool {
        let refuses = |a: &Address| a.addr.ip() == ip && a.failure.as_ref().is_some_and(|f| f.refused);
        self.have_all_failed() && self.addresses.iter().any(refuses)
    }

    /// Lists the addresses that have failed, each with its latest error.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.addresses.iter().filter_map(|a| Some((a.addr, a.failure.as_ref()?)));
        failed.map(|(addr, failure)| format!("{addr}: {}", failure.why)).collect()
    }

    /// Ends the attempts in progress.
    pub(super) fn end_attempts(&mut self, sockets: &mut Sockets) {
        let attempts = self.addresses.iter_mut().filter_map(|a| a.attempt.take());
        attempts.for_each(|(attempt, _)| sockets.remove(attempt));
    }
}

/// The attempts to connect one channel.
#[derive(Debug)]
pub(super) struct Connector {
    link: Arc<Link>,
    dialer: Dialer,
    timeout: Duration,
    until: Instant,
    /// Since when all addresses refuse connections.
    refused_since: Option<Instant>,
    /// Whether the failure of all addresses was logged.
    logged: bool,
    known: Arc<KnownAddresses>,
    /// The handle's addresses, by which the host is known.
    host: Box<[Addr]>,
    /// Addresses that lead to this host, which is not the listener's.
    skipped: Vec<SocketAddr>,
}

impl Connector {
    pub(super) fn new(
        link: Arc<Link>,
        host: &[Addr],
        Targets { targets, skipped }: Targets,
        opening: Opening,
        (timeout, silence): (Duration, Duration),
        known: Arc<KnownAddresses>,
    ) -> Self {
        let now = Instant::now();
        Self {
            link,
            dialer: Dialer::new(targets, now, opening, silence, (PAUSE_MAX, None)),
            timeout,
            until: now + timeout,
            refused_since: None,
            logged: false,
            known,
            host: host.into(),
            skipped,
        }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Starts the attempts that are due. Returns `None` when the channel has failed.
    pub(super) fn on_timer(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let now = Instant::now();
        if self.dialer.addresses.is_empty() {
            let advice = "Name a network that both hosts are in by MPIB_OOB_IF or NCCL_SOCKET_IFNAME";
            return self.give_up(me, "it is on another host", advice, sockets);
        }
        let refuses = |a: &Address| a.failure.as_ref().is_some_and(|failure| failure.refused);
        let refused = self.dialer.addresses.iter().all(refuses);
        self.refused_since = refused.then(|| self.refused_since.unwrap_or(now));
        let refused_until =
            self.refused_since.map_or(self.until, |since| self.until.min(since + REFUSED_MAX));
        if refused && now >= refused_until {
            let advice = "Each refuses connections: has the peer's process ended?";
            return self.give_up(me, "none of its addresses answers", advice, sockets);
        }
        if now >= self.until {
            let why = format!("no answer within {} ms (MPIB_CONNECT_TIMEOUT_MS)", self.timeout.as_millis());
            let advice = "Does a firewall let TCP through to every port of that host?";
            return self.give_up(me, &why, advice, sockets);
        }
        let all_failed = self.dialer.have_all_failed();
        self.dialer.advance(me, Some(refused_until), sockets);
        if all_failed && !std::mem::replace(&mut self.logged, true) {
            tracing::info!(
                target: "net",
                "the peer's listener cannot be reached yet, its addresses are retried: {}",
                self.dialer.failures().join("; ")
            );
        }
        Some(Entry::Connector(self))
    }

    fn give_up(self, me: Token, why: &str, advice: &str, sockets: &mut Sockets) -> Option<Entry> {
        let describe = |a: &Address| match (&a.failure, &a.attempt) {
            (Some(failure), _) => format!("{}: {}", a.addr, failure.why),
            (None, Some((attempt, _))) => format!("{}: {}", a.addr, sockets.attempt_state(*attempt)),
            (None, None) => format!("{}: not tried", a.addr),
        };
        let mut tried: Vec<String> = self.dialer.addresses.iter().map(describe).collect();
        let skipped = self.skipped.iter();
        tried.extend(skipped.map(|addr| format!("{addr}: not tried, since it leads to this host")));
        let tried = tried.join("; ");
        self.end(
            me,
            format!("cannot connect to the peer's listener: {why}; tried {tried}. {advice}"),
            sockets,
        )
    }

    fn end(self, me: Token, why: String, sockets: &mut Sockets) -> Option<Entry> {
        self.link.fail(why);
        sockets.ended(me, &self.link);
        self.close(sockets);
        None
    }

    /// Closes the attempts in progress.
    pub(super) fn close(mut self, sockets: &mut Sockets) {
        self.dialer.end_attempts(sockets);
    }

    /// Handles the result of one attempt.
    pub(super) fn on_result(
        mut self,
        me: Token,
        addr: SocketAddr,
        result: Outcome,
        sockets: &mut Sockets,
    ) -> Option<Entry> {
        let answered = matches!(result, Outcome::Welcome(..) | Outcome::Refused(_));
        if answered && self.link.state() != ChannelState::Open {
            // The listener knows this end's version, and no channel waits.
            self.close(sockets);
            return None;
        }
        match result {
            Outcome::Welcome(mut stream, rest, session) => {
                // The channel's own token from here on. A new registration reports what waits to be
                // read.
                if let Err(e) = sockets.reregister(&mut *stream, me) {
                    return self.end(me, format!("{addr}: {e}"), sockets);
                }
                self.known.add(&self.host, addr.ip());
                let wire = Wire::new(stream, session.keys_of(Role::Connector, None), rest);
                if let Err(e) = self.link.begin(wire, Role::Connector, addr, session.resume) {
                    return self.end(me, e.to_string(), sockets);
                }
                sockets.wake_at(Instant::now() + PROOF_WAITS, me);
                let link = Arc::clone(&self.link);
                self.close(sockets);
                Some(Entry::Link(link))
            }
            missed => {
                self.dialer.missed(addr, missed, Some(AGAIN));
                self.on_timer(me, sockets)
            }
        }
    }
}
