//! Bounds on what strangers and peers may hold of this process: half-open connections, and handshakes
//! that are under way.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::Token;

use crate::limits;

/// Most half-open connections, if the process may have enough descriptors.
const HALF_OPEN_MOST: usize = 64;
/// Fewest of them, however few descriptors the process may have.
const HALF_OPEN_LEAST: usize = 16;

/// The accepted connections of this process whose first frame has not come. The limit is one for all
/// listeners. One connection too many closes the oldest one of the source that has the most: a flood
/// from one host displaces itself.
#[derive(Debug)]
pub(super) struct HalfOpenList {
    /// In the order in which they came.
    queue: VecDeque<HalfOpenPlace>,
    of_source: HashMap<IpAddr, usize>,
    limit: usize,
}

/// A connection in the list.
#[derive(Debug, Clone, Copy)]
struct HalfOpenPlace {
    token: Token,
    listener: Token,
    source: IpAddr,
}

impl HalfOpenList {
    /// Makes the list of this process.
    pub(super) fn of_process() -> Self {
        Self::with_limit(share_of_descriptors(HALF_OPEN_LEAST, HALF_OPEN_MOST))
    }

    fn with_limit(limit: usize) -> Self {
        Self { queue: VecDeque::new(), of_source: HashMap::new(), limit }
    }

    /// Adds a connection. Returns the one that must be closed for it, if any.
    pub(super) fn add(&mut self, token: Token, listener: Token, from: IpAddr) -> Option<Token> {
        let closed = (self.queue.len() >= self.limit).then(|| self.oldest_of_largest()).flatten();
        closed.into_iter().for_each(|closed| self.remove(closed));
        let source = source_of(from);
        *self.of_source.entry(source).or_default() += 1;
        self.queue.push_back(HalfOpenPlace { token, listener, source });
        closed
    }

    /// Returns the oldest connection of the source that has the most.
    fn oldest_of_largest(&self) -> Option<Token> {
        let most = self.of_source.values().max()?;
        let place = self.queue.iter().find(|place| self.of_source.get(&place.source) == Some(most));
        place.map(|place| place.token)
    }

    /// Removes a connection that is not half open any more.
    pub(super) fn remove(&mut self, token: Token) {
        let Some(at) = self.queue.iter().position(|place| place.token == token) else { return };
        let Some(place) = self.queue.remove(at) else { return };
        if let Some(count) = self.of_source.get_mut(&place.source) {
            *count -= 1;
            if *count == 0 {
                self.of_source.remove(&place.source);
            }
        }
    }

    /// Returns the connections of a listener.
    pub(super) fn of_listener(&self, listener: Token) -> Vec<Token> {
        self.queue.iter().filter(|place| place.listener == listener).map(|place| place.token).collect()
    }
}

/// Returns what stands for all addresses that one host can easily choose: the loopback network, or
/// the /64 network of an IPv6 address.
fn source_of(ip: IpAddr) -> IpAddr {
    match ip {
        _ if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// With this many handshakes under way permits are scarce, if the process may have enough descriptors.
const HANDSHAKES_MOST: usize = 1024;
/// With this many permits are scarce, however few descriptors the process may have.
const HANDSHAKES_LEAST: usize = 64;
/// The part of the process's descriptors that handshakes may use before permits are scarce, and the
/// part that half-open connections may use: one of this many.
const SHARE: u64 = 8;
/// Permits of each listener while they are scarce: one for its connector, and one beside it.
const OF_LISTENER: usize = 2;

/// The handshakes of a process. One begins when a peer's HELLO has come. It has a descriptor, and
/// later queue pairs. NCCL makes one connector for each listener, so a listener needs few permits. If
/// the process has many handshakes in all, each listener gets no more than it needs.
#[derive(Debug)]
pub(crate) struct HandshakeLimit {
    taken: AtomicUsize,
    scarce_from: usize,
}

/// One handshake. Its drop ends the handshake for the limit.
#[derive(Debug)]
pub(crate) struct HandshakePermit(Arc<HandshakeLimit>);

impl HandshakeLimit {
    /// Makes those of this process.
    pub(super) fn of_process() -> Arc<Self> {
        Self::scarce_from(share_of_descriptors(HANDSHAKES_LEAST, HANDSHAKES_MOST))
    }

    fn scarce_from(scarce_from: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), scarce_from })
    }

    /// Takes one. A listener that has as many as its [`limit`](Self::limit) takes none.
    pub(super) fn take(self: &Arc<Self>) -> HandshakePermit {
        self.taken.fetch_add(1, Ordering::Relaxed);
        HandshakePermit(Arc::clone(self))
    }

    /// Returns how many permits a listener may have that usually has up to `usual`.
    pub(crate) fn limit(&self, usual: usize) -> usize {
        let scarce = self.taken.load(Ordering::Relaxed) >= self.scarce_from;
        if scarce { usual.min(OF_LISTENER) } else { usual }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns how many of this process's descriptors one purpose may take, at least `least` and at most
/// `most`.
fn share_of_descriptors(least: usize, most: usize) -> usize {
    // A process without a limit has enough.
    usize::try_from(limits::descriptors().0 / SHARE).unwrap_or(most).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: Token = Token(1);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    //= reach.md: a flood from one host displaces only that host's connections
    #[test]
    fn the_source_with_the_most_loses_its_oldest() {
        let mut list = HalfOpenList::with_limit(4);
        assert_eq!(list.add(Token(10), LISTENER, ip("10.0.0.1")), None);
        for n in 11..14 {
            assert_eq!(list.add(Token(n), LISTENER, ip("10.0.0.2")), None);
        }
        // However many come, the other source stays.
        for n in 14..100 {
            assert_eq!(list.add(Token(n), LISTENER, ip("10.0.0.2")), Some(Token(n - 3)));
        }
        assert_eq!(list.add(Token(100), LISTENER, ip("10.0.0.3")), Some(Token(97)));
        // All have one or two: the oldest of those with two.
        assert_eq!(list.add(Token(101), LISTENER, ip("10.0.0.1")), Some(Token(98)));
        assert_eq!(list.add(Token(102), LISTENER, ip("10.0.0.4")), Some(Token(10)));
        list.remove(Token(99));
        assert_eq!(list.add(Token(103), LISTENER, ip("10.0.0.5")), None);
        list.remove(Token(99));
        assert_eq!(list.of_listener(LISTENER), [100, 101, 102, 103].map(Token));
        assert_eq!(list.of_listener(Token(2)), []);
    }

    #[test]
    fn one_host_is_one_source() {
        assert_eq!(source_of(ip("127.9.0.1")), source_of(ip("::1")));
        assert_eq!(source_of(ip("fd00::1")), source_of(ip("fd00::2")));
        assert_ne!(source_of(ip("fd00:0:0:1::1")), source_of(ip("fd00::1")));
        assert_ne!(source_of(ip("10.0.0.1")), source_of(ip("10.0.0.2")));
    }

    //= reach.md: a process has a bound on peers whose handshake is not over
    #[test]
    fn a_listener_gets_little_if_permits_are_scarce() {
        let handshakes = HandshakeLimit::scarce_from(3);
        let mut taken: Vec<HandshakePermit> = (0..2).map(|_| handshakes.take()).collect();
        assert_eq!(handshakes.limit(8), 8);
        taken.push(handshakes.take());
        assert_eq!((handshakes.limit(8), handshakes.limit(1)), (2, 1));
        taken.pop();
        assert_eq!(handshakes.limit(8), 8);
    }
}
