//! Sums over the processes of a host.

use std::collections::BTreeMap;

use crate::Count;
use crate::model::{Failover, Port, PortCounts, Totals, TwoWays};

impl Port {
    /// Begins the sum of a host's port.
    pub(crate) fn unused(name: &str) -> Self {
        let (device, port) = name.rsplit_once(':').unwrap_or((name, ""));
        let port = port.parse().unwrap_or(0);
        Self {
            name: name.into(),
            device: device.into(),
            port,
            state: UNUSED.into(),
            scale: 1024,
            ..Self::default()
        }
    }

    /// Adds a process's view of the same port.
    pub(crate) fn add(&mut self, other: &Self) {
        if rank(&other.state) > rank(&self.state) {
            (self.state, self.since_ms) = (other.state.clone(), other.since_ms);
            self.cause.clone_from(&other.cause);
        }
        self.connections = self.connections.saturating_add(other.connections);
        self.goodput = [self.goodput, other.goodput].into_iter().flatten().reduce(|a, b| a + b);
        self.weight = self.weight.max(other.weight);
        self.scale = self.scale.min(other.scale);
        self.counts.add(&other.counts);
    }
}

/// The state of a port that no process has.
pub(crate) const UNUSED: &str = "unused";

/// Orders states from good to bad.
fn rank(state: &str) -> usize {
    [UNUSED, "healthy", "probing", "suspect", "down"].iter().position(|known| *known == state).unwrap_or(0)
}

impl PortCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes_sent += other.bytes_sent;
        self.parts_sent += other.parts_sent;
        self.parts_received += other.parts_received;
        self.work_requests += other.work_requests;
        self.work_requests_done += other.work_requests_done;
        self.errors += other.errors;
        self.bytes_sent_again += other.bytes_sent_again;
        add_all(&mut self.episodes, &other.episodes);
        let (stalls, more) = (&mut self.stalls, &other.stalls);
        stalls.sum_ms += more.sum_ms;
        if stalls.counts.is_empty() {
            (stalls.bounds_ms, stalls.counts) = (more.bounds_ms.clone(), more.counts.clone());
        } else {
            stalls.counts.iter_mut().zip(&more.counts).for_each(|(sum, n)| *sum += *n);
        }
    }
}

impl Failover {
    pub(crate) fn add(&mut self, other: &Self) {
        self.episodes += other.episodes;
        self.bytes_sent_again += other.bytes_sent_again;
        self.stalled_ms += other.stalled_ms;
        self.returns += other.returns;
    }
}

impl TwoWays {
    pub(crate) fn add(&mut self, other: &Self) {
        self.send.add(&other.send);
        self.recv.add(&other.recv);
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.done += other.done;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.waits_for_peer += other.waits_for_peer;
        self.waits_for_queue += other.waits_for_queue;
        self.errors += other.errors;
    }
}

/// Adds counts by name.
pub(crate) fn add_all(sums: &mut BTreeMap<String, Count>, more: &BTreeMap<String, Count>) {
    for (name, n) in more {
        *sums.entry(name.clone()).or_default() += *n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= stats.md: the goodput of a host's port is the sum of its processes
    #[test]
    fn processes_that_share_a_port_carry_together() {
        let process = |goodput: Option<u64>| Port { goodput: goodput.map(Count), ..Port::unused("p:1") };
        let sum = |of: [Option<u64>; 3]| {
            let mut host = Port::unused("p:1");
            of.into_iter().for_each(|goodput| host.add(&process(goodput)));
            host.goodput
        };
        assert_eq!(sum([Some(5), None, Some(7)]), Some(Count(12)));
        assert_eq!(sum([None; 3]), None);
    }
}
