//! Connecting: several addresses are tried, one is used.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mio::net::TcpStream;

use super::interfaces::in_groups;
use super::known_addresses::KnownAddresses;
use super::link::Link;
use super::socket;
use super::sockets::{Entry, Sockets};
use crate::proto::{Addr, HEADER_BYTES, Handle, Message, Nonce, Peeked};

/// How long an address is tried before the next one of its group is tried as well.
const STAGGER: Duration = Duration::from_millis(15);
/// How long the last address of a group is tried before the next group is tried as well, and the
/// address that worked for this host before is tried alone.
const GROUP_STAGGER: Duration = Duration::from_millis(100);
/// How long to wait before an address that connected and closed without an answer is retried.
const AGAIN: Duration = Duration::from_millis(200);
/// How long to wait before an address that failed once is retried. Doubles with each failure ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... up to this: a fault of the network may pass, such as a flood of connections at a job's
/// start.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long addresses are retried if every one refuses connections: the listener is closed then.
const REFUSED_MAX: Duration = Duration::from_secs(3);

/// The attempts to connect one channel.
#[derive(Debug)]
pub(super) struct Connector {
    link: Arc<Link>,
    /// Addresses to be tried, or retried.
    targets: VecDeque<Target>,
    attempts: Vec<Token>,
    /// Number of addresses.
    addrs: usize,
    /// Addresses that have failed.
    failures: Vec<Failure>,
    /// Since when all refuse connections.
    refused_since: Option<Instant>,
    /// Whether the failure of all addresses was logged.
    logged: bool,
    /// The earliest timer that is set.
    wake: Option<Instant>,
    hello: Arc<[u8]>,
    token: Nonce,
    timeout: Duration,
    silence: Duration,
    until: Instant,
    known: Arc<KnownAddresses>,
    /// The handle's addresses, by which the host is known.
    host: Box<[Addr]>,
}

/// An address to be tried.
#[derive(Debug, Clone, Copy)]
struct Target {
    addr: SocketAddr,
    /// Not before this.
    from: Instant,
    /// Not before this while others are in progress.
    next_at: Instant,
}

/// An address that has failed.
#[derive(Debug)]
struct Failure {
    addr: SocketAddr,
    /// The latest error.
    why: String,
    /// Whether that was a refused connection.
    refused: bool,
    times: u32,
}

impl Connector {
    pub(super) fn new(
        link: Arc<Link>,
        handle: &Handle,
        local: impl Iterator<Item = Addr> + Clone,
        (hello, token): (Vec<u8>, Nonce),
        (timeout, silence): (Duration, Duration),
        known: Arc<KnownAddresses>,
    ) -> Self {
        let now = Instant::now();
        let host: Box<[Addr]> = handle.addrs().into();
        let worked = known.of(&host).map(|ip| SocketAddr::new(ip, handle.port()));
        let mut next_at = now;
        let mut targets = VecDeque::new();
        let mut push = |addr, pause| {
            targets.push_back(Target { addr, from: now, next_at });
            next_at += pause;
        };
        worked.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
        for mut group in in_groups(handle, local) {
            group.retain(|addr| Some(*addr) != worked);
            let last = group.pop();
            group.into_iter().for_each(|addr| push(addr, STAGGER));
            last.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
        }
        Self {
            link,
            addrs: targets.len(),
            targets,
            attempts: Vec::new(),
            failures: Vec::new(),
            refused_since: None,
            logged: false,
            wake: None,
            hello: hello.into(),
            token,
            timeout,
            silence,
            until: now + timeout,
            known,
            host,
        }
    }

    /// Starts the attempts that are due. Returns `None` when the channel has failed.
    pub(super) fn on_timer(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let now = Instant::now();
        let all = self.failures.len() == self.addrs;
        let refused = all && self.failures.iter().all(|f| f.refused);
        self.refused_since = refused.then(|| self.refused_since.unwrap_or(now));
        let refused_until =
            self.refused_since.map_or(self.until, |since| self.until.min(since + REFUSED_MAX));
        if refused && now >= refused_until {
            let advice = ". Each refuses connections: has the peer's process ended?";
            return self.give_up("none of its addresses answers", advice, sockets);
        }
        if now >= self.until {
            let text = format!("no answer within {} ms (MPIB_CONNECT_TIMEOUT_MS)", self.timeout.as_millis());
            return self.give_up(
                &text,
                ". Does a firewall let TCP through to every port of that host?",
                sockets,
            );
        }
        while self.start_due(me, now, sockets) {}
        if all && !std::mem::replace(&mut self.logged, true) {
            tracing::info!(target: "net", "the peer's listener cannot be reached yet, its addresses are retried: {}", self.failed());
        }
        // If no attempt is in progress, an address is not waited for.
        let due = |t: &Target| if self.attempts.is_empty() { t.from } else { t.from.max(t.next_at) };
        let soonest = self.targets.iter().map(due).min().map_or(refused_until, |t| t.min(refused_until));
        if self.wake.is_none_or(|at| at <= now || soonest < at) {
            self.wake = Some(soonest);
            sockets.wake_at(soonest, me);
        }
        Some(Entry::Connector(self))
    }

