//! Which connections run without a rail that they expect, and the state of the whole in one line.

use std::collections::BTreeMap;

use nccl_net_mpib_agent_iface::stats::{Awaited, Direction, Lack, PortState, Reason, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Connection, Host, Port, Process, Rail};

/// The rail works, and its port is drained.
pub const DRAINED: &str = "drained";
/// The plugin has a reason that this program does not know.
pub(crate) const OTHER: &str = "other";
/// A wait for anything but data that is no part of a healthy job. The plugin warns of it, too.
const STUCK_MS: u64 = 60_000;
/// Most rails that the line names.
const NAMED: usize = 3;

/// The state of the whole in one line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// `good`; `drained` if rails on drained ports are all that is missing; `bad`
    pub level: String,
    /// The state in words.
    pub text: String,
    /// Open connections that run without a rail that they expect.
    pub degraded: usize,
}

/// Returns each reason why a connection lacks a rail.
pub(crate) fn reasons() -> impl Iterator<Item = &'static str> {
    let given_up = Reason::ALL.iter().map(|reason| Lack::GivenUp(*reason));
    let known = given_up.chain([Lack::Connect, Lack::LeftOut]).map(Lack::word);
    known.chain([DRAINED, OTHER])
}

impl Host {
    /// Finds the rails that connections lack, and the state of the whole.
    pub fn judge(&mut self) {
        self.processes.iter_mut().for_each(Process::judge);
        self.verdict = Verdict::of(self);
    }
}

impl Process {
    /// Finds the rails that its connections lack.
    pub(crate) fn judge(&mut self) {
        self.connections.iter_mut().for_each(|connection| connection.judge(&self.ports));
    }
}

impl Connection {
    /// Returns whether it is open and runs without a rail that it expects.
    pub fn is_degraded(&self) -> bool {
        self.lacking().next().is_some()
    }

    /// Returns the rails that it expects and does not use, with the reasons, if it is open.
    pub fn lacking(&self) -> impl Iterator<Item = (&Rail, &str)> {
        let rails = self.rails.iter().filter(|_| self.state == State::Open.word());
        rails.filter_map(|rail| Some((rail, rail.lacks.as_deref()?)))
    }

    /// Adds to the reasons of the connection what its process's ports show.
    fn judge(&mut self, ports: &[Port]) {
        let port =
            |rail: &Rail| ports.binary_search_by(|port| port.name.cmp(&rail.name)).ok().map(|at| &ports[at]);
        let is_down = |rail: &Rail| port(rail).is_some_and(|port| port.state == PortState::Down.word());
        let is_drained = |rail: &Rail| port(rail).is_some_and(|port| port.scale == 0);
        for rail in &mut self.rails {
            // A port that is down is why its rails fail, whichever sign came first.
            if rail.lacks.as_deref() != Some(Lack::LeftOut.word()) && is_down(rail) {
                rail.lacks = Some(Lack::GivenUp(Reason::Port).word().into());
            }
        }
        // Only the sender's end of a rail is drained, and never the last rails of a connection.
        let sends = self.direction == Direction::Send.word();
        if sends && self.rails.iter().any(|rail| rail.lacks.is_none() && !is_drained(rail)) {
            for rail in self.rails.iter_mut().filter(|rail| rail.lacks.is_none() && is_drained(rail)) {
                rail.lacks = Some(DRAINED.into());
            }
        }
    }
}

impl Verdict {
    pub(crate) fn of(host: &Host) -> Self {
        let lacks = Lacks::of(host);
        let others = [failed(host), stuck(host)].into_iter().flatten();
        let others: Vec<_> = others.chain(lacks.other_ports(host)).collect();
        let (all, n) = (all(host), lacks.connections);
        let mut text = match (n, others.is_empty()) {
            (0, true) if host.processes.iter().all(|process| process.open == 0) => {
                "no open connection".into()
            }
            (0, true) => format!("{all}, all rails up"),
            (0, false) => format!("{all}: "),
            (1, _) => format!("1 of {all} is degraded: {}", lacks.text(host.at_ms)),
            _ => format!("{n} of {all} are degraded: {}", lacks.text(host.at_ms)),
        };
        if n > 0 && !others.is_empty() {
            text += "; ";
        }
        text += &others.join("; ");
        let level = match (n, others.is_empty() && lacks.are_drained()) {
            (0, true) => "good",
            (_, true) => DRAINED,
            (_, false) => "bad",
        };
        Self { level: level.into(), text, degraded: n }
    }
}

