//! Judges the pairs of ports of two machines: the MTU of both ends, and the measured rates.

use std::{cmp::Ordering, collections::BTreeMap};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Port, Report, VerbTimes, Verdict as RouteVerdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    head::short,
    pcie,
    peer::{Row, Summary},
};
use crate::output::units::{counted, port_rate};

/// What a pair of ports is judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PortFacts {
    /// `hca:port`
    pub(crate) name: String,
    /// Active MTU in bytes.
    pub(super) mtu: u32,
    /// Speed of its link in Mb/s; absent in releases before 0.3.
    #[serde(default)]
    pub(super) speed_mbps: Option<u32>,
    /// What the port or its PCIe link carries at most, in Mb/s, whichever is less. Absent for
    /// simulated ports.
    pub(crate) limit_mbps: Option<u32>,
    /// Times of its verbs.
    #[serde(default)]
    pub(crate) verbs: Option<VerbTimes>,
}

/// Returns the facts of the ports that are in this machine's devices: another one may have no cable.
pub(super) fn facts(report: &Report, softverbs: bool) -> Vec<PortFacts> {
    let of = |port: &Port| {
        let state = port.state.as_ref()?;
        let limit = pcie::rate(port).map_or(state.speed_mbps, |pcie| pcie.min(state.speed_mbps));
        let limit_mbps = Some(limit).filter(|limit| !softverbs && *limit > 0);
        let speed_mbps = Some(state.speed_mbps).filter(|speed| *speed > 0);
        Some(PortFacts { name: port.name(), mtu: state.mtu, speed_mbps, limit_mbps, verbs: port.verbs })
    };
    let rails = || report.devices.iter().flat_map(|device| &device.rails);
    let is_used = |port: &&Port| rails().any(|rail| rail.name == port.name());
    report.ports.iter().filter(is_used).filter_map(of).collect()
}

/// Settings that choose ports.
const CHOOSE: [&str; 3] = ["NCCL_IB_HCA", "MPIB_HCA_SOUT", "MPIB_HCA_SUP"];

/// The ports of both machines.
pub(super) struct Both<'a> {
    pub(super) ours: &'a [PortFacts],
    pub(super) theirs: &'a [PortFacts],
}

