//! Reads pages and adapters into a document.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nccl_net_mpib_agent_iface::stats::{
    self, Event, Lack, NoPage, Reason, STALL_BOUNDS_MS, Statistics, StatsPage,
};
use nix::unistd::{Uid, User};

use crate::budget::{Budget, in_turn};
use crate::verdict::{OTHER, Verdict};
use crate::{
    Communicator, Connection, Count, Failover, Host, Owner, Port, PortCounts, Process, Rail, Stalls, State,
    Totals, TwoWays, Wait, jobs, sysfs,
};

/// Version of the document's format.
const FORMAT: u32 = 1;

/// Where readings come from.
#[derive(Debug)]
pub struct Source {
    /// The kernel's list of adapters.
    adapters: PathBuf,
    /// Names of users.
    users: HashMap<u32, Option<String>>,
}

/// A page that a process has passed.
#[derive(Debug, Clone, Copy)]
pub struct Passed<'a> {
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Who is charged for it.
    pub owner: &'a Owner,
    /// The page.
    pub page: &'a StatsPage,
}

impl Default for Source {
    fn default() -> Self {
        Self::new("/sys/class/infiniband")
    }
}

impl Source {
    /// Returns a source with another folder of adapters.
    pub fn new(adapters: impl Into<PathBuf>) -> Self {
        Self { adapters: adapters.into(), users: HashMap::new() }
    }

    /// Returns the ports that the kernel has, as HCA and port.
    pub fn ports(&self) -> BTreeSet<String> {
        sysfs::ports(&self.adapters)
    }

    /// Returns the folder of adapters.
    pub fn adapters(&self) -> &Path {
        &self.adapters
    }

    /// Reads all processes that this user may inspect. Rates are not computed.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn host(&mut self) -> Result<Host, NoPage> {
        let all = stats::processes().map_err(|source| NoPage::Io { path: "/proc".into(), source })?;
        Ok(self.read(&all, Budget::default()))
    }

    /// Reads those of these processes that have a page. Rates are not computed.
    pub fn processes(&mut self, pids: &[u32]) -> Host {
        self.read(pids, Budget::default())
    }

    fn read(&mut self, all: &[u32], mut budget: Budget) -> Host {
        let mut host = new_host();
        let all = all.iter().map(|&pid| Known::of(pid));
        for known in in_turn(all, |known| known.owner.clone()) {
            let (pid, owner) = (known.pid, known.owner.clone());
            if !budget.has_room(&owner) {
                host.not_inspected += 1;
                continue;
            }
            match stats::pages_of(pid) {
                Ok(pages) => self.add(&mut host, known, &pages, &mut budget, true),
                // The process has ended, or it has no page.
                Err(NoPage::NoProcess | NoPage::None) => {}
                Err(NoPage::NotPermitted) => host.not_permitted += 1,
                Err(e) => {
                    budget.add_page(&owner, 0, 0);
                    host.unreadable.push(format!("process {pid}: {e}"));
                }
            }
        }
        self.finish(host, &self.ports())
    }

    /// Reads pages that processes have passed to this one. Rates are not computed.
    pub fn passed(&mut self, pages: &[Passed<'_>]) -> Host {
        let mut host = new_host();
        let mut budget = Budget::of_agent(pages.iter().map(|passed| passed.owner));
        for Passed { pid, uid, owner, page } in in_turn(pages, |passed| passed.owner.clone()) {
            if budget.has_room(owner) {
                let known = Known { pid: *pid, uid: *uid, owner: (*owner).clone() };
                // An agent reads pages of all users again and again.
                self.add(&mut host, known, [*page], &mut budget, false);
            } else {
                host.not_inspected += 1;
            }
        }
        // It has its connection to this process. The kernel may hide it, or show another one.
        for process in host.processes.iter_mut().filter(|process| process.state == State::Absent) {
            process.state = State::Alive;
        }
        self.finish(host, &self.ports())
    }

    /// Reads one process. Rates are not computed.
    ///
    /// # Errors
    /// The process has no page that can be read.
    pub fn process(&mut self, pid: u32) -> Result<Host, NoPage> {
        let mut host = new_host();
        self.add(&mut host, Known::of(pid), &stats::pages_of(pid)?, &mut Budget::default(), true);
        Ok(self.finish(host, &BTreeSet::new()))
    }

    fn add<'a>(
        &mut self,
        host: &mut Host,
        Known { pid, uid, owner }: Known,
        pages: impl IntoIterator<Item = &'a StatsPage>,
        budget: &mut Budget,
        has_operations: bool,
    ) {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = command.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let user = self.users.entry(uid).or_insert_with(|| name_of(uid)).clone();
        let known = Process {
            pid,
            uid,
            user,
            command,
            state: State::of(pid),
            owner: Some(owner.clone()),
            ..Process::default()
        };
        for page in pages {
            // Before the ports: each rail of an operation has its port there then.
            let communicators = if has_operations { page.communicators() } else { Vec::new() };
            let (read, now) = (page.read(), stats::monotonic());
            let of_page = |read_of: &stats::Communicator| Communicator::of(read_of, &read.ports, now);
            let communicators = communicators.iter().map(of_page).collect();
            let mut process = Process { communicators, ..process(known.clone(), read) };
            process.judge();
            let (ports, kept) = budget.add_page(&owner, process.ports.len(), process.connections.len());
            let left = u32::try_from(process.ports.len() - ports).unwrap_or(u32::MAX);
            process.rails_not_in_ports = process.rails_not_in_ports.saturating_add(left);
            process.ports.truncate(ports);
            let left = u32::try_from(process.connections.len() - kept).unwrap_or(u32::MAX);
            process.not_shown = process.not_shown.saturating_add(left);
            keep(&mut process.connections, kept, host.at_ms);
            // The document lives for seconds, and most of a page can be left out.
            process.ports.shrink_to_fit();
            process.connections.shrink_to_fit();
            host.processes.push(process);
        }
    }

    fn finish(&self, mut host: Host, real: &BTreeSet<String>) -> Host {
        host.processes.sort_by_key(|process| process.pid);
        host.sum(real);
        host.verdict = Verdict::of(&host);
        host.jobs = jobs::of(&host, &BTreeMap::new());
        for port in &mut host.ports {
            port.adapter = sysfs::adapter(&self.adapters, port);
        }
        host
    }
}

