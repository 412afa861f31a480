//! Findings about processes that wait: one for each cause.

use std::collections::BTreeSet;

use mpib_host_view::{Awaited, State, Waiting, lasted};

use super::chain::{Chain, End, Link};
use super::finding::{Cause, Finding, Kind, connections, list};
use super::known::{Known, Peer, Place};
use super::process::Process;

/// Links that are shown as evidence.
const SHOWN: usize = 4;

/// What is known while findings are put into words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) known: Known<'a>,
    /// The processes of this host.
    pub(super) processes: &'a [Process<'a>],
}

/// Returns a finding for each cause that these processes wait for.
pub(super) fn findings(scene: Scene<'_>, subjects: &[&Process<'_>]) -> Vec<Finding> {
    let from = |process: &&Process<'_>| Chain::from(scene.known.here(process.pid()), scene.known);
    let chains = subjects.iter().filter_map(from);
    let mut causes: Vec<Vec<Chain<'_>>> = Vec::new();
    for chain in chains {
        match causes.iter_mut().find(|chains| chains[0].end == chain.end) {
            Some(chains) => chains.push(chain),
            None => causes.push(vec![chain]),
        }
    }
    for chains in &mut causes {
        chains.sort_by_key(|chain| (chain.last().r#for, chain.links[0].place));
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
            _ => Kind::of(last.r#for),
        };
        let waited_ms = chains.iter().map(|chain| chain.links[0].wait.waited_ms).max().unwrap_or(0);
        let time = lasted(waited_ms);
        let stuck = if kind == Kind::NoData { "nothing has moved for" } else { "stuck for" };
        let who = self.who(chains, subjects);
        let text = match end {
            End::Circle(places) => format!("{stuck} {time}: {}", self.circle(places, is_of_data)),
            _ => format!("{stuck} {time}: {who} for {}", self.what(end, last)),
        };
        let mut finding =
            Finding::new(kind, text, chains.iter().map(|chain| chain.links[0].place.pid).collect());
        finding.since_ms = Some(self.at_ms().saturating_sub(waited_ms));
        finding.cause = self.cause(end);
        finding.evidence = self.evidence(chains);
        finding.next = Some(self.next(end, is_of_data));
        finding
    }

    /// Returns who waits, with the verb.
    fn who(self, chains: &[Chain<'_>], subjects: usize) -> String {
        match chains {
            [Chain { links, .. }] => {
                who_waits(links[0].wait, &format!(" of {}", self.process(links[0].place)))
            }
            _ => format!("{} of {subjects} processes wait", chains.len()),
        }
    }

    /// Returns what is waited for, and what is wrong with it.
    fn what(self, end: &End<'_>, last: &Waiting) -> String {
        let missing = match last.r#for {
            Awaited::Data => "has sent nothing",
            _ => "has posted no receive",
        };
        match *end {
            End::Own(_, awaited, peer) => {
                let why = match awaited {
                    Awaited::Rail => "none is left",
                    Awaited::Acknowledgements => "its adapter does not answer",
                    _ => "nothing in it is done",
                };
                format!("{}: {why}", awaited.of_peer(&self.peer(peer)))
            }
            End::Away(peer) => format!("{}, which {missing}", self.peer(peer)),
            End::Unseen(place) if self.known.is_here(place) => {
                format!("process {} of this host, which {missing}", place.pid)
            }
            End::Unseen(place) => format!("{}, which {missing}", self.process(place)),
            End::Held(place, state) => {
                format!("{}, which {}", self.process(place), state.obstacle().unwrap_or_default())
            }
            End::Moves(place) => format!("{}, which {missing} and moves other data", self.process(place)),
            End::Silent(place) => {
                let why = match self.known.process(place).map_or(0, |process| process.failed) {
                    0 => "NCCL in it asks for nothing".to_owned(),
                    n => format!("{n} of its connections failed before"),
                };
                format!("{}, which {missing}: {why}", self.process(place))
            }
            End::Circle(_) => String::new(),
        }
    }

    fn circle(self, places: &[Place<'_>], is_of_data: bool) -> String {
        let who = match places {
            [place] => return format!("{} waits for itself", self.process(*place)),
            _ if places.iter().all(|place| self.known.is_here(*place)) => {
                format!("processes {}", list(&pids(places)))
            }
            _ => list(&places.iter().map(|place| self.process(*place)).collect::<Vec<_>>()),
        };
        match is_of_data {
            true => format!("{who} wait for data of each other, and none has sent any"),
            false => format!("{who} wait for each other in a circle"),
        }
    }

    fn cause(self, end: &End<'_>) -> Option<Cause> {
        let (place, seen) = match *end {
            End::Away(Peer::Process(place)) | End::Unseen(place) => (place, false),
            End::Own(place, ..) | End::Held(place, _) | End::Moves(place) | End::Silent(place) => {
                (place, true)
            }
            End::Away(Peer::Named(_)) | End::Circle(_) => return None,
        };
        Some(Cause { host: place.host.to_owned(), pid: place.pid, seen })
    }

    fn evidence(self, chains: &[Chain<'_>]) -> Vec<String> {
        let mut links: Vec<Link<'_>> = Vec::new();
        for link in chains.iter().flat_map(|chain| &chain.links) {
            if links.iter().all(|known| known.place != link.place) {
                links.push(*link);
            }
        }
        let mut lines: Vec<String> = links.iter().take(SHOWN).map(|link| self.link(link)).collect();
        if links.len() > SHOWN {
            lines.push(format!("{} more processes wait", links.len() - SHOWN));
        }
        match chains[0].end {
            End::Own(place, Awaited::Rail, _) if self.known.is_here(place) => {
                let own: Vec<_> =
                    self.processes.iter().filter(|process| process.pid() == place.pid).collect();
                lines.extend(self.reasons(&own, None));
            }
            End::Away(Peer::Process(Place { host, .. })) => {
                let asked = self.known.asked.iter().find(|asked| asked.host == host);
                let why = asked.and_then(|asked| asked.error.as_deref()).unwrap_or_default();
                lines.push(format!("host {host} has not answered: {why}"));
            }
            _ => {}
        }
        lines
    }

    fn link(self, link: &Link<'_>) -> String {
        let Waiting { r#for, peer, waited_ms, .. } = link.wait;
        let (who, wait) = (self.process(link.place), who_waits(link.wait, ""));
        let what = r#for.of_peer(&self.peer(Peer::of(peer)));
        format!("{who}: {wait} for {what}, for {}", lasted(*waited_ms))
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
                lines.extend(reason.map(|reason| format!("{reason} ({})", self.peer(Peer::of(&c.peer)))));
            }
        }
        let mut known = BTreeSet::new();
        lines.retain(|line| known.insert(line.clone()));
        lines.truncate(SHOWN);
        lines
    }

    fn next(self, end: &End<'_>, is_of_data: bool) -> String {
        let normal = if is_of_data { "nothing, if that process computes; otherwise: " } else { "" };
        match *end {
            End::Own(place, Awaited::Rail, _) => {
                format!("links, cables and addresses of these ports: \"mpib doctor\"{}", self.there(place))
            }
            End::Own(place, Awaited::Acknowledgements, Peer::Process(Place { host, .. })) => format!(
                "whether host {host} is alive, and the path to it: \"mpib doctor {host}\"{}",
                self.there(place)
            ),
            End::Own(place, ..) => {
                let Place { pid, .. } = place;
                format!("work requests in flight on each rail: \"mpib stats {pid}\"{}", self.there(place))
            }
            End::Away(Peer::Process(Place { host, pid })) => format!(
                "{normal}\"mpib why {pid}\" on host {host}, or \"mpib doctor --listen\" there and this again"
            ),
            End::Away(Peer::Named(_)) => format!("{normal}\"mpib why\" on the peer's host"),
            End::Unseen(place) => {
                let who = if self.known.is_here(place) { "this user" } else { "the agent or doctor there" };
                format!(
                    "{normal}process {} has no statistics page that {who} may read: another user or container, or \
                     it has ended",
                    place.pid
                )
            }
            End::Held(place, state) => remedy(state, place.pid, &self.there(place)),
            End::Moves(place) => format!("{normal}\"mpib stats {}\"; {}", place.pid, self.stack(place)),
            End::Silent(place) => format!("{normal}{}", self.stack(place)),
            End::Circle(ref places) => format!(
                "{normal}in which operation each of them is: \"py-spy dump --pid\" {}",
                list(&pids(places))
            ),
        }
    }

    /// Returns where a command is to run, if not here.
    fn there(self, place: Place<'_>) -> String {
        if self.known.is_here(place) { String::new() } else { format!(" on host {}", place.host) }
    }

    fn stack(self, place: Place<'_>) -> String {
        let Place { pid, .. } = place;
        format!("what it does: \"py-spy dump --pid {pid}\" or \"gdb -p {pid}\"{}", self.there(place))
    }

    /// Names a process.
    pub(super) fn process(self, place: Place<'_>) -> String {
        let name = match self.known.is_here(place) {
            true => format!("process {}", place.pid),
            false => format!("host {}, pid {}", place.host, place.pid),
        };
        match self.known.process(place) {
            Some(process) => format!("{name} ({})", process.command),
            None => name,
        }
    }

    /// Names a process of this host.
    pub(super) fn own(self, process: &Process<'_>) -> String {
        self.process(self.known.here(process.pid()))
    }

    pub(super) fn at_ms(self) -> u64 {
        self.known.own.at_ms
    }

    fn peer(self, peer: Peer<'_>) -> String {
        match peer {
            Peer::Process(place) => self.process(place),
            Peer::Named(name) => name.to_owned(),
        }
    }
}

/// Returns what to do about a process that the kernel does not run.
pub(super) fn remedy(state: State, pid: u32, there: &str) -> String {
    match state {
        State::Stopped => format!("\"kill -CONT {pid}\"{there}, unless somebody has stopped it on purpose"),
        _ => format!("who holds it: \"cat /proc/{pid}/status /proc/{pid}/stack\"{there}"),
    }
}

/// Returns which connections wait, with what stands between, and the verb.
fn who_waits(wait: &Waiting, between: &str) -> String {
    connections(wait.waiting, wait.of, between, ["waits", "wait"])
}

fn pids(places: &[Place<'_>]) -> Vec<u32> {
    places.iter().map(|place| place.pid).collect()
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
