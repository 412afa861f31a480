//! Follows waits from process to process, as far as this host's pages go.

use super::look::State;
use super::process::{Awaited, Peer, Process, Wait};

/// A process that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) pid: u32,
    pub(super) wait: Wait<'a>,
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
    Own(u32, Awaited, Peer<'a>),
    /// The last peer runs on another host, or has no process in its name.
    Away(Peer<'a>),
    /// The last peer is said to run on this host, and has no page that belongs to the connection.
    Unseen(u32),
    /// A process that cannot do anything.
    Held(u32, State),
    /// A process that moves data of other connections.
    Moves(u32),
    /// A process that neither moves data nor waits.
    Silent(u32),
    /// Each of these processes waits for the next, and the last for the first. The lowest number comes
    /// first.
    Circle(Vec<u32>),
}

impl<'a> Chain<'a> {
    /// Follows the waits of a process; `None` if it does not wait, or cannot do anything at all.
    pub(super) fn from(start: &Process<'a>, all: &[Process<'a>], host: &'a str) -> Option<Self> {
        let (mut links, mut at) = (Vec::<Link<'_>>::new(), start);
        let end = loop {
            if at.state.obstacle().is_some() {
                break End::Held(at.pid, at.state);
            }
            if let Some(first) = links.iter().position(|link| link.pid == at.pid) {
                break End::circle(&links[first..]);
            }
            let Some(wait) = at.wait else {
                break if at.has_moved { End::Moves(at.pid) } else { End::Silent(at.pid) };
            };
            links.push(Link { pid: at.pid, wait });
            if !matches!(wait.awaited, Awaited::Receive | Awaited::Data) {
                break End::Own(at.pid, wait.awaited, wait.peer);
            }
            let pid = match wait.peer {
                Peer::Process { host: of, pid } if of == host => pid,
                peer => break End::Away(peer),
            };
            match all.iter().find(|process| process.pid == pid && process.is_peer_of(host, at.pid)) {
                Some(next) => at = next,
                None => break End::Unseen(pid),
            }
        };
        (!links.is_empty()).then_some(Self { links, end })
    }

    /// Returns what the last process waits for.
    pub(super) fn last(&self) -> Wait<'a> {
        self.links[self.links.len() - 1].wait
    }

    /// Returns whether each process waits for data alone, which is normal while one computes.
    pub(super) fn is_of_data(&self) -> bool {
        self.links.iter().all(|link| link.wait.awaited == Awaited::Data)
    }
}

impl End<'_> {
    fn circle(links: &[Link<'_>]) -> Self {
        let mut pids: Vec<u32> = links.iter().map(|link| link.pid).collect();
        let least = pids.iter().enumerate().min_by_key(|(_, pid)| **pid).map_or(0, |(i, _)| i);
        pids.rotate_left(least);
        Self::Circle(pids)
    }
}
