//! What flows and ports get.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::{PortScale, SHARE_ONE};

use super::{Agent, ProcessId};
use crate::config::Policy;
use crate::observe::Observation;
use crate::policy::{Goodput, next_share};
use crate::process::{Pair, Process};

/// What the policy measured knows of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    pub(super) goodput: Goodput,
    /// The share of all flows of the process.
    pub(super) share: Option<u16>,
    /// The share that the process has used last.
    pub(super) used: Option<u16>,
}

impl Agent {
    /// Takes what the statistics of a process show, `elapsed` after those before.
    pub fn observe(&mut self, id: ProcessId, seen: &Observation, elapsed: Duration) {
        let (Some(process), Some(measured)) = (self.processes.get_mut(&id), self.measured.get_mut(&id))
        else {
            return;
        };
        process.has_page = true;
        if seen.ports.is_some() {
            process.ports.clone_from(&seen.ports);
        }
        measured.used = seen.share.or(measured.used);
        measured.goodput.update(seen.goodput, seen.is_full);
        if self.config.measures() {
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

    /// Returns the share that a flow should have.
    pub(super) fn wanted(
        &self,
        id: ProcessId,
        process: &Process,
        pair: Pair,
        drained: &BTreeSet<String>,
    ) -> u16 {
        let (policy, rule) = self.config.rule(pair.0, pair.1);
        if let Some([sout, sup]) = &process.ports {
            match (drained.contains(sout), drained.contains(sup)) {
                (false, true) => return 0,
                (true, false) => return SHARE_ONE,
                // With both out of use, the data must go somewhere: as usual.
                _ => {}
            }
        }
        match policy {
            Policy::Static => rule,
            Policy::External => self.external.get(&pair).copied().unwrap_or(rule),
            Policy::Measured => self.measured.get(&id).and_then(|m| m.share).unwrap_or(rule),
            Policy::Drain => 0,
        }
    }

    /// Writes shares and scales wherever they have changed.
    pub(super) fn apply(&mut self) {
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
}

/// Returns the entries of the memory file for ports that are out of use.
pub(super) fn scales(drained: &BTreeSet<String>) -> Vec<PortScale> {
    drained.iter().map(|name| PortScale { name: name.clone(), scale: 0 }).collect()
}