impl Both<'_> {
    fn of(&self, row: &Row) -> Option<(&PortFacts, &PortFacts)> {
        let find = |all: &'_ [PortFacts], name: &str| all.iter().position(|port| port.name == name);
        let (ours, theirs) = (find(self.ours, &row.pair.ours)?, find(self.theirs, &row.pair.theirs)?);
        Some((&self.ours[ours], &self.theirs[theirs]))
    }

    /// Returns what the weaker end of a pair carries at most, in Mb/s.
    fn limit(&self, row: &Row) -> Option<u32> {
        let (ours, theirs) = self.of(row)?;
        Some(ours.limit_mbps?.min(theirs.limit_mbps?))
    }

    /// Returns the pairs that are tried first and whose ends have different values, by these.
    fn unequal(
        &self,
        rows: &[Row],
        value: impl Fn(&PortFacts) -> Option<u32>,
    ) -> BTreeMap<(u32, u32), Vec<String>> {
        let mut groups: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.pair.verdict == RouteVerdict::First) {
            let values = self.of(row).and_then(|(ours, theirs)| Some((value(ours)?, value(theirs)?)));
            if let Some(values) = values.filter(|(ours, theirs)| ours != theirs) {
                groups.entry(values).or_default().push(row.name());
            }
        }
        groups
    }

    /// Warns of pairs whose ends have links of different speed. A line for each pair of values.
    pub(super) fn speeds(&self, rows: &[Row]) -> Vec<Check> {
        let check = |((ours, theirs), pairs): ((u32, u32), Vec<String>)| {
            let text = format!(
                "the link is {} here and {} there: {}; a pair carries what the slower end does",
                port_rate(ours),
                port_rate(theirs),
                pairs.join(", ")
            );
            Check::new("speeds", Level::Warn, text).remedy(
                "if both are to be equal: cable, switch port and speed of the slower one (ethtool, ibstat)",
            )
        };
        self.unequal(rows, |port| port.speed_mbps).into_iter().map(check).collect()
    }

    /// Compares how many ports the devices of two hosts have. Settings that choose ports may be the
    /// reason; without them the host has no others.
    pub(super) fn number(&self, here: &Summary, there: &Summary) -> Option<Check> {
        let (ours, theirs) = (self.ours.len(), self.theirs.len());
        let fewer = match ours.cmp(&theirs) {
            Ordering::Equal => return None,
            Ordering::Less => here,
            Ordering::Greater => there,
        };
        let text = format!(
            "the devices have {} here ({}), {theirs} there ({}): connections use those that have a partner",
            counted(ours, "port"),
            here.host,
            there.host
        );
        let chosen = fewer.settings.iter().filter(|set| CHOOSE.contains(&&*set.name) && !set.default);
        let chosen: Vec<String> = chosen.map(|set| format!("{}={}", set.name, short(&set.value))).collect();
        Some(match chosen.is_empty() {
            true => Check::new("number", Level::Note, text),
            false => Check::new("number", Level::Warn, text).remedy(format!(
                "{} has {}: name all ports there, or unset it",
                fewer.host,
                chosen.join(" ")
            )),
        })
    }

    /// Warns of pairs whose ends have different MTUs. A line for each pair of values.
    pub(super) fn mtu(&self, rows: &[Row]) -> Vec<Check> {
        let check = |((ours, theirs), pairs): ((u32, u32), Vec<String>)| {
            let text = format!(
                "the MTU is {ours} here and {theirs} there: {}; connections use the smaller one",
                pairs.join(", ")
            );
            Check::new("mtu", Level::Warn, text).remedy(
                "set the network interfaces of both ends, and the switch, to one MTU (ip link set mtu 9000 gives 4096); on \
                 InfiniBand the subnet manager sets it",
            )
        };
        self.unequal(rows, |port| Some(port.mtu)).into_iter().map(check).collect()
    }

    /// Judges the measured rates by the ports' and by each other. One line for all pairs that
    /// carry less than half of their limit, and one for those far behind a pair of the same limit.
    pub(super) fn rates(&self, rows: &[Row]) -> Vec<Check> {
        let measured: Vec<(&Row, f64, Option<u32>)> =
            rows.iter().filter_map(|row| Some((row, lowest(row)? * 8000.0, self.limit(row)))).collect();
        let behind = |(row, rate, limit): &(&Row, f64, Option<u32>)| {
            let limit = (*limit)?;
            let alike = measured.iter().filter(|(_, _, other)| *other == Some(limit));
            let best = alike.map(|(_, rate, _)| *rate).fold(0.0, f64::max);
            (rate * 2.0 < best).then(|| format!("{} {} of {}", row.name(), shown(*rate), shown(best)))
        };
        let slow = |(row, rate, limit): &(&Row, f64, Option<u32>)| {
            let limit = f64::from((*limit)?);
            (rate * 2.0 < limit).then(|| format!("{} {} of {}", row.name(), shown(*rate), shown(limit)))
        };
        let behind: Vec<String> = measured.iter().filter_map(behind).collect();
        let slow: Vec<String> = measured.iter().filter_map(slow).collect();
        let mut checks = Vec::new();
        if !behind.is_empty() {
            let text = format!(
                "pairs of ports that carry less than half of what pairs of equal ports do: {}",
                behind.join(", ")
            );
            checks.push(Check::new("rates", Level::Warn, text).remedy(
                "compare the ports' error counters (mpib stats), their PCIe links (lspci -vv: LnkSta) and NUMA nodes",
            ));
        }
        if !slow.is_empty() {
            let text = format!(
                "pairs that carry less than half of what port and PCIe link carry, with every byte checked by one \
                 processor core: {}",
                slow.join(", ")
            );
            checks.push(
                Check::new("rates", Level::Note, text).remedy(
                    "measure without the check of the bytes: mpib perf --no-check --listen, --connect",
                ),
            );
        }
        checks
    }
}

