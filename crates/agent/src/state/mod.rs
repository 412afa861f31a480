//! The state of the agent, and every decision.

mod budget;
mod decide;
mod operate;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use budget::Budget;
pub use budget::TooMany;
use decide::{Measured, scales};
use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::{ENTRIES, HintsWriter, Register, SHARE_ONE, Status};

use crate::config::Config;
use crate::events::Events;
use crate::kept::{Kept, KeptDrain, KeptShare};
pub use crate::process::Peer;
use crate::process::{Flows, Pair, Process};
pub use crate::snapshot::{DrainView, FlowView, ProcessView, Snapshot};
pub use operate::Order;

/// Most flows that are shown: all of 32 processes.
const FLOWS_SHOWN: usize = 32 * ENTRIES;

/// Identifies a process: one connection of the socket.
pub type ProcessId = u64;

/// The state of the agent. It has no socket and no clock.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    processes: BTreeMap<ProcessId, Process>,
    /// What the measured policy knows of each process.
    measured: BTreeMap<ProcessId, Measured>,
    next: ProcessId,
    budget: Budget,
    /// Processes that have made room for others, until the server takes them.
    displaced: Vec<(ProcessId, Owner)>,
    /// The hint file, for plugins without a memory file, and its flows.
    hints: Option<HintsWriter>,
    plain: Flows,
    /// Ports that were taken out of use, or back into it, other than by the configuration.
    drains: BTreeMap<String, KeptDrain>,
    /// Shares that another program has set.
    external: BTreeMap<Pair, u16>,
    /// What outlives a restart has changed since it was last asked for.
    kept_changed: bool,
    events: Events,
}

impl Agent {
    /// Makes the state without processes. `hints` is the hint file, if plugins without a memory
    /// file are served; `kept` is what an earlier agent has left.
    pub fn new(config: Config, hints: Option<HintsWriter>, kept: Kept) -> Self {
        let shares = kept.shares.into_iter().map(|k| ((k.source, k.destination), k.share.min(SHARE_ONE)));
        let mut agent = Self {
            config,
            processes: BTreeMap::new(),
            measured: BTreeMap::new(),
            next: 1,
            budget: Budget::default(),
            displaced: Vec::new(),
            hints,
            plain: Flows::default(),
            drains: kept.drains,
            external: shares.collect(),
            kept_changed: false,
            events: Events::default(),
        };
        agent.forget_needless_drains();
        agent
    }

    /// Returns the configuration in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds a process that has connected.
    ///
    /// # Errors
    /// Its user has too many.
    pub fn connect(&mut self, peer: Peer) -> Result<ProcessId, TooMany> {
        if let Some(most) = self.budget.process(&peer.owner, &self.config.limits)? {
            // The newest: who floods has it.
            self.displace(&most, |id, _| id);
        }
        self.budget.processes.add(&peer.owner, 1);
        let id = self.next;
        self.next += 1;
        self.processes.insert(id, Process::new(peer));
        self.measured.insert(id, Measured::default());
        Ok(id)
    }

    /// Removes a process with all its connections.
    pub fn disconnect(&mut self, id: ProcessId) {
        self.measured.remove(&id);
        let Some(process) = self.processes.remove(&id) else { return };
        self.budget.processes.remove(&process.peer.owner, 1);
        self.budget.connections.remove(&process.peer.owner, process.connections());
        for pair in process.plain() {
            self.remove_plain(pair);
        }
    }

    /// Removes the greatest process of an owner.
    fn displace<K: Ord>(&mut self, owner: &Owner, size: impl Fn(ProcessId, &Process) -> K) {
        let own = self.processes.iter().filter(|(_, process)| process.peer.owner == *owner);
        let greatest = own.max_by_key(|(id, process)| size(**id, process)).map(|(id, _)| *id);
        if let Some(id) = greatest {
            self.disconnect(id);
            self.displaced.push((id, owner.clone()));
        }
    }

    /// Returns the processes that have made room for others since the last call, with their owners.
    pub fn take_displaced(&mut self) -> Vec<(ProcessId, Owner)> {
        std::mem::take(&mut self.displaced)
    }

