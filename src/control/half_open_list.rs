//! The accepted connections of this process whose first frame has not come.
//!
//! The limit is one for all listeners. One connection too many closes the oldest one of the source
//! that has the most: a flood from one host displaces itself.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mio::Token;

use super::seats::share_of_descriptors;

/// Most connections, if the process may have enough descriptors.
const MOST: usize = 64;
/// Fewest connections, however few descriptors the process may have.
const LEAST: usize = 16;

/// See the module.
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
        Self::with_limit(share_of_descriptors(LEAST, MOST))
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
}