    /// Tries all addresses that are due, or the next one if no attempt is in progress. Returns
    /// `false` if there was nothing to try.
    fn start_due(&mut self, me: Token, now: Instant, sockets: &mut Sockets) -> bool {
        let ready = || self.targets.iter().filter(|t| t.from <= now);
        let next = ready().map(|t| t.next_at).min().filter(|_| self.attempts.is_empty());
        let next_at = next.map_or(now, |next| next.max(now));
        let (due, rest): (VecDeque<_>, _) =
            self.targets.iter().partition(|t| t.from <= now && t.next_at <= next_at);
        self.targets = rest;
        for target in &due {
            match Attempt::start(me, target.addr, (&self.hello, self.token), self.silence, sockets) {
                Ok(token) => self.attempts.push(token),
                Err(e) => self.failed_at(target.addr, &e),
            }
        }
        !due.is_empty()
    }

    /// Records a failure. Returns how often this address has failed.
    fn record_failure(&mut self, addr: SocketAddr, why: String, refused: bool) -> u32 {
        if let Some(failure) = self.failures.iter_mut().find(|f| f.addr == addr) {
            let times = failure.times.saturating_add(1);
            *failure = Failure { addr, why, refused, times };
            return times;
        }
        self.failures.push(Failure { addr, why, refused, times: 1 });
        1
    }

    /// Records a failure, and schedules a retry of the address.
    fn failed_at(&mut self, addr: SocketAddr, e: &io::Error) {
        let times = self.record_failure(addr, e.to_string(), e.kind() == ErrorKind::ConnectionRefused);
        let pause = PAUSE.saturating_mul(1 << (times - 1).min(16)).min(PAUSE_MAX);
        self.retry_after(addr, pause);
    }

    fn retry_after(&mut self, addr: SocketAddr, pause: Duration) {
        let from = Instant::now() + pause;
        self.targets.push_back(Target { addr, from, next_at: from });
    }

    /// Lists the addresses that have failed, each with its latest error.
    fn failed(&self) -> String {
        self.failures.iter().map(|f| format!("{}: {}", f.addr, f.why)).collect::<Vec<_>>().join("; ")
    }

    fn give_up(self, why: &str, advice: &str, sockets: &mut Sockets) -> Option<Entry> {
        let known = |addr: SocketAddr| self.failures.iter().any(|f| f.addr == addr);
        let mut tried = vec![self.failed()];
        // An address that has failed before is in the list with that error.
        let pending = self.attempts.iter().filter_map(|t| sockets.attempt_state(*t));
        tried.extend(pending.filter(|(addr, _)| !known(*addr)).map(|(_, state)| state));
        let left = self.targets.iter().filter(|t| !known(t.addr));
        tried.extend(left.map(|t| format!("{}: not tried", t.addr)));
        tried.retain(|text| !text.is_empty());
        self.end(
            format!("cannot connect to the peer's listener: {why}; tried {}{advice}", tried.join("; ")),
            sockets,
        )
    }

    fn end(self, why: String, sockets: &mut Sockets) -> Option<Entry> {
        self.link.fail(why);
        self.close(sockets);
        None
    }

    /// Closes the attempts in progress.
    pub(super) fn close(self, sockets: &mut Sockets) {
        for token in self.attempts {
            sockets.remove(token);
        }
    }

    /// Handles the result of one attempt.
    pub(super) fn on_result(
        mut self,
        me: Token,
        attempt: Token,
        addr: SocketAddr,
        result: Outcome,
        sockets: &mut Sockets,
    ) -> Option<Entry> {
        self.attempts.retain(|t| *t != attempt);
        match result {
            Outcome::Welcome(mut stream, rest) => {
                // The channel's own token from here on. A new registration reports what waits to be
                // read.
                if let Err(e) = sockets.reregister(&mut stream, me) {
                    return self.end(format!("{addr}: {e}"), sockets);
                }
                let link = Arc::clone(&self.link);
                self.known.add(&self.host, addr.ip());
                self.close(sockets);
                link.establish(stream, rest);
                Some(Entry::Link(link))
            }
            Outcome::Refused(reason) => self.end(format!("{addr} refuses the connection: {reason}"), sockets),
            Outcome::Unanswered(why) => {
                self.record_failure(addr, why, false);
                self.retry_after(addr, AGAIN);
                self.on_timer(me, sockets)
            }
            Outcome::Failed(e) => {
                self.failed_at(addr, &e);
                self.on_timer(me, sockets)
            }
        }
    }
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The listener's answer, and the bytes after it.
    Welcome(TcpStream, Vec<u8>),
    /// The listener's reason.
    Refused(String),
    /// The address connected and closed: a busy listener may do that, or another host.
    Unanswered(String),
    /// The address did not connect.
    Failed(io::Error),
}

