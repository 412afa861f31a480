//! Findings about processes that wait: one for each cause.

use std::collections::BTreeSet;

use mpib_host_view::lasted;

use super::chain::{Chain, End, Link};
use super::finding::{Cause, Finding, Kind, list};
use super::process::{Awaited, Peer, Process, Wait};

/// Links that are shown as evidence.
const SHOWN: usize = 4;

/// What is known of the host while findings are put into words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) host: &'a str,
    pub(super) at_ms: u64,
    pub(super) processes: &'a [Process<'a>],
}

/// Returns a finding for each cause that these processes wait for.
pub(super) fn findings(scene: Scene<'_>, subjects: &[&Process<'_>]) -> Vec<Finding> {
    let chains = subjects.iter().filter_map(|process| Chain::from(process, scene.processes, scene.host));
    let mut causes: Vec<Vec<Chain<'_>>> = Vec::new();
    for chain in chains {
        match causes.iter_mut().find(|chains| chains[0].end == chain.end) {
            Some(chains) => chains.push(chain),
            None => causes.push(vec![chain]),
        }
    }
    for chains in &mut causes {
        chains.sort_by_key(|chain| (chain.last().awaited, chain.links[0].pid));
    }
    causes.iter().map(|chains| scene.finding(chains, subjects.len())).collect()
}

