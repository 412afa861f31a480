//! Who waits for whom: the processes of a host with what each of them waits for, from several readings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use nccl_net_mpib_agent_iface::stats::{self, Direction, NoPage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::LONG_WAIT_MS;
use crate::{Connection, Count, Host, Process, Source, State, TwoWays, budget, peer_process};

/// Version of the document's format.
const FORMAT: u32 = 1;
/// Most bytes of a host's document. Nobody takes a longer one.
pub const WAITS_MAX: usize = 4 << 20;
/// Most processes in it: a reading has no more pages.
const PROCESSES_MAX: usize = budget::OF_HOST.pages;
/// Most bytes of a name in it.
const NAME_MAX: usize = 512;

/// Who waits for whom on a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// Version of this format. New members do not change it.
    pub format: u32,
    /// Name of the host.
    pub hostname: String,
    /// Time of the last reading, in ms since 1970 (UTC).
    pub at_ms: u64,
    /// The processes of that reading, by number.
    pub processes: Vec<Waiter>,
}

/// A process. One with several copies of the plugin has several pages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiter {
    /// Number of the process in the reader's namespace.
    pub pid: u32,
    /// `/proc/PID/comm`
    pub command: String,
    /// How the kernel runs it.
    pub state: State,
    /// Whether anything was begun or done between the first reading and the last.
    pub has_moved: bool,
    /// The processes that its connections lead to.
    pub peers: Vec<Peer>,
    /// Whether its pages have no room for some of its connections.
    pub has_more_peers: bool,
    /// Its connections that have failed.
    pub failed: usize,
    /// What most of its connections wait for; null while it does not wait.
    pub wait: Option<Waiting>,
}

/// Connections of a process that wait for the same of the same peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// What they wait for.
    pub r#for: Awaited,
    /// Name of the peer, of one of these connections.
    pub peer: String,
    /// The connections that wait.
    pub waiting: usize,
    /// All open connections of the process.
    pub of: usize,
    /// How long the first of them has waited at the last reading.
    pub waited_ms: u64,
}

/// What connections wait for. The gravest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Awaited {
    /// A rail: none is left.
    Rail,
    /// A receive of the peer.
    Receive,
    /// Acknowledgements of the peer's adapter.
    Acknowledgements,
    /// Room in a queue.
    Room,
    /// Data of the peer.
    Data,
}

/// A process of a host, as its peers name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Name of its host.
    pub host: String,
    /// Its number there.
    pub pid: u32,
}

impl Waits {
    /// Compares readings of one host, the oldest first.
    pub fn of(hosts: &[&Host]) -> Self {
        let (Some(first), Some(last)) = (hosts.first(), hosts.last()) else { return Self::default() };
        let mut pages: Vec<&Process> = last.processes.iter().collect();
        pages.sort_by_key(|page| page.pid);
        let processes = pages.chunk_by(|a, b| a.pid == b.pid);
        Self {
            format: FORMAT,
            hostname: last.hostname.clone(),
            at_ms: last.at_ms,
            processes: processes.map(|pages| Waiter::of(pages, hosts, first, last.at_ms)).collect(),
        }
    }

    /// Reads this host twice, with this time between.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn look(time: Duration) -> Result<Self, NoPage> {
        let mut source = Source::default();
        let first = source.host()?;
        sleep(time);
        Ok(Self::of(&[&first, &source.host()?]))
    }

    /// Reads what another host has sent, which may be anything.
    ///
    /// # Errors
    /// Why it is no document of that host.
    pub fn received(bytes: &[u8], host: &str) -> Result<Self, String> {
        let waits = serde_json::from_slice(bytes).map_err(|e| format!("its answer cannot be read: {e}"));
        waits.and_then(|waits: Self| waits.of_host(host))
    }

    /// Returns the document of another host, if it is right.
    ///
    /// # Errors
    /// Why it is no document of that host.
    pub fn of_host(self, host: &str) -> Result<Self, String> {
        self.check(host).map(|()| self)
    }

    fn check(&self, host: &str) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its answer has format {}, expected {FORMAT}", self.format));
        }
        if self.hostname != host {
            let name: String = self.hostname.chars().take(NAME_MAX).collect();
            return Err(format!("the host that answers there is {name}"));
        }
        // Waits are followed through all of them.
        if self.processes.len() > PROCESSES_MAX {
            return Err(format!("its answer has more than {PROCESSES_MAX} processes"));
        }
        let mut known = BTreeSet::new();
        for process in &self.processes {
            let pid = process.pid;
            let bad = |what: &str| Err(format!("its answer is wrong: process {pid} {what}"));
            if !known.insert(pid) {
                return bad("is in it twice");
            }
            let peer = process.wait.as_ref().map(|wait| &wait.peer);
            let hosts = process.peers.iter().map(|peer| &peer.host);
            if [&process.command].into_iter().chain(peer).chain(hosts).any(|name| name.len() > NAME_MAX) {
                return bad("has a name of more than 512 bytes");
            }
            if let Some(Waiting { waiting, of, .. }) = process.wait
                && !(1..=of).contains(&waiting)
            {
                return bad(&format!("waits on {waiting} of {of} connections"));
            }
        }
        Ok(())
    }

    /// Returns a process.
    pub fn process(&self, pid: u32) -> Option<&Waiter> {
        self.processes.iter().find(|process| process.pid == pid)
    }
}

