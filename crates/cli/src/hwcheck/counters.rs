//! Hardware counters before and after a step.

use std::collections::BTreeMap;

use nccl_net_mpib_agent_iface::hw_counters::FACTS;
use schemars::JsonSchema;
use serde::Serialize;

use crate::doctor::Counters;

/// The counters of both ends.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) here: Counters,
    pub(super) there: Counters,
}

/// A counter that has grown.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Growth {
    /// `here` or `there`
    pub(super) end: &'static str,
    /// `hca:port`
    pub(super) port: String,
    pub(super) counter: String,
    pub(super) before: u64,
    pub(super) after: u64,
}

impl Growth {
    /// Returns what the counter shows, if that is a lost packet or a missing receive.
    pub(super) fn loss(&self) -> Option<&'static str> {
        let fact = FACTS.iter().find(|fact| fact.is(&self.counter));
        fact.map(|fact| fact.shows)
    }

    pub(super) fn text(&self) -> String {
        let Self { end, port, counter, before, after } = self;
        format!("{port} {end}: {counter} {before} -> {after}")
    }
}

impl Reading {
    /// Returns the counters that have grown until `after`.
    pub(super) fn growth(&self, after: &Self) -> Vec<Growth> {
        let mut found = Vec::new();
        for (end, before, after) in [("here", &self.here, &after.here), ("there", &self.there, &after.there)]
        {
            for (port, counters) in after {
                let old = before.get(port);
                found.extend(counters.iter().filter_map(|(name, now)| {
                    let before = old.and_then(|old: &BTreeMap<_, _>| old.get(name)).copied().unwrap_or(0);
                    // A driver that was loaded again counts from zero.
                    (*now > before).then(|| Growth {
                        end,
                        port: port.clone(),
                        counter: name.clone(),
                        before,
                        after: *now,
                    })
                }));
            }
        }
        found
    }

    /// Returns the ports whose counters show no lost packets at all, and the ends without any port.
    pub(super) fn blind(&self) -> Vec<String> {
        let ends = [("here", &self.here), ("there", &self.there)];
        let blind = |counters: &BTreeMap<String, u64>| {
            !counters.keys().any(|name| FACTS.iter().any(|fact| fact.is(name)))
        };
        let of = |(end, ports): (&str, &Counters)| {
            if ports.is_empty() {
                return vec![format!("any port {end}")];
            }
            let names = ports.iter().filter(|(_, counters)| blind(counters));
            names.map(|(port, _)| format!("{port} {end}")).collect()
        };
        ends.into_iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_named_and_losses_are_recognised() {
        let of = |list: &[(&str, u64)]| -> Counters {
            let counters = list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
            Counters::from([("a:1".into(), counters)])
        };
        let before = Reading { here: of(&[("RTO", 3), ("rx", 1)]), there: Counters::new() };
        let after = Reading { here: of(&[("RTO", 5), ("rx", 1)]), there: of(&[("cnp_sent", 1)]) };
        let growth = before.growth(&after);
        let text: Vec<_> = growth.iter().map(Growth::text).collect();
        assert_eq!(text, ["a:1 here: RTO 3 -> 5", "a:1 there: cnp_sent 0 -> 1"]);
        assert_eq!(growth.iter().map(Growth::loss).collect::<Vec<_>>(), [Some("timeouts"), None]);
        assert_eq!(after.blind(), ["a:1 there"]);
        assert_eq!(before.blind(), ["any port there"]);
    }
}
