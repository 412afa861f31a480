//! The configuration file.

mod rules;

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

pub use rules::{Network, Policy, PortPolicy, PortRule, ShareRule, check_port};
use serde::{Deserialize, Deserializer, de};
use toml::de::{DeArray, DeTable, DeValue};

use crate::http::HttpConfig;

/// The configuration. A key that is missing has its default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What decides the shares of flows.
    pub policy: Policy,
    /// Share of flows for which nothing else decides, in parts per 1024.
    #[serde(deserialize_with = "rules::share")]
    pub default_share: u16,
    /// Rules for flows between networks. The first that fits counts.
    pub shares: Vec<ShareRule>,
    /// Ports that are out of use, as HCA and port: `mlx5_0:1`. Short for rules with the policy
    /// `drain`.
    #[serde(deserialize_with = "rules::ports")]
    pub drain: Vec<String>,
    /// Rules for ports.
    pub ports: Vec<PortRule>,
    /// How often the policy `measured` decides, in ms.
    #[serde(deserialize_with = "interval")]
    pub interval_ms: u64,
    /// Whether plugins without a memory file, those of earlier releases, get slots of a hint file,
    /// which all users of the host can read.
    pub hint_file: bool,
    /// What one user and one process may have.
    pub limits: Limits,
    /// The HTTP server.
    pub http: HttpConfig,
}

/// Bounds for the host, for owners and for processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Processes of all users.
    pub processes: usize,
    /// Processes of one user, except root.
    pub processes_per_user: usize,
    /// Registered connections of all processes.
    pub connections: usize,
    /// Registered connections of one process.
    pub connections_per_process: usize,
    /// Registered connections of all processes of one user.
    pub connections_per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            processes: 1024,
            processes_per_user: 512,
            connections: 262_144,
            connections_per_process: 65_536,
            connections_per_user: 131_072,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            default_share: 0,
            shares: Vec::new(),
            drain: Vec::new(),
            ports: Vec::new(),
            interval_ms: 20,
            hint_file: true,
            limits: Limits::default(),
            http: HttpConfig::default(),
        }
    }
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(from)?;
    let fits = (10..=10_000).contains(&number);
    fits.then_some(number)
        .ok_or_else(|| de::Error::custom(format!("an interval of {number} ms, expected 10 to 10000")))
}

/// Why a configuration is not used: with the line, if one is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct BadConfig(String);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`BadConfig`] with the path, the line and what is expected there.
    pub fn read(path: &Path) -> Result<Self, BadConfig> {
        let at = path.display();
        let text = fs::read_to_string(path).map_err(|e| BadConfig(format!("{at}: {e}")))?;
        Self::parse(&text).map_err(|bad| BadConfig(format!("{at}: {bad}")))
    }

    /// Checks a configuration.
    ///
    /// # Errors
    /// [`BadConfig`] with the line and what is expected there.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let invalid = |e: toml::de::Error| {
            let at = e.span().map_or(String::new(), |span| format!("line {}: ", line(text, span.start)));
            BadConfig(format!("{at}{}", e.message()))
        };
        let table = DeTable::parse(text).map_err(invalid)?;
        check_keys(text, table.get_ref(), "", &KEYS)?;
        toml::from_str(text).map_err(invalid)
    }

    /// Returns how often shares are measured.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// Returns what decides the share of a flow, and its share by the rules.
    pub fn rule(&self, source: Ipv4Addr, destination: Ipv4Addr) -> (Policy, u16) {
        let rule = self.shares.iter().find(|rule| rule.fits(source, destination));
        let policy = rule.and_then(|rule| rule.policy).unwrap_or(self.policy);
        (policy, rule.and_then(|rule| rule.share).unwrap_or(self.default_share))
    }

    /// Returns whether the shares of any flows are measured.
    pub fn measures(&self) -> bool {
        let policies = self.shares.iter().map(|rule| rule.policy.unwrap_or(self.policy));
        policies.chain([self.policy]).any(|policy| policy == Policy::Measured)
    }

    /// Returns the ports that are out of use.
    pub fn drained(&self) -> impl Iterator<Item = &String> {
        let by_rule = self.ports.iter().map(|PortRule { port, policy: PortPolicy::Drain }| port);
        self.drain.iter().chain(by_rule)
    }
}

const KEYS: [&str; 9] =
    ["policy", "default_share", "shares", "drain", "ports", "interval_ms", "hint_file", "limits", "http"];
const SHARE_KEYS: [&str; 4] = ["source", "destination", "share", "policy"];
const PORT_KEYS: [&str; 2] = ["port", "policy"];
const LIMIT_KEYS: [&str; 5] =
    ["processes", "processes_per_user", "connections", "connections_per_process", "connections_per_user"];
const HTTP_KEYS: [&str; 5] = ["listen", "token_file", "web_config", "hosts", "per_peer"];

/// Refuses keys that do not exist, with the nearest one that does.
fn check_keys(text: &str, table: &DeTable<'_>, within: &str, known: &[&str]) -> Result<(), BadConfig> {
    for (key, value) in table {
        let name = key.get_ref();
        if !known.contains(&&**name) {
            let (line, hint) = (line(text, key.span().start), nearest(name, known));
            return Err(BadConfig(format!("line {line}: unknown key {name:?}{within}; {hint}")));
        }
        match (&**name, value.get_ref()) {
            ("shares", DeValue::Array(rules)) => check_rules(text, rules, " in [[shares]]", &SHARE_KEYS)?,
            ("ports", DeValue::Array(rules)) => check_rules(text, rules, " in [[ports]]", &PORT_KEYS)?,
            ("limits", DeValue::Table(limits)) => check_keys(text, limits, " in [limits]", &LIMIT_KEYS)?,
            ("http", DeValue::Table(http)) => check_keys(text, http, " in [http]", &HTTP_KEYS)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns which of the keys that there are is meant by one that is not.
pub(crate) fn nearest(name: &str, known: &[&str]) -> String {
    match known.iter().map(|k| (strsim::damerau_levenshtein(k, name), *k)).min() {
        Some((distance, nearest)) if distance <= 3 => format!("did you mean {nearest:?}?"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}

fn check_rules(text: &str, rules: &DeArray<'_>, within: &str, known: &[&str]) -> Result<(), BadConfig> {
    for rule in rules.iter() {
        if let DeValue::Table(rule) = rule.get_ref() {
            check_keys(text, rule, within, known)?;
        }
    }
    Ok(())
}

fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests;
