//! Connecting: several addresses are tried, one is used.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;

use super::attempt::{Attempt, Opening, Outcome};
use super::end::ChannelState;
use super::link::{Link, PROOF_WAITS};
use super::sockets::{Entry, Sockets};
use super::targets::KnownAddresses;
use super::targets::{Target, Targets};
use crate::proto::{Addr, Role};

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
    opening: Opening,
    timeout: Duration,
    silence: Duration,
    until: Instant,
    known: Arc<KnownAddresses>,
    /// The handle's addresses, by which the host is known.
    host: Box<[Addr]>,
    /// Addresses that lead to this host, which is not the listener's.
    skipped: Vec<SocketAddr>,
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
        host: &[Addr],
        Targets { targets, skipped }: Targets,
        opening: Opening,
        (timeout, silence): (Duration, Duration),
        known: Arc<KnownAddresses>,
    ) -> Self {
        Self {
            link,
            addrs: targets.len(),
            targets,
            attempts: Vec::new(),
            failures: Vec::new(),
            refused_since: None,
            logged: false,
            wake: None,
            opening,
            timeout,
            silence,
            until: Instant::now() + timeout,
            known,
            host: host.into(),
            skipped,
        }
    }

    /// Starts the attempts that are due. Returns `None` when the channel has failed.
    pub(super) fn on_timer(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let now = Instant::now();
        if self.addrs == 0 {
            let advice = ". Name a network that both hosts are in by MPIB_OOB_IF or NCCL_SOCKET_IFNAME";
            return self.give_up("it is on another host", advice, sockets);
        }
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
            match Attempt::start(me, target.addr, &self.opening, self.silence, sockets) {
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
        let skipped = self.skipped.iter();
        tried.extend(skipped.map(|addr| format!("{addr}: not tried, since it leads to this host")));
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
                    return self.end(format!("{addr}: {e}"), sockets);
                }
                let link = Arc::clone(&self.link);
                self.known.add(&self.host, addr.ip());
                self.close(sockets);
                if let Err(e) = link.secure(&session, Role::Connector, None) {
                    link.fail(e.to_string());
                    return None;
                }
                link.establish(stream, addr, rest);
                sockets.wake_at(Instant::now() + PROOF_WAITS, me);
                Some(Entry::Link(link))
            }
            Outcome::Refused(reason) => {
                let text = format!("it refuses the connection and has not proved who it is: {reason}");
                self.failed_at(addr, &io::Error::other(text));
                self.on_timer(me, sockets)
            }
            Outcome::Ended(_) => {
                self.failed_at(
                    addr,
                    &io::Error::other("answers, but not as an MPIB listener: it sent ENDED"),
                );
                self.on_timer(me, sockets)
            }
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
