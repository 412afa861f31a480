//! The state of the agent, and every decision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::memory::PORTS;
use nccl_net_mpib_agent_iface::agent::{HintsWriter, PortScale, Register, SHARE_ONE, Status};

use crate::config::{Config, Policy, check_port};
use crate::events::{EventKind, Events};
use crate::kept::{Kept, KeptShare};
use crate::observe::Observation;
use crate::policy::{Goodput, next_share};
pub use crate::process::Peer;
use crate::process::{Flows, Pair, Process};
pub use crate::snapshot::{FlowView, ProcessView, Snapshot};

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
    /// The hint file, for plugins without a memory file, and its flows.
    hints: Option<HintsWriter>,
    plain: Flows,
    /// Ports that were taken out of use, or back into it, other than by the configuration.
    drains: BTreeMap<String, bool>,
    /// Shares that another program has set.
    external: BTreeMap<Pair, u16>,
    /// What outlives a restart has changed since it was last asked for.
    kept_changed: bool,
    events: Events,
}

#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    goodput: Goodput,
    /// The share of all flows of the process.
    share: Option<u16>,
    /// The share that the process has used last.
    used: Option<u16>,
}

/// Why a process is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("user {uid} has {limit} processes already (limits.processes_per_user)")]
pub struct TooMany {
    uid: u32,
    limit: usize,
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
        let limit = self.config.limits.processes_per_user;
        let others = self.processes.values().filter(|p| p.peer.uid == peer.uid).count();
        if peer.uid != 0 && others >= limit {
            return Err(TooMany { uid: peer.uid, limit });
        }
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
        for pair in process.plain() {
            self.remove_plain(pair);
        }
    }

    /// Registers a connection, in the memory file or in the hint file. Returns the slot.
    ///
    /// # Errors
    /// The status for the answer.
    pub fn register(&mut self, id: ProcessId, register: &Register, takes_memory: bool) -> Result<u8, Status> {
        let limit = self.config.limits.connections_per_process;
        let (pair, conn_id) = ((register.sout_src, register.sout_dst), register.conn_id);
        let process = self.processes.get(&id).ok_or(Status::INVALID_REQUEST)?;
        if process.has(conn_id) {
            return Err(Status::INVALID_REQUEST);
        }
        if process.connections() >= limit {
            return Err(Status::NO_FREE_SLOT);
        }
        let drained = self.drained();
        let share = self.wanted(id, process, pair, &drained);
        let ports = scales(&drained);
        let process = self.processes.get_mut(&id).ok_or(Status::INVALID_REQUEST)?;
        if takes_memory {
            return process.register(conn_id, pair, &ports, || share);
        }
        let hints = self.hints.as_mut().ok_or(Status::NO_FREE_SLOT)?;
        let slot = self.plain.add(hints, pair, || share).ok_or(Status::NO_FREE_SLOT)?;
        process.note_plain(conn_id, pair);
        Ok(slot)
    }

    /// Removes a connection.
    pub fn deregister(&mut self, id: ProcessId, conn_id: u32) -> Status {
        match self.processes.get_mut(&id).and_then(|process| process.deregister(conn_id)) {
            Some((pair, plain)) => {
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

    /// Takes a port out of use, or back into it.
    ///
    /// # Errors
    /// A sentence: the text is no port, or too many ports are out of use.
    pub fn drain(&mut self, port: &str, out_of_use: bool) -> Result<(), String> {
        check_port(port)?;
        let drained = self.drained();
        if drained.contains(port) == out_of_use {
            return Ok(());
        }
        if out_of_use && drained.len() >= PORTS {
            return Err(format!("{PORTS} ports are out of use already"));
        }
        self.drains.insert(port.to_owned(), out_of_use);
        self.forget_needless_drains();
        self.note_drain(port, out_of_use);
        self.apply();
        Ok(())
    }

    /// Sets the share of the flows between two SOUT addresses. Returns the number of flows that
    /// there are now.
    ///
    /// # Errors
    /// A sentence: the policy is not `external`, or the share is too large.
    pub fn set_share(
        &mut self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        share: u16,
    ) -> Result<usize, String> {
        if self.config.policy != Policy::External {
            let policy = format!("{:?}", self.config.policy).to_lowercase();
            return Err(format!(
                "the policy {policy:?} decides the shares; they can be set only with policy = \"external\""
            ));
        }
        if share > SHARE_ONE {
            return Err(format!("a share of {share}, expected 0 to {SHARE_ONE}"));
        }
        let pair = (source, destination);
        if self.external.insert(pair, share) != Some(share) {
            self.kept_changed = true;
            let text = format!("flow {source} -> {destination} has share {share} of {SHARE_ONE}");
            self.events.add(EventKind::Share, None, text);
        }
        self.apply();
        let flows = self.processes.values().map(|process| &process.flows).chain([&self.plain]);
        Ok(flows.flat_map(Flows::all).filter(|(flow, ..)| *flow == pair).count())
    }

    /// Uses another configuration.
    pub fn reload(&mut self, config: Config) {
        if self.config == config {
            self.log(String::from("the configuration was read again; nothing has changed"));
            return;
        }
        let before = self.drained();
        self.config = config;
        self.forget_needless_drains();
        self.log(String::from("the configuration was read again and has changed"));
        let now = self.drained();
        now.difference(&before).for_each(|port| self.note_drain(port, true));
        before.difference(&now).for_each(|port| self.note_drain(port, false));
        self.apply();
    }

    /// Adds a line to the log.
    pub fn log(&mut self, text: String) {
        self.events.add(EventKind::Agent, None, text);
    }

    /// Adds an event of a port, which is a line of the log, too.
    pub fn note(&mut self, kind: EventKind, port: &str, text: String) {
        self.events.add(kind, Some(port), text);
    }

    fn note_drain(&mut self, port: &str, out_of_use: bool) {
        let (kind, what) = match out_of_use {
            true => (EventKind::Drained, "out of use"),
            false => (EventKind::Undrained, "in use again"),
        };
        self.note(kind, port, format!("port {port} is {what}"));
    }

    /// Returns the lines of the log since the last call.
    pub fn log_lines(&mut self) -> Vec<String> {
        self.events.unlogged()
    }

    /// Takes what the statistics of a process show, `elapsed` after those before.
    pub fn observe(&mut self, id: ProcessId, seen: &Observation, elapsed: Duration) {
        let (Some(process), Some(measured)) = (self.processes.get_mut(&id), self.measured.get_mut(&id))
        else {
            return;
        };
        if seen.ports.is_some() {
            process.ports.clone_from(&seen.ports);
        }
        measured.used = seen.share.or(measured.used);
        measured.goodput.update(seen.goodput[0], seen.goodput[1]);
        if self.config.policy == Policy::Measured {
            // The first time, flows keep the share that they have.
            let default = self.config.default_share;
            let start =
                measured.share.or(seen.share).unwrap_or(if default == 0 { SHARE_ONE / 2 } else { default });
            measured.share = Some(next_share(start, measured.goodput, elapsed).unwrap_or(start));
        }
        let drained = self.drained();
        if let Some(mut process) = self.processes.remove(&id) {
            self.apply_to(id, &mut process, &drained);
            let plain = process.connections() > 0 && !process.plain().is_empty();
            self.processes.insert(id, process);
            if plain {
                self.apply_plain(&drained);
            }
        }
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
        self.processes.iter().map(|(id, process)| (*id, process.peer))
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
        let processes = self.processes.iter().map(|(id, process)| {
            let Measured { goodput, share, used } = self.measured.get(id).copied().unwrap_or_default();
            ProcessView {
                pid: process.peer.pid,
                uid: process.peer.uid,
                connections: process.connections(),
                ports: process.ports.clone(),
                goodput_sout: Some(goodput.sout).filter(|rate| *rate > 0),
                goodput_sup: Some(goodput.sup).filter(|rate| *rate > 0),
                measured_share: share,
                used_share: used,
                flows: process.flows.view(),
            }
        });
        Snapshot {
            policy: self.config.policy,
            drained: self.drained().into_iter().collect(),
            processes: processes.collect(),
            plain_flows: self.plain.view(),
            events: self.events.all(),
        }
    }

    /// Returns the ports that are out of use.
    fn drained(&self) -> BTreeSet<String> {
        let mut drained: BTreeSet<String> = self.config.drain.iter().cloned().collect();
        for (port, out_of_use) in &self.drains {
            match out_of_use {
                true => drained.insert(port.clone()),
                false => drained.remove(port),
            };
        }
        drained
    }

    /// Forgets what the configuration has, too.
    fn forget_needless_drains(&mut self) {
        self.kept_changed = true;
        let configured = &self.config.drain;
        self.drains.retain(|port, out_of_use| configured.contains(port) != *out_of_use);
    }

    /// Returns the share that a flow should have.
    fn wanted(&self, id: ProcessId, process: &Process, pair: Pair, drained: &BTreeSet<String>) -> u16 {
        if let Some([sout, sup]) = &process.ports {
            match (drained.contains(sout), drained.contains(sup)) {
                (false, true) => return 0,
                (true, false) => return SHARE_ONE,
                // With both out of use, the data must go somewhere: as usual.
                _ => {}
            }
        }
        let rule = self.config.rule(pair.0, pair.1);
        match self.config.policy {
            Policy::Static => rule,
            Policy::External => self.external.get(&pair).copied().unwrap_or(rule),
            Policy::Measured => self.measured.get(&id).and_then(|m| m.share).unwrap_or(rule),
        }
    }

    /// Writes shares and scales wherever they have changed.
    fn apply(&mut self) {
        let drained = self.drained();
        let mut processes = std::mem::take(&mut self.processes);
        for (id, process) in &mut processes {
            self.apply_to(*id, process, &drained);
        }
        self.processes = processes;
        self.apply_plain(&drained);
    }

    /// Writes shares and scales of one process where they have changed.
    fn apply_to(&self, id: ProcessId, process: &mut Process, drained: &BTreeSet<String>) {
        process.set_ports(&scales(drained));
        let pairs: Vec<_> = process.flows.all().map(|(pair, ..)| pair).collect();
        let wanted: BTreeMap<Pair, u16> =
            pairs.into_iter().map(|pair| (pair, self.wanted(id, process, pair, drained))).collect();
        process.set_shares(|pair, now| wanted.get(&pair).copied().unwrap_or(now));
    }

    /// Writes the shares of the hint file where they have changed. Several processes may have a
    /// flow: the first of them decides.
    fn apply_plain(&mut self, drained: &BTreeSet<String>) {
        let mut wanted = BTreeMap::new();
        for (id, process) in &self.processes {
            for pair in process.plain() {
                wanted.entry(pair).or_insert_with(|| self.wanted(*id, process, pair, drained));
            }
        }
        if let Some(hints) = &mut self.hints {
            self.plain.set(hints, |pair, now| wanted.get(&pair).copied().unwrap_or(now));
        }
    }

    fn remove_plain(&mut self, pair: Pair) {
        if let Some(hints) = &mut self.hints {
            self.plain.remove(hints, pair);
        }
    }
}

fn scales(drained: &BTreeSet<String>) -> Vec<PortScale> {
    drained.iter().map(|name| PortScale { name: name.clone(), scale: 0 }).collect()
}

#[cfg(test)]
mod tests;