/// One address being tried.
#[derive(Debug)]
pub(super) struct Attempt {
    connector: Token,
    stream: TcpStream,
    addr: SocketAddr,
    connected: bool,
    hello: Arc<[u8]>,
    sent: usize,
    read: Vec<u8>,
    token: Nonce,
}

impl Attempt {
    fn start(
        connector: Token,
        addr: SocketAddr,
        (hello, token): (&Arc<[u8]>, Nonce),
        silence: Duration,
        sockets: &mut Sockets,
    ) -> io::Result<Token> {
        let mut stream = TcpStream::connect(addr)?;
        socket::tune(&stream, silence)?;
        let me = sockets.next_token();
        sockets.register(&mut stream, me)?;
        let hello = Arc::clone(hello);
        sockets.insert(
            me,
            Entry::Attempt(Self {
                connector,
                stream,
                addr,
                connected: false,
                hello,
                sent: 0,
                read: Vec::new(),
                token,
            }),
        );
        Ok(me)
    }

    /// Describes the attempt for the error of a connector that gives up.
    pub(super) fn describe(&self) -> (SocketAddr, String) {
        let state = if self.connected { "connected, no answer" } else { "no connection yet" };
        (self.addr, format!("{}: {state}", self.addr))
    }

    /// Continues the attempt. Passes the result to the connector when there is one.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let result = match self.advance() {
            Ok(None) => return Some(Entry::Attempt(self)),
            Ok(Some(outcome)) => outcome.with(self.stream, &self.read),
            Err(e) if self.connected => Outcome::Unanswered(e.to_string()),
            Err(e) => Outcome::Failed(e),
        };
        sockets.attempt_ended(self.connector, me, self.addr, result);
        None
    }

    fn advance(&mut self) -> io::Result<Option<Answer>> {
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
        while self.sent < self.hello.len() {
            match self.stream.write(&self.hello[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "connected, then closed without an answer",
                    ));
                }
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
            let stranger = |e: String| io::Error::other(format!("answers, but not as an MPIB listener: {e}"));
            let len = match Peeked::at(&self.read).map_err(|e| stranger(e.to_string()))? {
                Peeked::Partial => continue,
                Peeked::Whole { len } => len,
            };
            let end = HEADER_BYTES + len;
            return match Message::decode(&self.read[HEADER_BYTES..end]) {
                Ok(Message::Welcome { token }) if token == self.token => Ok(Some(Answer::Welcome(end))),
                Ok(Message::Refuse { reason }) => Ok(Some(Answer::Refuse(reason))),
                Ok(other) => Err(stranger(format!("it sent {}", other.name()))),
                Err(e) => Err(stranger(e.to_string())),
            };
        }
    }
}

/// The listener's first frame, and where it ends.
enum Answer {
    Welcome(usize),
    Refuse(String),
}

impl Answer {
    fn with(self, stream: TcpStream, read: &[u8]) -> Outcome {
        match self {
            Self::Welcome(end) => Outcome::Welcome(stream, read[end..].to_vec()),
            Self::Refuse(reason) => Outcome::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses in the order in which they are tried, each with its time in milliseconds.
    fn order(handle: &Handle, known: &Arc<KnownAddresses>) -> Vec<(String, u128)> {
        let local =
            [Addr::new([10, 0, 0, 1].into(), 24).unwrap(), Addr::new([10, 0, 1, 1].into(), 24).unwrap()];
        let second = Duration::from_secs(1);
        let link = Arc::new(Link::pending());
        let hello = (Vec::new(), Nonce::default());
        let connector =
            Connector::new(link, handle, local.into_iter(), hello, (second, second), Arc::clone(known));
        let start = connector.targets[0].next_at;
        let target = |t: &Target| (t.addr.ip().to_string(), t.next_at.duration_since(start).as_millis());
        connector.targets.iter().map(target).collect()
    }

    //= reach.md: the address that worked for a host is tried first
    #[test]
    fn the_address_that_worked_comes_first_and_the_others_are_staggered() {
        let addr = |ip: [u8; 4]| Addr::new(ip.into(), 24).unwrap();
        let far = addr([172, 16, 0, 9]);
        let addrs = [far, addr([10, 0, 1, 9]), addr([127, 0, 0, 1]), addr([10, 0, 0, 9])];
        let (handle, known) = (Handle::new([0; 16], 7, &addrs).unwrap(), Arc::default());
        let at = |times: [(&str, u128); 4]| times.map(|(ip, ms)| (ip.to_owned(), ms)).to_vec();
        let first = [("10.0.1.9", 0), ("10.0.0.9", 15), ("172.16.0.9", 115), ("127.0.0.1", 215)];
        assert_eq!(order(&handle, &known), at(first));
        known.add(handle.addrs(), far.ip());
        let then = [("172.16.0.9", 0), ("10.0.1.9", 100), ("10.0.0.9", 115), ("127.0.0.1", 215)];
        assert_eq!(order(&handle, &known), at(then));
        // A host with other addresses is another one.
        let other = Handle::new([0; 16], 7, &addrs[..3]).unwrap();
        assert_eq!(order(&other, &known)[0].0, "10.0.1.9");
    }
}
