//! Judges a fleet: what ports carry beside the median of their like, and which hosts are bad. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use nccl_net_mpib_agent_iface::doctor::{Check, Level};
use schemars::JsonSchema;
use serde::Serialize;

use super::blame::{Edge, bad_nodes, explains};
use super::{Host, HostPair, host_checks};
use crate::doctor::{faults::in_short, judge::lowest, peer::Row};
use crate::output::units::{giga, port_rate};

/// A rate below this part of the median is a finding.
const PART: f64 = 0.5;
/// A median of fewer hosts says nothing.
const LEAST: usize = 3;

/// What pairs of ports of one kind carry.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct Median {
    /// Names of both ports; absent for all pairs with one limit, where ports have many names.
    pub(super) ports: Option<[String; 2]>,
    /// What the weaker port or its PCIe link carries at most. Absent for simulated ports.
    pub(super) limit_mbps: Option<u32>,
    /// Number of hosts.
    pub(super) hosts: usize,
    /// Median of what each host carries with its best partner, in the slower direction.
    pub(super) gigabits_per_second: f64,
}

impl Median {
    /// Returns its row in a table: ports, limit, number of hosts, and rate.
    pub(super) fn cells(&self) -> [String; 4] {
        let ports = self.ports.as_ref().map_or("any".into(), |ports| ports.join(" to "));
        let limit = self.limit_mbps.map_or("-".into(), port_rate);
        [ports, limit, self.hosts.to_string(), giga(self.gigabits_per_second)]
    }
}

/// A host that a job should do without.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct BadHost {
    pub(super) name: String,
    pub(super) reasons: Vec<Check>,
}

/// A pair of hosts that is bad, though neither host is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct BadPair {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) check: Check,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct Judgement {
    pub(super) medians: Vec<Median>,
    pub(super) bad_hosts: Vec<BadHost>,
    pub(super) bad_pairs: Vec<BadPair>,
}

/// Pairs of ports that are compared: those of one limit, and of these names unless too few hosts have
/// ports of these names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Like {
    limit: Option<u32>,
    ports: Option<[String; 2]>,
}

/// A pair of ports that was measured.
struct Measured<'a> {
    row: &'a Row,
    /// Both ports, as numbers of [`Ports`].
    nodes: [usize; 2],
    like: Like,
    /// In Gb/s; absent if it carries no data.
    rate: Option<f64>,
}

/// The ports of all hosts.
#[derive(Default)]
struct Ports {
    numbers: BTreeMap<(usize, String), usize>,
    host: Vec<usize>,
    name: Vec<String>,
}

impl Ports {
    fn number(&mut self, host: usize, name: &str) -> usize {
        let next = self.host.len();
        let number = *self.numbers.entry((host, name.to_owned())).or_insert(next);
        if number == next {
            self.host.push(host);
            self.name.push(name.to_owned());
        }
        number
    }
}

/// The reasons of each host that is bad.
#[derive(Default)]
struct Reasons(BTreeMap<usize, Vec<Check>>);

impl Reasons {
    fn add(&mut self, host: usize, check: Check) {
        self.0.entry(host).or_default().push(check);
    }
}

/// Judges what was measured.
pub(super) fn judge(hosts: &[Host], pairs: &[HostPair]) -> Judgement {
    let mut reasons = Reasons::default();
    for (number, host) in hosts.iter().enumerate() {
        by_itself(host).into_iter().for_each(|check| reasons.add(number, check));
    }
    missing_ports(hosts, &mut reasons);
    slow_links(hosts, &mut reasons);
    lost(hosts, pairs, &mut reasons);
    let mut ports = Ports::default();
    let measured = measured(hosts, pairs, &mut ports);
    let medians = medians(&measured, &ports);
    let bad_pairs = rates(hosts, &measured, &ports, &medians, &mut reasons);
    let bad_host =
        |(number, reasons): (usize, Vec<Check>)| BadHost { name: hosts[number].name.clone(), reasons };
    Judgement { medians, bad_hosts: reasons.0.into_iter().map(bad_host).collect(), bad_pairs }
}

/// Returns why a host is bad without regard to others: it does not answer, or is unusable.
fn by_itself(host: &Host) -> Vec<Check> {
    if let Some(error) = &host.error {
        return vec![Check::new("answer", Level::Fail, &error.failure.message)];
    }
    let fails = |check: &&Check| check.level == Level::Fail;
    host_checks(host).filter(fails).cloned().collect()
}