/// The rails that connections lack.
struct Lacks<'a> {
    /// By port and reason: how many connections, and since when the first of them.
    by_port: BTreeMap<(&'a str, &'a str), (usize, u64)>,
    /// Connections that lack any.
    connections: usize,
}

impl<'a> Lacks<'a> {
    fn of(host: &'a Host) -> Self {
        let mut lacks = Self { by_port: BTreeMap::new(), connections: 0 };
        for connection in connections(host).filter(|connection| connection.is_degraded()) {
            lacks.connections += 1;
            for (key, since) in by_port(connection) {
                let (n, first) = lacks.by_port.entry(key).or_insert((0, since));
                (*n, *first) = (*n + 1, since.min(*first));
            }
        }
        lacks
    }

    fn are_drained(&self) -> bool {
        self.by_port.keys().all(|(_, reason)| *reason == DRAINED)
    }

    /// Names the rails, those that most connections lack first.
    fn text(&self, at_ms: u64) -> String {
        let mut all: Vec<_> = self.by_port.iter().collect();
        all.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
        let name = |((port, reason), (n, since)): &(&(&str, &str), &(usize, u64))| {
            let lack = if *n == 1 { "lacks" } else { "lack" };
            let lasted = match at_ms.checked_sub(*since) {
                Some(ms) => format!(" for {}", lasted(ms)),
                None => String::new(),
            };
            format!("{n} {lack} {port}{lasted} ({reason})")
        };
        let more = all.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} more"));
        all.iter().take(NAMED).map(name).chain(more).collect::<Vec<_>>().join(", ")
    }

    /// Names ports that do not work, although no connection lacks them.
    fn other_ports(&self, host: &Host) -> impl Iterator<Item = String> {
        let is_bad =
            |port: &&Port| [PortState::Down, PortState::Suspect].iter().any(|s| s.word() == port.state);
        let is_named = |port: &&Port| self.by_port.keys().any(|(name, _)| *name == port.name);
        let others = host.ports.iter().filter(move |port| !is_named(port));
        others.filter_map(move |port| match port.adapter.as_ref().and_then(|adapter| adapter.link_lost_ms) {
            _ if is_bad(&port) => Some(format!("{} is {}", port.name, port.state)),
            Some(lost) => {
                let ms = host.at_ms.saturating_sub(lost);
                Some(format!("{} has had no link for {}", port.name, lasted(ms)))
            }
            None => None,
        })
    }
}

/// Returns the ports that a connection lacks, with the reason and since when. Stripes of a rail count
/// once. A rail that works has no time.
pub(crate) fn by_port(connection: &Connection) -> BTreeMap<(&str, &str), u64> {
    let since = |rail: &Rail| rail.given_up_at_ms.unwrap_or(u64::MAX);
    connection.lacking().map(|(rail, reason)| ((rail.name.as_str(), reason), since(rail))).collect()
}

fn connections(host: &Host) -> impl Iterator<Item = &Connection> {
    host.processes.iter().flat_map(|process| &process.connections)
}

/// Counts the open connections.
fn all(host: &Host) -> String {
    let open: u64 = host.processes.iter().map(|process| u64::from(process.open)).sum();
    let hidden: u64 = host.processes.iter().map(|process| u64::from(process.not_shown)).sum();
    let plural = if open == 1 { "" } else { "s" };
    let hidden = if hidden > 0 { format!(" ({hidden} not shown)") } else { String::new() };
    format!("{open} connection{plural}{hidden}")
}

fn failed(host: &Host) -> Option<String> {
    let n = connections(host).filter(|c| c.state == State::Failed.word()).count();
    let has = if n == 1 { "has" } else { "have" };
    (n > 0).then(|| format!("{n} {has} failed"))
}

/// Names the longest of the waits that are no part of a healthy job.
fn stuck(host: &Host) -> Option<String> {
    let waits = connections(host).filter_map(|c| Some((c.waited_ms(host.at_ms)?, c.wait.as_ref()?)));
    let is_stuck = |(ms, wait): &(u64, &crate::Wait)| *ms >= STUCK_MS && wait.r#for != Awaited::Data.word();
    let stuck: Vec<_> = waits.filter(is_stuck).collect();
    let (ms, wait) = stuck.iter().max_by_key(|(ms, _)| *ms)?;
    let who = match stuck.len() {
        1 => "1 waits".to_owned(),
        n => format!("{n} wait, one of them"),
    };
    Some(format!("{who} {} for {}", lasted(*ms), wait.what))
}

/// Formats a time: `12 s`, `3 min 12 s`, `5 h 10 min`.
pub fn lasted(ms: u64) -> String {
    match ms / 1_000 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3_600, s / 60 % 60),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
