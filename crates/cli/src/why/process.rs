//! One process over all looks: what it does, and what it waits for.

use mpib_host_view::{Connection, Count, Port, Process as Page, TwoWays, peer_process};
use nccl_net_mpib_agent_iface::stats::{self, Direction};

use super::finding::connections;
use super::look::{Look, State, same};

/// A process with a page in the last look. One with several copies of the plugin has several pages.
#[derive(Debug)]
pub(super) struct Process<'a> {
    pub(super) pid: u32,
    pub(super) command: &'a str,
    pub(super) state: State,
    /// The connections of the last look.
    pub(super) connections: Vec<&'a Connection>,
    /// Its ports in the last look.
    pub(super) ports: Vec<&'a Port>,
    /// Connections that its pages have no room for.
    pub(super) not_shown: u32,
    /// Whether anything was begun or done between the first look and the last.
    pub(super) has_moved: bool,
    /// What most of its connections wait for; `None` while it does not wait.
    pub(super) wait: Option<Wait<'a>>,
}

/// What connections wait for. The gravest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    Rail,
    Receive,
    Acknowledgements,
    Room,
    Data,
}

/// Connections of a process that wait for the same of the same peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) awaited: Awaited,
    pub(super) peer: Peer<'a>,
    /// The connections that wait.
    pub(super) waiting: usize,
    /// All open connections of the process.
    pub(super) of: usize,
    pub(super) since_ms: u64,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer<'a> {
    Process {
        host: &'a str,
        pid: u32,
    },
    /// A name without a process in it.
    Named(&'a str),
}

impl Awaited {
    /// Returns what is waited for, in words.
    pub(super) fn of_peer(self, peer: &str) -> String {
        let (awaited, direction) = match self {
            Self::Rail => (stats::Awaited::Rail, None),
            Self::Receive => (stats::Awaited::Receive, None),
            Self::Acknowledgements => (stats::Awaited::Data, Some(Direction::Send)),
            Self::Room => (stats::Awaited::Room, None),
            Self::Data => (stats::Awaited::Data, Some(Direction::Receive)),
        };
        awaited.of_peer(direction, peer)
    }
}

impl Wait<'_> {
    /// Returns which connections wait, with what stands between, and the verb.
    pub(super) fn who_waits(&self, between: &str) -> String {
        connections(self.waiting, self.of, between, ["waits", "wait"])
    }
}

impl<'a> Peer<'a> {
    pub(super) fn of(c: &'a Connection) -> Self {
        peer_process(&c.peer).map_or(Self::Named(&c.peer), |(host, pid)| Self::Process { host, pid })
    }
}

impl<'a> Process<'a> {
    /// Returns the processes of the last look, by number.
    pub(super) fn all(looks: &'a [Look]) -> Vec<Self> {
        let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return Vec::new() };
        let mut pages: Vec<&Page> = last.host.processes.iter().collect();
        pages.sort_by_key(|page| page.pid);
        let processes = pages.chunk_by(|a, b| a.pid == b.pid);
        processes.map(|pages| Self::of(pages, looks, (first, last))).collect()
    }

    fn of(pages: &[&'a Page], looks: &[Look], (first, last): (&Look, &Look)) -> Self {
        let (pid, command) = (pages[0].pid, pages[0].command.as_str());
        let state_at = |look: &Look| look.states.get(&pid).copied().unwrap_or(State::Alive);
        let is_same = looks.iter().all(|look| state_at(look) == state_at(last));
        let state = match state_at(last) {
            // Each disk access does this for a moment.
            State::Uninterruptible if !is_same => State::Alive,
            state => state,
        };
        let has_moved = |page: &&Page| {
            same(&first.host, page).is_none_or(|old| begun(&old.totals) != begun(&page.totals))
        };
        let connections: Vec<&Connection> = pages.iter().flat_map(|page| &page.connections).collect();
        let has_moved = pages.iter().any(has_moved);
        let wait = wait(&connections, has_moved, last.host.at_ms);
        let ports = pages.iter().flat_map(|page| &page.ports).collect();
        let not_shown = pages.iter().map(|page| page.not_shown).sum();
        Self { pid, command, state, connections, ports, not_shown, has_moved, wait }
    }

    /// Returns whether one of its connections leads to this process. Numbers of processes may be those
    /// of another container.
    pub(super) fn is_peer_of(&self, host: &str, pid: u32) -> bool {
        let known = Peer::Process { host, pid };
        self.not_shown > 0 || self.connections.iter().any(|c| Peer::of(c) == known)
    }
}

/// Returns the requests that were begun and done, by direction.
fn begun(totals: &TwoWays) -> [Count; 4] {
    [totals.send.requests, totals.send.done, totals.recv.requests, totals.recv.done]
}

fn awaited(c: &Connection) -> Option<Awaited> {
    Some(match (c.wait.as_ref()?.r#for.as_str(), c.direction.as_str()) {
        ("receive", _) => Awaited::Receive,
        ("rail", _) => Awaited::Rail,
        ("room", _) => Awaited::Room,
        ("data", "send") => Awaited::Acknowledgements,
        _ => Awaited::Data,
    })
}

/// Returns the gravest wait; of several for the same the one with most connections, then the oldest.
/// Receives without data are normal while others move.
fn wait<'a>(connections: &[&'a Connection], has_moved: bool, at_ms: u64) -> Option<Wait<'a>> {
    let of = connections.iter().filter(|c| c.state == "open").count();
    let mut waits: Vec<Wait<'_>> = Vec::new();
    for c in connections.iter().filter(|c| c.has_waited_long(at_ms)) {
        let (Some(awaited), Some(since_ms)) = (awaited(c), c.wait.as_ref().map(|wait| wait.since_ms)) else {
            continue;
        };
        let peer = Peer::of(c);
        match waits.iter_mut().find(|wait| (wait.awaited, wait.peer) == (awaited, peer)) {
            Some(wait) => {
                wait.waiting += 1;
                wait.since_ms = wait.since_ms.min(since_ms);
            }
            None => waits.push(Wait { awaited, peer, waiting: 1, of, since_ms }),
        }
    }
    waits.retain(|wait| !has_moved || wait.awaited != Awaited::Data);
    waits.into_iter().min_by_key(|wait| (wait.awaited, std::cmp::Reverse(wait.waiting), wait.since_ms))
}