/// Returns the rate of the slower direction in GB/s, if both work.
pub(super) fn lowest(row: &Row) -> Option<f64> {
    let rate = |m: &Option<super::peer::Measured>| m.as_ref()?.gigabytes_per_second;
    Some(rate(&row.out)?.min(rate(&row.back)?))
}

fn shown(mbps: f64) -> String {
    port_rate((mbps / 100.0).round() * 100.0)
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::doctor::Pair;

    use super::*;
    use crate::doctor::peer::Measured;

    fn facts(list: &[(&str, u32, Option<u32>)]) -> Vec<PortFacts> {
        let of = |(name, mtu, limit): &(&str, u32, Option<u32>)| PortFacts {
            name: (*name).into(),
            mtu: *mtu,
            speed_mbps: None,
            limit_mbps: *limit,
            verbs: None,
        };
        list.iter().map(of).collect()
    }

    fn row(ours: &str, theirs: &str, rate: Option<f64>) -> Row {
        let verdict = RouteVerdict::First;
        let pair = Pair { ours: ours.into(), theirs: theirs.into(), verdict, way: None, why: String::new() };
        let out = rate.map(|rate| Measured { gigabytes_per_second: Some(rate), error: None });
        Row { pair, back: out.clone(), out }
    }

    #[test]
    fn different_mtus_are_one_line_for_each_pair_of_values() {
        let ours = facts(&[("a:1", 4096, None), ("b:1", 4096, None), ("c:1", 1024, None)]);
        let theirs = facts(&[("x:1", 1024, None), ("y:1", 1024, None), ("z:1", 1024, None)]);
        let rows = [row("a:1", "x:1", None), row("b:1", "y:1", None), row("c:1", "z:1", None)];
        let found = Both { ours: &ours, theirs: &theirs }.mtu(&rows);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].text,
            "the MTU is 4096 here and 1024 there: a:1 to x:1, b:1 to y:1; connections use the smaller one"
        );
    }

    //= doctor.md: rates are judged by port speed, PCIe link and the other pairs
    #[test]
    fn rates_are_judged_by_the_ports_and_by_each_other() {
        let ours = facts(&[("a:1", 1, Some(400_000)), ("b:1", 1, Some(400_000)), ("c:1", 1, Some(25_000))]);
        let theirs = facts(&[("x:1", 1, Some(400_000)), ("y:1", 1, None)]);
        let both = Both { ours: &ours, theirs: &theirs };
        let text = |rows: &[Row]| -> Vec<(Level, String)> {
            both.rates(rows).into_iter().map(|c| (c.level, c.text)).collect()
        };
        assert_eq!(text(&[row("a:1", "x:1", Some(30.0)), row("b:1", "x:1", Some(40.0))]), []);
        let found = text(&[row("a:1", "x:1", Some(5.0)), row("b:1", "x:1", Some(40.0))]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].0 == Level::Warn && found[0].1.ends_with(": a:1 to x:1 40 Gb/s of 320 Gb/s"),
            "{found:?}"
        );
        assert!(
            found[1].0 == Level::Note && found[1].1.ends_with(": a:1 to x:1 40 Gb/s of 400 Gb/s"),
            "{found:?}"
        );
        // The weaker end is the limit. Simulated ports have none.
        assert_eq!(text(&[row("c:1", "x:1", Some(2.0)), row("a:1", "y:1", Some(0.1))]), []);
        assert_eq!(text(&[row("c:1", "x:1", Some(1.0))]).len(), 1);
        assert_eq!(text(&[row("a:1", "x:1", None)]), []);
    }
}
