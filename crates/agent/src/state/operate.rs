//! What an operator or another program changes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use nccl_net_mpib_agent_iface::agent::SHARE_ONE;
use nccl_net_mpib_agent_iface::agent::memory::PORTS;

use super::{Agent, DrainView};
use crate::config::{Config, Policy, check_port};
use crate::events::{EventKind, now_ms};
use crate::kept::KeptDrain;
use crate::process::Flows;

/// Most characters of a reason.
const REASON_MAX: usize = 200;

/// Who takes a port out of use or back into it, and why.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The user, or how it has come.
    pub by: &'a str,
    /// Why, in that one's words.
    pub reason: Option<&'a str>,
    /// The ports that there are; `None`: the port may be one that is not there yet.
    pub known: Option<&'a BTreeSet<String>>,
}

impl<'a> Order<'a> {
    /// Returns one without a reason, for any port.
    pub fn by(by: &'a str) -> Self {
        Self { by, reason: None, known: None }
    }
}

impl Agent {
    /// Takes a port out of use, or back into it. A port that is in that state already keeps its reason.
    ///
    /// # Errors
    /// A sentence: the text is no port or none of this host, the reason cannot be shown, or too many ports
    /// are out of use.
    pub fn drain(&mut self, port: &str, out_of_use: bool, order: Order<'_>) -> Result<(), String> {
        check_port(port)?;
        let is_shown = |text: &str| text.chars().count() <= REASON_MAX && !text.contains(char::is_control);
        if !order.reason.is_none_or(is_shown) {
            return Err(format!(
                "the reason must have at most {REASON_MAX} characters, all of them printable"
            ));
        }
        let drained = self.drained();
        if let Some(known) = order.known
            && !known.contains(port)
            && !drained.contains(port)
        {
            let all: Vec<&str> = known.iter().map(String::as_str).collect();
            return Err(format!(
                "no adapter of this host has port {port}, and no process uses it; there are: {}. To take it \
                 out of use all the same: \"force\": true, or mpib drain --force",
                all.join(", ")
            ));
        }
        if drained.contains(port) == out_of_use {
            return Ok(());
        }
        if out_of_use && drained.len() >= PORTS {
            return Err(format!("{PORTS} ports are out of use already"));
        }
        let (by, reason) = (order.by.to_owned(), order.reason.map(str::to_owned));
        let why = match order.reason {
            Some(reason) => format!(", by {by}: {reason}"),
            None => format!(", by {by}"),
        };
        self.drains.insert(port.to_owned(), KeptDrain { out_of_use, by, reason, at_ms: now_ms() });
        self.forget_needless_drains();
        self.note_drain(port, out_of_use, &why);
        self.apply();
        Ok(())
    }

    /// Sets the share of the flows between two SOUT addresses. Returns the number of flows that
    /// there are now.
    ///
    /// # Errors
    /// A sentence: the policy of these flows is not `external`, or the share is too large.
    pub fn set_share(
        &mut self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        share: u16,
    ) -> Result<usize, String> {
        let (policy, _) = self.config.rule(source, destination);
        if policy != Policy::External {
            let policy = format!("{policy:?}").to_lowercase();
            return Err(format!(
                "the policy {policy:?} decides this share; it can be set only with policy = \"external\""
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
        now.difference(&before).for_each(|port| self.note_drain(port, true, ""));
        before.difference(&now).for_each(|port| self.note_drain(port, false, ""));
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

    fn note_drain(&mut self, port: &str, out_of_use: bool, why: &str) {
        let (kind, what) = match out_of_use {
            true => (EventKind::Drained, "out of use"),
            false => (EventKind::Undrained, "in use again"),
        };
        self.note(kind, port, format!("port {port} is {what}{why}"));
    }

    /// Returns the lines of the log since the last call.
    pub fn log_lines(&mut self) -> Vec<String> {
        self.events.unlogged()
    }

    /// Returns the ports that are out of use.
    pub(super) fn drained(&self) -> BTreeSet<String> {
        let mut drained: BTreeSet<String> = self.config.drained().cloned().collect();
        for (port, drain) in &self.drains {
            match drain.out_of_use {
                true => drained.insert(port.clone()),
                false => drained.remove(port),
            };
        }
        drained
    }

    /// Returns what is known of each of them.
    pub(super) fn drains(&self) -> Vec<DrainView> {
        let configured: BTreeSet<&String> = self.config.drained().collect();
        let view = |port: String| {
            let kept = self.drains.get(&port);
            let by = kept.map(|drain| drain.by.clone()).filter(|by| !by.is_empty());
            DrainView {
                by: by.or_else(|| configured.contains(&port).then(|| "configuration".into())),
                reason: kept.and_then(|drain| drain.reason.clone()),
                since_ms: kept.map(|drain| drain.at_ms).filter(|at| *at > 0),
                port,
            }
        };
        self.drained().into_iter().map(view).collect()
    }

    /// Forgets what the configuration has, too.
    pub(super) fn forget_needless_drains(&mut self) {
        self.kept_changed = true;
        let configured: BTreeSet<&String> = self.config.drained().collect();
        self.drains.retain(|port, drain| configured.contains(port) != drain.out_of_use);
    }
}