    /// Registers a connection, in the memory file or in the hint file. Returns the slot.
    ///
    /// # Errors
    /// The status for the answer.
    pub fn register(&mut self, id: ProcessId, register: &Register, takes_memory: bool) -> Result<u8, Status> {
        let limits = self.config.limits;
        let (pair, conn_id) = ((register.sout_src, register.sout_dst), register.conn_id);
        let process = self.processes.get(&id).ok_or(Status::INVALID_REQUEST)?;
        if process.has(conn_id) {
            return Err(Status::INVALID_REQUEST);
        }
        let owner = process.peer.owner.clone();
        let from = self.budget.connection(&owner, process.connections(), &limits)?;
        let drained = self.drained();
        let share = self.wanted(id, process, pair, &drained);
        let ports = scales(&drained);
        let process = self.processes.get_mut(&id).ok_or(Status::INVALID_REQUEST)?;
        let slot = if takes_memory {
            process.register(conn_id, pair, &ports, || share)?
        } else {
            let hints = self.hints.as_mut().ok_or(Status::NO_FREE_SLOT)?;
            let slot = self.plain.add(hints, pair, || share).ok_or(Status::NO_FREE_SLOT)?;
            process.note_plain(conn_id, pair);
            slot
        };
        if let Some(most) = from {
            self.displace(&most, |_, process| process.connections());
        }
        self.budget.connections.add(&owner, 1);
        Ok(slot)
    }

    /// Removes a connection.
    pub fn deregister(&mut self, id: ProcessId, conn_id: u32) -> Status {
        let process = self.processes.get_mut(&id);
        let removed =
            process.and_then(|process| Some((process.peer.owner.clone(), process.deregister(conn_id)?)));
        match removed {
            Some((owner, (pair, plain))) => {
                self.budget.connections.remove(&owner, 1);
                if plain {
                    self.remove_plain(pair);
                }
                Status::SUCCESS
            }
            None => Status::INVALID_REQUEST,
        }
    }

    /// Prepares the memory file of a process that registers no connection.
    pub fn attach(&mut self, id: ProcessId) -> Status {
        let ports = scales(&self.drained());
        match self.processes.get_mut(&id).map(|process| process.memory(&ports).map(drop)) {
            Some(Ok(())) => Status::SUCCESS,
            Some(Err(status)) => status,
            None => Status::INVALID_REQUEST,
        }
    }

    /// Returns a descriptor of the process's memory file.
    pub fn descriptor(&self, id: ProcessId) -> Option<OwnedFd> {
        self.processes.get(&id)?.descriptor()
    }

    /// Returns the processes that must be sent PORTS CHANGED, once each.
    pub fn ports_changed(&mut self) -> Vec<ProcessId> {
        self.processes
            .iter_mut()
            .filter_map(|(id, process)| process.take_ports_changed().then_some(*id))
            .collect()
    }

    /// Returns the registered processes.
    pub fn processes(&self) -> impl Iterator<Item = (ProcessId, Peer)> {
        self.processes.iter().map(|(id, process)| (*id, process.peer.clone()))
    }

    /// Returns the number of processes that have registered a connection or have a memory file, and
    /// have passed no statistics page.
    pub fn without_page(&self) -> usize {
        self.processes.values().filter(|process| process.is_served() && !process.has_page).count()
    }

    /// Returns what a restarted agent must know if that has changed since the last call.
    pub fn changed_kept(&mut self) -> Option<Kept> {
        std::mem::take(&mut self.kept_changed).then(|| self.kept())
    }

    /// Returns what a restarted agent must know.
    pub fn kept(&self) -> Kept {
        let shares = self.external.iter();
        let shares = shares.map(|((source, destination), share)| KeptShare {
            source: *source,
            destination: *destination,
            share: *share,
        });
        Kept { drains: self.drains.clone(), shares: shares.collect() }
    }

    /// Returns everything for display.
    pub fn snapshot(&self) -> Snapshot {
        let most = FLOWS_SHOWN / self.processes.len().max(1);
        let processes = self.processes.iter().map(|(id, process)| {
            let Measured { goodput, share, used } = self.measured.get(id).copied().unwrap_or_default();
            ProcessView {
                pid: process.peer.pid,
                uid: process.peer.uid,
                connections: process.connections(),
                page: process.has_page,
                ports: process.ports.clone(),
                goodput_sout: Some(goodput.sout).filter(|rate| *rate > 0),
                goodput_sup: Some(goodput.sup).filter(|rate| *rate > 0),
                measured_share: share,
                used_share: used,
                flows: process.flows.view(most),
                flows_not_shown: process.flows.len().saturating_sub(most),
            }
        });
        Snapshot {
            policy: self.config.policy,
            drained: self.drained().into_iter().collect(),
            drains: self.drains(),
            processes: processes.collect(),
            plain_flows: self.plain.view(ENTRIES),
            events: self.events.all(),
        }
    }

    fn remove_plain(&mut self, pair: Pair) {
        if let Some(hints) = &mut self.hints {
            self.plain.remove(hints, pair);
        }
    }
}

#[cfg(test)]
mod tests;