/// Finds hosts with fewer ports than most have.
fn missing_ports(hosts: &[Host], reasons: &mut Reasons) {
    let of = |host: &Host| host.summary.as_ref().map(|summary| summary.ports.len());
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    hosts.iter().filter_map(of).for_each(|ports| *counts.entry(ports).or_default() += 1);
    // The greater one of equally many.
    let Some((usual, _)) = counts.into_iter().max_by_key(|(ports, hosts)| (*hosts, *ports)) else { return };
    for (number, host) in hosts.iter().enumerate() {
        let Some(summary) = host.summary.as_ref().filter(|summary| summary.ports.len() < usual) else {
            continue;
        };
        // A host without any has other failures.
        if host_checks(host).any(|check| check.level == Level::Fail) {
            continue;
        }
        let lost: Vec<String> =
            summary.lost.iter().map(|port| format!("{} ({})", port.name, port.why)).collect();
        let which = if lost.is_empty() { "no other is there".to_owned() } else { lost.join(", ") };
        let text = format!("it uses {} of {usual} ports that most hosts use: {which}", summary.ports.len());
        reasons.add(
            number,
            Check::new("fewer", Level::Warn, text).remedy("cable, switch port and address of the port"),
        );
    }
}

/// Finds ports whose link carries less than that of the port of this name in most hosts.
fn slow_links(hosts: &[Host], reasons: &mut Reasons) {
    let mut limits: BTreeMap<&str, Vec<(u32, usize)>> = BTreeMap::new();
    for (number, host) in hosts.iter().enumerate() {
        for port in host.summary.iter().flat_map(|summary| &summary.ports) {
            if let Some(limit) = port.limit_mbps {
                limits.entry(&port.name).or_default().push((limit, number));
            }
        }
    }
    for (name, mut all) in limits.into_iter().filter(|(_, all)| all.len() >= LEAST) {
        all.sort_unstable();
        let usual = all[(all.len() - 1) / 2].0;
        for (limit, host) in all.into_iter().filter(|(limit, _)| *limit < usual) {
            let (here, there) = (port_rate(limit), port_rate(usual));
            let text = format!("{name} and its PCIe link carry at most {here}, and {there} in most hosts");
            let remedy =
                "cable and slot: the speed of the port, and the width of its PCIe link (lspci -vv: LnkSta)";
            reasons.add(host, Check::new("slower", Level::Warn, text).remedy(remedy));
        }
    }
}

/// Finds hosts that were lost while they were measured.
fn lost(hosts: &[Host], pairs: &[HostPair], reasons: &mut Reasons) {
    let is_out = |host: usize| hosts[host].is_given_up || hosts[host].summary.is_none();
    let error = |pair: &HostPair| pair.error.as_ref().map(|error| error.failure.message.clone());
    let of = |host: usize| {
        let last = pairs.iter().filter(|pair| pair.has(host)).filter_map(error).next_back();
        let what = if hosts[host].is_given_up { "it was given up" } else { "its checks with others fail" };
        let text = format!("{what}: {}", last.unwrap_or_else(|| "they did not end".into()));
        Check::new("answer", Level::Fail, text)
    };
    let tried: Vec<&HostPair> = pairs.iter().filter(|pair| pair.is_measured()).collect();
    let with_others = tried.iter().filter(|pair| !is_out(pair.ends.from) && !is_out(pair.ends.to));
    let edges: Vec<Edge> = with_others
        .map(|pair| Edge { nodes: [pair.ends.from, pair.ends.to], is_bad: pair.error.is_some() })
        .collect();
    let all: Vec<usize> = (0..hosts.len()).collect();
    let given_up = all.iter().copied().filter(|host| hosts[*host].is_given_up);
    for host in given_up.chain(bad_nodes(&all, &edges)) {
        reasons.add(host, of(host));
    }
}

/// Returns the pairs of ports that were measured.
fn measured<'a>(hosts: &[Host], pairs: &'a [HostPair], ports: &mut Ports) -> Vec<Measured<'a>> {
    let limit = |host: usize, name: &str| {
        let summary = hosts[host].summary.as_ref()?;
        summary.ports.iter().find(|port| port.name == name)?.limit_mbps
    };
    let mut all = Vec::new();
    for pair in pairs {
        for row in pair.routes.iter().filter(|row| row.error().is_some() || row.works()) {
            let (ours, theirs) = (&row.pair.ours, &row.pair.theirs);
            let limit = limit(pair.ends.from, ours).and_then(|a| Some(a.min(limit(pair.ends.to, theirs)?)));
            let mut names = [ours.clone(), theirs.clone()];
            names.sort();
            all.push(Measured {
                row,
                nodes: [ports.number(pair.ends.from, ours), ports.number(pair.ends.to, theirs)],
                like: Like { limit, ports: Some(names) },
                rate: lowest(row).map(|rate| rate * 8.0),
            });
        }
    }
    all
}