/// Keeps this many connections: first those that people look for, wherever they are in the page.
fn keep(connections: &mut Vec<Connection>, kept: usize, at_ms: u64) {
    if kept < connections.len() {
        connections.sort_by_key(|connection| !connection.is_troubled(at_ms));
        connections.truncate(kept);
        connections.sort_by_key(|connection| connection.index);
    }
}

/// Returns the name of this host; empty if the kernel does not show it.
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim_end().to_owned()
}

fn new_host() -> Host {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Host {
        format: FORMAT,
        at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        hostname: hostname(),
        mpib: env!("CARGO_PKG_VERSION").into(),
        ..Host::default()
    }
}

/// A process that may have a page.
struct Known {
    pid: u32,
    uid: u32,
    owner: Owner,
}

impl Known {
    /// Asks the kernel. A process that has ended is root's.
    fn of(pid: u32) -> Self {
        let uid = fs::metadata(format!("/proc/{pid}")).map_or(0, |process| process.uid());
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self { pid, uid, owner: Owner::of(uid, &cgroups) }
    }
}

fn name_of(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name)
}

/// ns since 1970 as ms.
fn ms(nanos: u64) -> u64 {
    nanos / 1_000_000
}

/// ns of a sum as ms.
fn sum_ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

fn word(word: Option<&'static str>) -> String {
    word.unwrap_or("?").into()
}

