//! Sums over processes, and the counts of processes that have ended.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Failover, MAX_PORTS, Port, TwoWays};
use crate::sums::add_all;
use crate::{Count, Host, PortCounts, Process};

/// Most ports for which the ledger keeps the counts of ended processes.
const MAX_ENDED: usize = 4 * MAX_PORTS;

/// What processes have counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    ports: BTreeMap<String, PortCounts>,
    totals: TwoWays,
    failover: Failover,
    events: BTreeMap<String, Count>,
    forged_frames: Count,
    opened: Count,
}

/// Keeps the counts of processes that have ended: the sums of a host never decrease while the
/// ledger exists. What a process counts after its last reading is lost.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The last reading of each process, without its connections.
    known: HashMap<(u32, u64, usize), Counted>,
    /// The processes that have ended.
    ended: Counted,
}

impl Ledger {
    /// Adds the counts of ended processes to the sums of a new reading.
    pub fn update(&mut self, host: &mut Host) {
        let now: HashMap<_, _> = keys(host).into_iter().zip(host.processes.iter().map(Counted::of)).collect();
        for (key, last) in std::mem::take(&mut self.known) {
            if !now.contains_key(&key) {
                self.ended.add(&last);
            }
        }
        self.known = now;
        host.add_counted(&self.ended);
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
    fn of(process: &Process) -> Self {
        let Process { totals, failover, events, forged_frames, opened, ports, .. } = process;
        let ports = ports.iter().map(|port| (port.name.clone(), port.counts.clone())).collect();
        let (totals, failover, forged_frames, opened) = (*totals, *failover, *forged_frames, *opened);
        Self { ports, totals, failover, events: events.clone(), forged_frames, opened }
    }

    fn add(&mut self, other: &Self) {
        for (name, counts) in &other.ports {
            // A process may invent names, again and again.
            if self.ports.len() < MAX_ENDED || self.ports.contains_key(name) {
                self.ports.entry(name.clone()).or_default().add(counts);
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
    /// `forged_frames`, `opened`.
    pub fn sum(&mut self) {
        let mut ports: BTreeMap<String, Port> = BTreeMap::new();
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
        self.ports = ports.into_values().take(MAX_PORTS).collect();
    }

    /// Adds the counts of ended processes.
    fn add_counted(&mut self, ended: &Counted) {
        self.totals.add(&ended.totals);
        self.failover.add(&ended.failover);
        add_all(&mut self.events, &ended.events);
        self.forged_frames += ended.forged_frames;
        self.opened += ended.opened;
        for (name, counts) in &ended.ports {
            match self.ports.binary_search_by(|port| port.name.cmp(name)) {
                Ok(at) => self.ports[at].counts.add(counts),
                // A full list keeps the ports that processes use.
                Err(_) if self.ports.len() >= MAX_PORTS => self.ports_not_shown += 1,
                Err(at) => {
                    let mut port = Port::unused(name);
                    port.counts.add(counts);
                    self.ports.insert(at, port);
                }
            }
        }
    }
}