/// Returns the medians of all kinds that enough hosts have.
fn medians(measured: &[Measured<'_>], ports: &Ports) -> Vec<Median> {
    let mut best: BTreeMap<Like, BTreeMap<usize, f64>> = BTreeMap::new();
    for (one, rate) in measured.iter().filter_map(|one| Some((one, one.rate?))) {
        let of_limit = Like { ports: None, ..one.like.clone() };
        for like in [one.like.clone(), of_limit] {
            let of_like = best.entry(like).or_default();
            for node in one.nodes {
                let known = of_like.entry(ports.host[node]).or_default();
                *known = known.max(rate);
            }
        }
    }
    let median = |(like, hosts): (Like, BTreeMap<usize, f64>)| {
        let mut rates: Vec<f64> = hosts.into_values().collect();
        rates.sort_by(f64::total_cmp);
        let Like { limit: limit_mbps, ports } = like;
        let gigabits_per_second = *rates.get(rates.len() / 2)?;
        let median = Median { ports, limit_mbps, hosts: rates.len(), gigabits_per_second };
        (rates.len() >= LEAST).then_some(median)
    };
    best.into_iter().filter_map(median).collect()
}

/// Returns the median that a pair of ports is compared with.
fn median_of<'a>(medians: &'a [Median], like: &Like) -> Option<&'a Median> {
    let fits = |median: &&Median, ports: Option<&[String; 2]>| {
        median.limit_mbps == like.limit && median.ports.as_ref() == ports
    };
    let named = medians.iter().find(|median| fits(median, like.ports.as_ref()));
    named.or_else(|| medians.iter().find(|median| fits(median, None)))
}

/// Finds ports and pairs of ports that carry no data, or less than part of the median.
fn rates(
    hosts: &[Host],
    measured: &[Measured<'_>],
    ports: &Ports,
    medians: &[Median],
    reasons: &mut Reasons,
) -> Vec<BadPair> {
    let slow = |one: &Measured<'_>| {
        let (rate, median) = (one.rate?, median_of(medians, &one.like)?.gigabits_per_second);
        (rate < median * PART).then_some((rate, median))
    };
    let edge =
        |one: &Measured<'_>| Edge { nodes: one.nodes, is_bad: one.rate.is_none() || slow(one).is_some() };
    let edges: Vec<Edge> = measured.iter().map(edge).collect();
    let bad = bad_nodes(&ports.host, &edges);
    for node in &bad {
        let own: Vec<&Measured<'_>> = measured.iter().filter(|one| one.nodes.contains(node)).collect();
        let partners: BTreeSet<usize> = own
            .iter()
            .zip(edges.iter().filter(|edge| edge.nodes.contains(node)))
            .filter(|(_, edge)| edge.is_bad)
            .flat_map(|(one, _)| one.nodes.map(|node| ports.host[node]))
            .filter(|host| *host != ports.host[*node])
            .collect();
        let name = &ports.name[*node];
        let best = own.iter().filter_map(|one| slow(one)).max_by(|a, b| a.0.total_cmp(&b.0));
        let check = match best {
            Some((rate, median)) => below(&format!("{name} with {} hosts", partners.len()), rate, median),
            None => {
                let why = own.iter().find_map(|one| one.row.error()).map(in_short).unwrap_or_default();
                let text = format!("{name} carries no data with {} hosts: {why}", partners.len());
                Check::new("partners", Level::Warn, text).remedy("cable, VLAN, MTU and address of this port")
            }
        };
        reasons.add(ports.host[*node], check);
    }
    let alone = measured.iter().zip(&edges).filter(|(_, edge)| !explains(&bad, edge));
    let pair = |(one, _): (&Measured<'_>, &Edge)| {
        let (rate, median) = slow(one)?;
        let name = |node: usize| hosts[ports.host[node]].name.clone();
        let [from, to] = one.nodes.map(name);
        Some(BadPair { from, to, check: below(&one.row.name(), rate, median) })
    };
    alone.filter_map(pair).collect()
}

/// Makes the finding of a rate.
fn below(what: &str, rate: f64, median: f64) -> Check {
    let (rate, median) = (giga(rate), giga(median));
    let text = format!("{what}: {rate} Gb/s at best, less than half of the fleet's median of {median} Gb/s");
    Check::new("median", Level::Warn, text).remedy(
        "error counters (mpib stats), PCIe link (lspci -vv: LnkSta) and NUMA node of the port; its cable and switch port",
    )
}
