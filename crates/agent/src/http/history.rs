//! Rates of ports over the last ten minutes.

use std::collections::{BTreeMap, VecDeque};

use mpib_host_view::{Host, MAX_PORTS};
use schemars::JsonSchema;
use serde::Serialize;

/// How long rates are kept, in ms.
const KEPT_MS: u64 = 600_000;
/// The least time between two readings that are kept, in ms.
const GAP_MS: u64 = 500;
/// Most ports whose rates are kept: those of a reading, and as many that others had.
const PORTS: usize = 2 * MAX_PORTS;

/// The rates of ports over the last ten minutes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct History {
    /// When the pages were read, in ms since 1970, oldest first.
    pub at_ms: VecDeque<u64>,
    /// Bytes per second that each port has sent since the reading before, one number for each of
    /// `at_ms`; null where the rate is not known.
    pub ports: BTreeMap<String, VecDeque<Option<u64>>>,
}

impl History {
    pub(super) fn add(&mut self, host: &Host) {
        if self.at_ms.back().is_some_and(|at| host.at_ms < at + GAP_MS) {
            return;
        }
        for port in &host.ports {
            let unknown = || self.at_ms.iter().map(|_| None).collect();
            self.ports.entry(port.name.clone()).or_insert_with(unknown);
        }
        for (name, rates) in &mut self.ports {
            let port = host.ports.iter().find(|port| port.name == *name);
            let rate = port.and_then(|port| port.bytes_sent_per_second);
            // A fraction of a byte is of no use.
            rates.push_back(rate.map(|rate| rate as u64));
        }
        self.at_ms.push_back(host.at_ms);
        while self.at_ms.front().is_some_and(|at| at + KEPT_MS < host.at_ms) {
            self.at_ms.pop_front();
            for rates in self.ports.values_mut() {
                rates.pop_front();
            }
        }
        self.ports.retain(|_, rates| rates.iter().any(Option::is_some));
        while self.ports.len() > PORTS {
            // The readings since its last rate.
            let age = |rates: &VecDeque<Option<u64>>| rates.iter().rev().position(Option::is_some);
            let oldest = self.ports.iter().max_by_key(|(_, rates)| age(rates));
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
            self.ports.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use mpib_host_view::Port;

    use super::*;

    /// A process can show other ports in each reading, and have ten readings in a second.
    #[test]
    fn invented_ports_do_not_make_it_grow() {
        let mut history = History::default();
        let port = |name: String| Port { name, bytes_sent_per_second: Some(1.0), ..Port::default() };
        for reading in 0..2_000_u64 {
            let invented = (0..MAX_PORTS - 1).map(|i| port(format!("x{reading}_{i}:1")));
            let ports = invented.chain([port("mlx5_0:1".into())]).collect();
            history.add(&Host { at_ms: reading * 100, ports, ..Host::default() });
        }
        assert_eq!((history.at_ms.len(), history.ports.len()), (400, PORTS));
        assert!(history.ports["mlx5_0:1"].iter().all(Option::is_some));
    }

    #[test]
    fn ten_minutes_are_kept() {
        let mut history = History::default();
        for second in 0..700_u64 {
            let port = |name: &str| Port {
                name: name.into(),
                bytes_sent_per_second: Some(second as f64 + 0.5),
                ..Port::default()
            };
            let mut host = Host { at_ms: second * 1000, ports: vec![port("a:1")], ..Host::default() };
            if second >= 650 {
                host.ports.push(port("b:1"));
            }
            if second < 50 {
                host.ports.push(port("c:1"));
            }
            history.add(&host);
        }
        assert_eq!((history.at_ms.front(), history.at_ms.back()), (Some(&99_000), Some(&699_000)));
        assert_eq!(history.ports.keys().collect::<Vec<_>>(), ["a:1", "b:1"], "c:1 is forgotten");
        assert!(history.ports.values().all(|rates| rates.len() == history.at_ms.len()));
        assert_eq!(history.ports["a:1"][0], Some(99));
        assert_eq!((history.ports["b:1"][550], history.ports["b:1"][551]), (None, Some(650)));
    }
}
