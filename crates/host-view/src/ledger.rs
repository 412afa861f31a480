//! Sums over processes, and the counts of processes that have ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::jobs::{self, Key};
use crate::model::{Failover, MAX_PORTS, Port, TwoWays};
use crate::sums::{UNUSED, add_all};
use crate::{Count, Host, Owner, PortCounts, Process, Verdict};

/// Most ports for which the ledger keeps the counts of ended processes.
const MAX_ENDED: usize = 4 * MAX_PORTS;
/// How long it keeps those of ports that the kernel does not have, in ms: a day.
const KEPT_MS: u64 = 24 * 3600 * 1000;

/// What processes have counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    /// With the time of the latest reading that had them.
    ports: BTreeMap<String, (PortCounts, u64)>,
    totals: TwoWays,
    failover: Failover,
    events: BTreeMap<String, Count>,
    forged_frames: Count,
    opened: Count,
}

/// Keeps the counts of processes that have ended: the sums of a host never decrease while the
/// ledger exists. What a process counts after its last reading is lost. It also knows which ports
/// have had a link.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The last reading of each process, without its connections, and its job.
    known: HashMap<(u32, u64, usize), (Counted, Option<Key>)>,
    /// The processes that have ended.
    ended: Counted,
    /// What ended processes of jobs have counted that have others.
    jobs: BTreeMap<Key, TwoWays>,
    /// When the link of a port was last seen up.
    linked: BTreeMap<String, u64>,
}

impl Ledger {
    /// Adds the counts of ended processes to the sums of a new reading, and marks ports that have lost
    /// their link. `real` are the ports that the kernel has: others never take their places.
    pub fn update(&mut self, host: &mut Host, real: &BTreeSet<String>) {
        let at = host.at_ms;
        let counted = host.processes.iter().map(|process| (Counted::of(process, at), jobs::key(process)));
        let now: HashMap<_, _> = keys(host).into_iter().zip(counted).collect();
        for (key, (last, job)) in std::mem::take(&mut self.known) {
            if !now.contains_key(&key) {
                self.ended.add(&last, real);
                if let Some(job) = job {
                    self.jobs.entry(job).or_default().add(&last.totals);
                }
            }
        }
        self.known = now;
        let present: BTreeSet<_> = self.known.values().filter_map(|(_, job)| job.as_ref()).collect();
        self.jobs.retain(|job, _| present.contains(job));
        self.ended.ports.retain(|name, (_, last)| real.contains(name) || *last + KEPT_MS > at);
        host.add_counted(&self.ended, real);
        self.mark_lost_links(host);
        host.jobs = jobs::of(host, &self.jobs);
        host.verdict = Verdict::of(host);
    }

    /// Only the kernel's ports have an adapter, so processes cannot make this grow.
    fn mark_lost_links(&mut self, host: &mut Host) {
        for port in &mut host.ports {
            let Some(adapter) = &mut port.adapter else { continue };
            match adapter.is_up() {
                Some(true) => drop(self.linked.insert(port.name.clone(), host.at_ms)),
                Some(false) if !adapter.set_down => {
                    adapter.link_lost_ms = self.linked.get(&port.name).copied();
                }
                _ => {}
            }
        }
    }
}

/// Returns the keys of a reading's processes: a process may have several pages made at one time.
fn keys(host: &Host) -> Vec<(u32, u64, usize)> {
    let mut seen: HashMap<(u32, u64), usize> = HashMap::new();
    let key = |process: &Process| {
        let number = seen.entry((process.pid, process.made_ms)).or_default();
        *number += 1;
        (process.pid, process.made_ms, *number)
    };
    host.processes.iter().map(key).collect()
}

impl Counted {
    fn of(process: &Process, at: u64) -> Self {
        let Process { totals, failover, events, forged_frames, opened, ports, .. } = process;
        let ports = ports.iter().map(|port| (port.name.clone(), (port.counts.clone(), at))).collect();
        let (totals, failover, forged_frames, opened) = (*totals, *failover, *forged_frames, *opened);
        Self { ports, totals, failover, events: events.clone(), forged_frames, opened }
    }