impl Waiter {
    fn of(pages: &[&Process], hosts: &[&Host], first: &Host, at_ms: u64) -> Self {
        let last = pages[0];
        let pid = last.pid;
        let mut earlier = hosts.iter().flat_map(|host| &host.processes).filter(|process| process.pid == pid);
        let state = match last.state {
            // Each disk access does this for a moment.
            State::Uninterruptible if earlier.any(|process| process.state != last.state) => State::Alive,
            state => state,
        };
        let has_moved =
            |page: &&Process| first.same(page).is_none_or(|old| begun(&old.totals) != begun(&page.totals));
        let has_moved = pages.iter().any(has_moved);
        let connections: Vec<&Connection> = pages.iter().flat_map(|page| &page.connections).collect();
        let peers: BTreeSet<Peer> = connections.iter().filter_map(|c| Peer::of(&c.peer)).collect();
        Self {
            pid,
            command: last.command.clone(),
            state,
            has_moved,
            peers: peers.into_iter().collect(),
            has_more_peers: pages.iter().any(|page| page.not_shown > 0),
            failed: connections.iter().filter(|c| c.state == "failed").count(),
            wait: wait(&connections, has_moved, at_ms),
        }
    }

    /// Returns whether one of its connections leads to this process. Numbers of processes may be those
    /// of another container.
    pub fn is_peer_of(&self, host: &str, pid: u32) -> bool {
        self.has_more_peers || self.peers.iter().any(|peer| (peer.host.as_str(), peer.pid) == (host, pid))
    }
}

impl Waiting {
    /// Returns whether people look at it.
    pub fn is_long(&self) -> bool {
        self.waited_ms >= LONG_WAIT_MS
    }
}

impl Peer {
    /// Returns the process in a peer's name.
    pub fn of(name: &str) -> Option<Self> {
        peer_process(name).map(|(host, pid)| Self { host: host.to_owned(), pid })
    }
}

impl Awaited {
    fn of(c: &Connection) -> Option<Self> {
        Some(match (c.wait.as_ref()?.r#for.as_str(), c.direction.as_str()) {
            ("receive", _) => Self::Receive,
            ("rail", _) => Self::Rail,
            ("room", _) => Self::Room,
            ("data", "send") => Self::Acknowledgements,
            _ => Self::Data,
        })
    }

    /// Returns what is waited for, in words.
    pub fn of_peer(self, peer: &str) -> String {
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

/// Returns the requests that were begun and done, by direction.
fn begun(totals: &TwoWays) -> [Count; 4] {
    [totals.send.requests, totals.send.done, totals.recv.requests, totals.recv.done]
}

/// Returns the gravest wait, the long ones first; of several for the same the one with most connections,
/// then the oldest. While data moves, each connection waits now and then for a moment, and receives
/// without data are normal.
fn wait(connections: &[&Connection], has_moved: bool, at_ms: u64) -> Option<Waiting> {
    let of = connections.iter().filter(|c| c.state == "open").count();
    let mut waits: BTreeMap<_, Waiting> = BTreeMap::new();
    for c in connections {
        let (Some(r#for), Some(waited_ms)) = (Awaited::of(c), c.waited_ms(at_ms)) else { continue };
        if has_moved && (r#for == Awaited::Data || waited_ms < LONG_WAIT_MS) {
            continue;
        }
        // The names of a process differ in the ports of its connections.
        let peer = peer_process(&c.peer).ok_or(&c.peer);
        let first = || Waiting { r#for, peer: c.peer.clone(), waiting: 0, of, waited_ms };
        let wait = waits.entry((r#for, peer)).or_insert_with(first);
        wait.waiting += 1;
        wait.waited_ms = wait.waited_ms.max(waited_ms);
    }
    let rank = |wait: &Waiting| (!wait.is_long(), wait.r#for, Reverse(wait.waiting), Reverse(wait.waited_ms));
    waits.into_values().min_by_key(rank)
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