fn process(known: Process, read: Statistics) -> Process {
    let Statistics { summary, totals: [send, recv], ports, connections } = read;
    let events = (0u8..).zip(summary.events);
    let mut ports: Vec<Port> = ports.into_iter().map(port).collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    Process {
        job: Some(summary.job).filter(|job| !job.is_empty()),
        plugin: summary.plugin,
        made_ms: ms(summary.made),
        opened: Count(summary.opened),
        open: summary.open,
        not_shown: summary.hidden,
        substituted: summary.substituted,
        events: events
            .filter_map(|(code, n)| Some((Event::of(code)?.word().into(), Count(n))).filter(|_| n > 0))
            .collect(),
        forged_frames: Count(summary.forged),
        failover: Failover {
            episodes: Count(summary.episodes),
            bytes_sent_again: Count(summary.replayed),
            stalled_ms: sum_ms(summary.stalled),
            returns: Count(summary.returns),
        },
        totals: TwoWays { send: totals(&send), recv: totals(&recv) },
        ports,
        rails_not_in_ports: summary.ports_missing,
        connections: connections.into_iter().map(connection).collect(),
        ..known
    }
}

fn totals(t: &stats::Totals) -> Totals {
    Totals {
        requests: Count(t.requests),
        done: Count(t.done),
        messages: Count(t.messages),
        bytes: Count(t.bytes),
        waits_for_peer: Count(t.waits_peer),
        waits_for_queue: Count(t.waits_queue),
        errors: Count(t.errors),
        ..Totals::default()
    }
}

fn port(p: stats::Port) -> Port {
    let reasons = Reason::ALL.iter().zip(p.episodes);
    Port {
        state: word(p.state.map(|state| state.word())),
        since_ms: ms(p.since),
        cause: p.cause,
        connections: p.connections,
        goodput: p.goodput.map(Count),
        weight: p.weight,
        scale: p.scale,
        counts: PortCounts {
            bytes_sent: Count(p.totals.bytes),
            parts_sent: Count(p.totals.parts_sent),
            parts_received: Count(p.totals.parts_received),
            work_requests: Count(p.totals.posted),
            work_requests_done: Count(p.totals.done),
            errors: Count(p.totals.errors),
            episodes: reasons.map(|(reason, n)| (reason.word().into(), Count(n))).collect(),
            bytes_sent_again: Count(p.replayed),
            stalls: Stalls {
                sum_ms: sum_ms(p.stalled),
                bounds_ms: STALL_BOUNDS_MS.to_vec(),
                counts: p.stalls.map(Count).to_vec(),
            },
        },
        ..Port::unused(&p.name)
    }
}

fn connection(c: stats::Connection) -> Connection {
    Connection {
        index: c.index,
        generation: Count(c.generation),
        state: word(c.state.map(|s| s.word())),
        direction: word(c.direction.map(|d| d.word())),
        islands: word(c.islands.map(|i| i.word())),
        data: word(c.data.map(|d| d.word())),
        traffic: word(c.traffic.map(|t| t.word())),
        since_ms: ms(c.since),
        requests: Count(c.totals.requests),
        done: Count(c.totals.done),
        in_flight: Count(c.in_flight()),
        messages: Count(c.totals.messages),
        bytes: Count(c.totals.bytes),
        messages_per_second: None,
        bytes_per_second: None,
        waits_for_peer: Count(c.totals.waits_peer),
        waits_for_queue: Count(c.totals.waits_queue),
        wait: c.wait.map(|wait| Wait {
            r#for: wait.what.word().into(),
            what: wait.what.of_peer(c.direction, &c.peer),
            since_ms: wait.since_ms,
        }),
        errors: Count(c.totals.errors),
        failed_at_ms: c.failed_at.map(ms),
        share: c.share,
        rails: c.rails.into_iter().map(rail).collect(),
        peer: c.peer,
        reason: c.reason,
    }
}

fn rail(r: stats::Rail) -> Rail {
    Rail {
        work_requests_in_flight: Count(r.in_flight()),
        name: r.name,
        role: r.role,
        bytes: r.bytes.map(Count),
        bytes_per_second: None,
        parts: Count(r.parts),
        work_requests: Count(r.posted),
        work_requests_done: Count(r.done),
        errors: Count(r.errors),
        given_up_at_ms: r.given_up_at.map(ms),
        missing: r.missing,
        lacks: r.given_up_at.map(|_| r.lack.map_or(OTHER, Lack::word).into()),
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
