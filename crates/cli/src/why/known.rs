//! What is known of the processes of all hosts.

use mpib_host_view::{Waiter, Waits, peer_process};

use super::ask::Asked;

/// This host, and the others that were asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) own: &'a Waits,
    pub(super) asked: &'a [Asked],
}

/// A process of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place<'a> {
    pub(super) host: &'a str,
    pub(super) pid: u32,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer<'a> {
    Process(Place<'a>),
    /// A name without a process in it.
    Named(&'a str),
}

impl<'a> Known<'a> {
    /// Returns the answer of a host.
    pub(super) fn host(self, name: &str) -> Option<&'a Waits> {
        let answers = self.asked.iter().filter_map(|asked| asked.waits.as_ref());
        [self.own].into_iter().chain(answers).find(|waits| waits.hostname == name)
    }

    /// Returns what a process of a host does.
    pub(super) fn process(self, place: Place<'_>) -> Option<&'a Waiter> {
        self.host(place.host)?.process(place.pid)
    }

    /// Returns a process of this host.
    pub(super) fn here(self, pid: u32) -> Place<'a> {
        Place { host: &self.own.hostname, pid }
    }

    pub(super) fn is_here(self, place: Place<'_>) -> bool {
        place.host == self.own.hostname
    }
}

impl<'a> Peer<'a> {
    /// Reads the name of a peer.
    pub(super) fn of(name: &'a str) -> Self {
        peer_process(name).map_or(Self::Named(name), |(host, pid)| Self::Process(Place { host, pid }))
    }
}
