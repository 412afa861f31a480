//! Follows waits from process to process, and from host to host as far as they were asked.

use mpib_host_view::{Awaited, State, Waiting};

use super::known::{Known, Peer, Place};

/// A process that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) place: Place<'a>,
    pub(super) wait: &'a Waiting,
}

/// A process that waits, what it waits for, and so on to the end. It has one link or more.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    pub(super) links: Vec<Link<'a>>,
    pub(super) end: End<'a>,
}

/// Why a chain ends. Chains with equal ends have one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End<'a> {
    /// The last process waits for its rails or adapters, and not for a process.
    Own(Place<'a>, Awaited, Peer<'a>),
    /// The last peer runs on a host without an answer, or has no process in its name.
    Away(Peer<'a>),
    /// The last peer is said to run on a host, which has no page of it that belongs to the connection.
    Unseen(Place<'a>),
    /// A process that cannot do anything.
    Held(Place<'a>, State),
    /// A process that moves data of other connections.
    Moves(Place<'a>),
    /// A process that neither moves data nor waits.
    Silent(Place<'a>),
    /// Each of these processes waits for the next, and the last for the first. The least comes first.
    Circle(Vec<Place<'a>>),
}

impl<'a> Chain<'a> {
    /// Follows the waits of a process; `None` if it has not waited for long, or cannot do anything at
    /// all. It comes to each process once, so it ends.
    pub(super) fn from(start: Place<'a>, known: Known<'a>) -> Option<Self> {
        let mut links: Vec<Link<'a>> = Vec::new();
        let (mut place, mut process) = (start, known.process(start)?);
        let end = loop {
            if process.state.obstacle().is_some() {
                break End::Held(place, process.state);
            }
            if let Some(first) = links.iter().position(|link| link.place == place) {
                break End::circle(&links[first..]);
            }
            // The one that is waited for may have begun to wait later.
            let wait = process.wait.as_ref().filter(|wait| wait.is_long() || !links.is_empty());
            let Some(wait) = wait else {
                break if process.has_moved { End::Moves(place) } else { End::Silent(place) };
            };
            links.push(Link { place, wait });
            let peer = Peer::of(&wait.peer);
            if !matches!(wait.r#for, Awaited::Receive | Awaited::Data) {
                break End::Own(place, wait.r#for, peer);
            }
            let Peer::Process(next) = peer else { break End::Away(peer) };
            let Some(host) = known.host(next.host) else { break End::Away(peer) };
            match host.process(next.pid).filter(|process| process.is_peer_of(place.host, place.pid)) {
                Some(found) => (place, process) = (next, found),
                None => break End::Unseen(next),
            }
        };
        (!links.is_empty()).then_some(Self { links, end })
    }

    /// Returns what the last process waits for.
    pub(super) fn last(&self) -> &'a Waiting {
        self.links[self.links.len() - 1].wait
    }

    /// Returns whether each process waits for data alone, which is normal while one computes.
    pub(super) fn is_of_data(&self) -> bool {
        self.links.iter().all(|link| link.wait.r#for == Awaited::Data)
    }
}

impl<'a> End<'a> {
    fn circle(links: &[Link<'a>]) -> Self {
        let mut places: Vec<Place<'_>> = links.iter().map(|link| link.place).collect();
        let least = places.iter().enumerate().min_by_key(|(_, place)| **place).map_or(0, |(i, _)| i);
        places.rotate_left(least);
        Self::Circle(places)
    }
}
