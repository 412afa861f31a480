//! Bounds on what strangers and peers may hold of this process: half-open connections, and seats of
//! peers whose handshake is not over.

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

/// From this many seats on they are scarce, if the process may have enough descriptors.
const SEATS_MOST: usize = 1024;
/// From this many seats on they are scarce, however few descriptors the process may have.
const SEATS_LEAST: usize = 64;
/// One of this many descriptors of the process may be a seat before they are scarce, and one a
/// half-open connection.
const SHARE: u64 = 8;
/// What each listener gets if seats are scarce: one for its connector, and one beside it.
const OF_LISTENER: usize = 2;

/// The seats of a process: one for each peer whose HELLO has come, and whose handshake is not over. It
/// has a descriptor, and queue pairs once its handshake has begun. NCCL makes one connector for each
/// listener, so a listener needs few seats. If the process has many in all, each listener gets no more
/// than it needs.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: AtomicUsize,
    scarce_from: usize,
}

/// One peer. Its drop ends that.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Seats>);

impl Seats {
    /// Makes those of this process.
    pub(super) fn of_process() -> Arc<Self> {
        Self::scarce_from(share_of_descriptors(SEATS_LEAST, SEATS_MOST))
    }

    fn scarce_from(scarce_from: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), scarce_from })
    }

    /// Takes one. A listener that has as many as its [`limit`](Self::limit) takes none.
    pub(super) fn take(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Seat(Arc::clone(self))
    }

    /// Returns how many seats a listener may have that usually has up to `usual`.
    pub(crate) fn limit(&self, usual: usize) -> usize {
        let scarce = self.taken.load(Ordering::Relaxed) >= self.scarce_from;
        if scarce { usual.min(OF_LISTENER) } else { usual }
    }
}

impl Drop for Seat {
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
    fn a_listener_gets_little_if_seats_are_scarce() {
        let seats = Seats::scarce_from(3);
        let mut taken: Vec<Seat> = (0..2).map(|_| seats.take()).collect();
        assert_eq!(seats.limit(8), 8);
        taken.push(seats.take());
        assert_eq!((seats.limit(8), seats.limit(1)), (2, 1));
        taken.pop();
        assert_eq!(seats.limit(8), 8);
    }
}
