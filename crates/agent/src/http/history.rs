//! Rates of ports over the last ten minutes.

use std::collections::{BTreeMap, VecDeque};

use mpib_host_view::Host;
use schemars::JsonSchema;
use serde::Serialize;

/// How long rates are kept, in ms.
const KEPT_MS: u64 = 600_000;

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
    }
}

#[cfg(test)]
mod tests {
    use mpib_host_view::Port;

    use super::*;

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