    fn add(&mut self, other: &Self, real: &BTreeSet<String>) {
        for (name, (counts, at)) in &other.ports {
            // A process may invent names, again and again.
            if self.ports.len() >= MAX_ENDED && real.contains(name) && !self.ports.contains_key(name) {
                let invented = self.ports.keys().find(|known| !real.contains(*known)).cloned();
                invented.map(|invented| self.ports.remove(&invented));
            }
            if self.ports.len() < MAX_ENDED || self.ports.contains_key(name) {
                let (sum, last) = self.ports.entry(name.clone()).or_default();
                sum.add(counts);
                *last = (*last).max(*at);
            }
        }
        self.totals.add(&other.totals);
        self.failover.add(&other.failover);
        add_all(&mut self.events, &other.events);
        self.forged_frames += other.forged_frames;
        self.opened += other.opened;
    }
}

impl Host {
    /// Computes the sums over the processes: `ports`, `totals`, `failover`, `events`,
    /// `forged_frames`, `opened`. All ports that the kernel has are among `ports`, which are `real`. Of
    /// more ports than there is room for, those come first, and of the others each owner has as many as
    /// any other one.
    pub fn sum(&mut self, real: &BTreeSet<String>) {
        let unused = |name: &String| (name.clone(), Port::unused(name));
        let mut ports: BTreeMap<String, Port> = real.iter().map(unused).collect();
        for process in &self.processes {
            self.totals.add(&process.totals);
            self.failover.add(&process.failover);
            add_all(&mut self.events, &process.events);
            self.forged_frames += process.forged_frames;
            self.opened += process.opened;
            for port in &process.ports {
                ports.entry(port.name.clone()).or_insert_with(|| Port::unused(&port.name)).add(port);
            }
        }
        self.ports_not_shown = ports.len().saturating_sub(MAX_PORTS);
        self.ports = ports.into_values().collect();
        if self.ports_not_shown > 0 {
            let ranks = self.ranks(real);
            let rank = |port: &Port| ranks.get(&port.name).copied().unwrap_or(0);
            self.ports.sort_by_key(|port| (rank(port), port.state == UNUSED));
            self.ports.truncate(MAX_PORTS);
            self.ports.sort_by(|a, b| a.name.cmp(&b.name));
        }
    }

    /// Returns the rank of each port of the processes: 0 for those of the kernel, and then the place
    /// among the names of the owner who has it first there.
    fn ranks(&self, real: &BTreeSet<String>) -> HashMap<String, usize> {
        let mut of_owners: BTreeMap<Owner, BTreeSet<&str>> = BTreeMap::new();
        for process in &self.processes {
            let owner = process.owner.clone().unwrap_or(Owner::User(process.uid));
            of_owners.entry(owner).or_default().extend(process.ports.iter().map(|port| &*port.name));
        }
        let mut ranks = HashMap::new();
        for names in of_owners.into_values() {
            let (known, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| real.contains(*name));
            let known = known.into_iter().map(|name| (name, 0));
            for (name, rank) in known.chain(others.into_iter().zip(1..)) {
                let least = ranks.entry(name.to_owned()).or_insert(rank);
                *least = rank.min(*least);
            }
        }
        ranks
    }

    /// Adds the counts of ended processes.
    fn add_counted(&mut self, ended: &Counted, real: &BTreeSet<String>) {
        self.totals.add(&ended.totals);
        self.failover.add(&ended.failover);
        add_all(&mut self.events, &ended.events);
        self.forged_frames += ended.forged_frames;
        self.opened += ended.opened;
        for (name, (counts, _)) in &ended.ports {
            let at = self.ports.partition_point(|port| port.name < *name);
            if let Some(port) = self.ports.get_mut(at).filter(|port| port.name == *name) {
                port.counts.add(counts);
            } else if self.ports.len() < MAX_PORTS {
                let mut port = Port::unused(name);
                port.counts.add(counts);
                self.ports.insert(at, port);
            } else if !real.contains(name) {
                // The sum has counted those of the kernel.
                self.ports_not_shown += 1;
            }
        }
    }
}