impl Scene<'_> {
    fn finding(self, chains: &[Chain<'_>], subjects: usize) -> Finding {
        let is_of_data = chains.iter().all(Chain::is_of_data);
        let (end, last) = (&chains[0].end, chains[0].last());
        let kind = match end {
            End::Held(..) => Kind::Held,
            _ if is_of_data => Kind::NoData,
            End::Circle(_) => Kind::Circle,
            _ => Kind::of(last.awaited),
        };
        let since_ms = chains.iter().map(|chain| chain.links[0].wait.since_ms).min().unwrap_or(self.at_ms);
        let time = lasted(self.at_ms.saturating_sub(since_ms));
        let stuck = if kind == Kind::NoData { "nothing has moved for" } else { "stuck for" };
        let who = self.who(chains, subjects);
        let text = match end {
            End::Circle(pids) => format!("{stuck} {time}: {}", self.circle(pids, is_of_data)),
            _ => format!("{stuck} {time}: {who} for {}", self.what(end, last)),
        };
        let mut finding = Finding::new(kind, text, chains.iter().map(|chain| chain.links[0].pid).collect());
        finding.since_ms = Some(since_ms);
        finding.cause = self.cause(end);
        finding.evidence = self.evidence(chains);
        finding.next = Some(self.next(end, is_of_data));
        finding
    }

    /// Returns who waits, with the verb.
    fn who(self, chains: &[Chain<'_>], subjects: usize) -> String {
        match chains {
            [Chain { links, .. }] => links[0].wait.who_waits(&format!(" of {}", self.process(links[0].pid))),
            _ => format!("{} of {subjects} processes wait", chains.len()),
        }
    }

    /// Returns what is waited for, and what is wrong with it.
    fn what(self, end: &End<'_>, last: Wait<'_>) -> String {
        let missing = match last.awaited {
            Awaited::Data => "has sent nothing",
            _ => "has posted no receive",
        };
        match end {
            End::Own(_, awaited, peer) => {
                let why = match awaited {
                    Awaited::Rail => "none is left",
                    Awaited::Acknowledgements => "its adapter does not answer",
                    _ => "nothing in it is done",
                };
                format!("{}: {why}", awaited.of_peer(&self.peer(*peer)))
            }
            End::Away(peer) => format!("{}, which {missing}", self.peer(*peer)),
            End::Unseen(pid) => format!("process {pid} of this host, which {missing}"),
            End::Held(pid, state) => {
                format!("{}, which {}", self.process(*pid), state.obstacle().unwrap_or_default())
            }
            End::Moves(pid) => format!("{}, which {missing} and moves other data", self.process(*pid)),
            End::Silent(pid) => {
                format!("{}, which {missing}: NCCL in it asks for nothing", self.process(*pid))
            }
            End::Circle(_) => String::new(),
        }
    }

    fn circle(self, pids: &[u32], is_of_data: bool) -> String {
        match (pids, is_of_data) {
            ([pid], _) => format!("{} waits for itself", self.process(*pid)),
            (_, true) => {
                format!("processes {} wait for data of each other, and none has sent any", list(pids))
            }
            (_, false) => format!("processes {} wait for each other in a circle", list(pids)),
        }
    }

    fn cause(self, end: &End<'_>) -> Option<Cause> {
        let here = |pid, seen| Some(Cause { host: self.host.to_owned(), pid, seen });
        match *end {
            End::Away(Peer::Process { host, pid }) => Some(Cause { host: host.to_owned(), pid, seen: false }),
            End::Unseen(pid) => here(pid, false),
            End::Own(pid, ..) | End::Held(pid, _) | End::Moves(pid) | End::Silent(pid) => here(pid, true),
            End::Away(Peer::Named(_)) | End::Circle(_) => None,
        }
    }

    fn evidence(self, chains: &[Chain<'_>]) -> Vec<String> {
        let mut links: Vec<Link<'_>> = Vec::new();
        for link in chains.iter().flat_map(|chain| &chain.links) {
            if links.iter().all(|known| known.pid != link.pid) {
                links.push(*link);
            }
        }
        let mut lines: Vec<String> = links.iter().take(SHOWN).map(|link| self.link(link)).collect();
        if links.len() > SHOWN {
            lines.push(format!("{} more processes wait", links.len() - SHOWN));
        }
        match &chains[0].end {
            End::Own(pid, Awaited::Rail, _) => {
                let own: Vec<_> = self.processes.iter().filter(|process| process.pid == *pid).collect();
                lines.extend(self.reasons(&own, None));
            }
            End::Away(Peer::Process { host, .. }) => {
                lines.push(format!(
                    "host {host} was not asked: this command sees the host {} alone",
                    self.host
                ));
            }
            _ => {}
        }
        lines
    }

    fn link(self, link: &Link<'_>) -> String {
        let Wait { awaited, peer, since_ms, .. } = link.wait;
        let (who, wait) = (self.process(link.pid), link.wait.who_waits(""));
        let what = awaited.of_peer(&self.peer(peer));
        format!("{who}: {wait} for {what}, for {}", lasted(self.at_ms.saturating_sub(since_ms)))
    }

    /// Returns why these processes lack a port, or any of their ports: each reason once, those of this
    /// host first.
    pub(super) fn reasons(self, processes: &[&Process<'_>], port: Option<&str>) -> Vec<String> {
        let is_meant = |name: &str| port.is_none_or(|port| port == name);
        // Most reasons begin with the port.
        let line = |name: &str, why: &str| match why.starts_with(name) {
            true => why.to_owned(),
            false => format!("{name}: {why}"),
        };
        let mut lines: Vec<String> = Vec::new();
        for port in processes.iter().flat_map(|p| &p.ports).filter(|port| is_meant(&port.name)) {
            lines.extend(port.cause.as_ref().map(|cause| line(&port.name, cause)));
        }
        let own: BTreeSet<String> = lines.iter().cloned().collect();
        for c in processes.iter().flat_map(|p| &p.connections) {
            for rail in c.rails.iter().filter(|rail| is_meant(&rail.name)) {
                let reason = rail.missing.as_ref().map(|missing| line(&rail.name, missing));
                let reason = reason.filter(|reason| !own.contains(reason));
                lines.extend(reason.map(|reason| format!("{reason} ({})", self.peer(Peer::of(c)))));
            }
        }
        let mut known = BTreeSet::new();
        lines.retain(|line| known.insert(line.clone()));
        lines.truncate(SHOWN);
        lines
    }

    fn next(self, end: &End<'_>, is_of_data: bool) -> String {
        let normal = if is_of_data { "nothing, if that process computes; otherwise: " } else { "" };
        let stack = |pid: u32| format!("what it does: \"py-spy dump --pid {pid}\" or \"gdb -p {pid}\"");
        match end {
            End::Own(_, Awaited::Rail, _) => {
                "links, cables and addresses of these ports: \"mpib doctor\"".into()
            }
            End::Own(_, Awaited::Acknowledgements, Peer::Process { host, .. }) => {
                format!("whether host {host} is alive, and the path to it: \"mpib doctor {host}\"")
            }
            End::Own(pid, ..) => format!("work requests in flight on each rail: \"mpib stats {pid}\""),
            End::Away(Peer::Process { host, pid }) => {
                format!("{normal}\"mpib why {pid}\" on host {host}; {}", stack(*pid))
            }
            End::Away(Peer::Named(_)) => format!("{normal}\"mpib why\" on the peer's host"),
            End::Unseen(pid) => format!(
                "{normal}process {pid} has no statistics page that this user may read: \
                 another user or container, or it has ended"
            ),
            End::Held(pid, state) => state.remedy(*pid),
            End::Moves(pid) => format!("{normal}\"mpib stats {pid}\"; {}", stack(*pid)),
            End::Silent(pid) => format!("{normal}{}", stack(*pid)),
            End::Circle(pids) => {
                format!("{normal}in which operation each of them is: \"py-spy dump --pid\" {}", list(pids))
            }
        }
    }

    /// Names a process of this host.
    pub(super) fn process(self, pid: u32) -> String {
        match self.processes.iter().find(|process| process.pid == pid) {
            Some(process) => format!("process {pid} ({})", process.command),
            None => format!("process {pid}"),
        }
    }

    fn peer(self, peer: Peer<'_>) -> String {
        match peer {
            Peer::Process { host, pid } if host == self.host => self.process(pid),
            Peer::Process { host, pid } => format!("host {host}, pid {pid}"),
            Peer::Named(name) => name.to_owned(),
        }
    }
}

impl Kind {
    fn of(awaited: Awaited) -> Self {
        match awaited {
            Awaited::Rail => Self::NoRail,
            Awaited::Receive => Self::NoReceive,
            Awaited::Acknowledgements => Self::NoAcknowledgements,
            Awaited::Room => Self::NoRoom,
            Awaited::Data => Self::NoData,
        }
    }
}
