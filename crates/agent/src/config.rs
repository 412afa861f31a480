//! The configuration file.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::{PORT_NAME_MAX, SHARE_ONE};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use toml::de::{DeTable, DeValue};

use crate::http::HttpConfig;

/// The configuration. A key that is missing has its default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What decides the shares of flows.
    pub policy: Policy,
    /// Share of flows for which nothing else decides, in parts per 1024.
    #[serde(deserialize_with = "share")]
    pub default_share: u16,
    /// Shares of flows between networks. The first that fits counts.
    pub shares: Vec<ShareRule>,
    /// Ports that are out of use, as HCA and port: `mlx5_0:1`.
    #[serde(deserialize_with = "ports")]
    pub drain: Vec<String>,
    /// How often the policy `measured` reads the statistics of the processes, in ms.
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

/// What decides the shares of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The rules of the configuration.
    Static,
    /// What the rails of the flow's process have carried.
    #[default]
    Measured,
    /// Another program, by [`Agent::set_share`](crate::Agent::set_share).
    External,
}

/// The share of the flows between two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRule {
    /// SOUT addresses of this host.
    #[serde(default)]
    pub source: Network,
    /// SOUT addresses of other hosts.
    #[serde(default)]
    pub destination: Network,
    /// Part of SUP, in parts per 1024.
    #[serde(deserialize_with = "share")]
    pub share: u16,
}

/// Bounds for users and processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Processes of one user, except root.
    pub processes_per_user: usize,
    /// Registered connections of one process.
    pub connections_per_process: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { processes_per_user: 1024, connections_per_process: 65_536 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            default_share: 0,
            shares: Vec::new(),
            drain: Vec::new(),
            interval_ms: 50,
            hint_file: true,
            limits: Limits::default(),
            http: HttpConfig::default(),
        }
    }
}

/// An IPv4 network, written as `10.0.0.0/16`, or as an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: Ipv4Addr,
    bits: u8,
}

impl Default for Network {
    /// All addresses.
    fn default() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, bits: 0 }
    }
}

impl Network {
    /// Whether the address is in the network.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let different = u32::from(self.address) ^ u32::from(address);
        different.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let bits: Option<u8> = bits.parse().ok().filter(|bits| *bits <= 32);
        let network = address.parse::<Ipv4Addr>().ok().zip(bits);
        let (address, bits) = network.ok_or_else(|| {
            format!("{text:?} is no IPv4 network, expected an address or, for instance, \"10.0.0.0/16\"")
        })?;
        let host = u32::from(address).checked_shl(bits.into()).unwrap_or(0);
        if host != 0 {
            return Err(format!("{text:?} has bits behind its first {bits}; write the network's address"));
        }
        Ok(Self { address, bits })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

fn share<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let number = i64::deserialize(from)?;
    u16::try_from(number)
        .ok()
        .filter(|share| *share <= SHARE_ONE)
        .ok_or_else(|| de::Error::custom(format!("a share of {number}, expected 0 to {SHARE_ONE}")))
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(from)?;
    let fits = (10..=10_000).contains(&number);
    fits.then_some(number)
        .ok_or_else(|| de::Error::custom(format!("an interval of {number} ms, expected 10 to 10000")))
}

fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let ports = Vec::<String>::deserialize(from)?;
    match ports.iter().find_map(|port| check_port(port).err()) {
        Some(why) => Err(de::Error::custom(why)),
        None => Ok(ports),
    }
}

/// Checks that a text is HCA and port.
///
/// # Errors
/// A sentence with the text and the form that is expected.
pub fn check_port(text: &str) -> Result<(), String> {
    let good = text.len() <= PORT_NAME_MAX
        && text.split_once(':').is_some_and(|(hca, port)| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            !hca.is_empty() && hca.chars().all(plain) && port.parse::<u8>().is_ok_and(|port| port > 0)
        });
    good.then_some(()).ok_or_else(|| format!("{text:?} is no port, expected HCA and port: \"mlx5_0:1\""))
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

    /// Returns how often statistics are read.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// Returns the share by the rules.
    pub fn rule(&self, source: Ipv4Addr, destination: Ipv4Addr) -> u16 {
        let fits = |rule: &&ShareRule| rule.source.contains(source) && rule.destination.contains(destination);
        self.shares.iter().find(fits).map_or(self.default_share, |rule| rule.share)
    }
}

const KEYS: [&str; 8] =
    ["policy", "default_share", "shares", "drain", "interval_ms", "hint_file", "limits", "http"];
const SHARE_KEYS: [&str; 3] = ["source", "destination", "share"];
const LIMIT_KEYS: [&str; 2] = ["processes_per_user", "connections_per_process"];
const HTTP_KEYS: [&str; 4] = ["listen", "token_file", "hosts", "per_peer"];

/// Refuses keys that do not exist, with the nearest one that does.
fn check_keys(text: &str, table: &DeTable<'_>, within: &str, known: &[&str]) -> Result<(), BadConfig> {
    for (key, value) in table {
        let name = key.get_ref();
        if !known.contains(&&**name) {
            let nearest = known.iter().map(|k| (strsim::damerau_levenshtein(k, name), *k)).min();
            let hint = match nearest {
                Some((distance, nearest)) if distance <= 3 => format!("did you mean {nearest:?}?"),
                _ => format!("expected one of {}", known.join(", ")),
            };
            let line = line(text, key.span().start);
            return Err(BadConfig(format!("line {line}: unknown key {name:?}{within}; {hint}")));
        }
        match (&**name, value.get_ref()) {
            ("shares", DeValue::Array(rules)) => {
                for rule in rules.iter() {
                    if let DeValue::Table(rule) = rule.get_ref() {
                        check_keys(text, rule, " in [[shares]]", &SHARE_KEYS)?;
                    }
                }
            }
            ("limits", DeValue::Table(limits)) => check_keys(text, limits, " in [limits]", &LIMIT_KEYS)?,
            ("http", DeValue::Table(http)) => check_keys(text, http, " in [http]", &HTTP_KEYS)?,
            _ => {}
        }
    }
    Ok(())
}

fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    //= agent.md: the configuration of the agent: keys and defaults
    #[test]
    fn every_key_has_its_meaning_and_a_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        let config = Config::parse(
            r#"
            policy = "measured"
            default_share = 512
            drain = ["mlx5_0:1"]
            interval_ms = 100
            hint_file = false
            [limits]
            processes_per_user = 3
            connections_per_process = 7
            [[shares]]
            source = "10.0.0.0/16"
            destination = "10.1.2.3"
            share = 341
            [[shares]]
            destination = "10.1.0.0/16"
            share = 1024
            "#,
        )
        .unwrap();
        assert_eq!((config.policy, config.default_share, config.interval_ms), (Policy::Measured, 512, 100));
        assert_eq!(config.drain, ["mlx5_0:1"]);
        assert!(!config.hint_file);
        assert_eq!(config.limits, Limits { processes_per_user: 3, connections_per_process: 7 });
        let share = |source: [u8; 4], destination: [u8; 4]| config.rule(source.into(), destination.into());
        assert_eq!(share([10, 0, 9, 9], [10, 1, 2, 3]), 341, "the first rule that fits");
        assert_eq!(share([10, 2, 9, 9], [10, 1, 2, 3]), 1024);
        assert_eq!(share([10, 0, 9, 9], [10, 2, 2, 3]), 512, "no rule");
    }

    #[test]
    fn the_example_has_the_defaults() {
        let example = include_str!("../../../packaging/agent.toml");
        assert_eq!(Config::parse(example).unwrap(), Config::default());
        let rule: String = example
            .lines()
            .filter_map(|l| l.strip_prefix('#'))
            .skip_while(|l| !l.starts_with("[["))
            .fold(String::new(), |text, line| text + line + "\n");
        assert_eq!(Config::parse(&rule).unwrap().shares.len(), 1, "{rule}");
    }

    //= agent.md: a misspelt key is an error with its line and the nearest key
    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert_eq!(bad("\npolcy = \"static\""), "line 2: unknown key \"polcy\"; did you mean \"policy\"?");
        assert_eq!(
            bad("[[shares]]\nshare = 1\ndestinaton = \"10.0.0.0/8\""),
            "line 3: unknown key \"destinaton\" in [[shares]]; did you mean \"destination\"?"
        );
        assert_eq!(
            bad("[limits]\nxyz = 1"),
            "line 2: unknown key \"xyz\" in [limits]; expected one of processes_per_user, connections_per_process"
        );
        for (text, part) in [
            ("policy = \"best\"", "line 1: unknown variant `best`, expected one of"),
            ("\n\ndefault_share = 1025", "line 3: a share of 1025, expected 0 to 1024"),
            ("default_share = -1", "a share of -1, expected 0 to 1024"),
            ("interval_ms = 9", "line 1: an interval of 9 ms, expected 10 to 10000"),
            ("drain = [\"mlx5_0\"]", "line 1: \"mlx5_0\" is no port, expected HCA and port"),
            (
                "[[shares]]\nsource = \"10.0.0.1/24\"\nshare = 1",
                "line 2: \"10.0.0.1/24\" has bits behind its first 24",
            ),
            ("[[shares]]\nsource = \"host\"\nshare = 1", "line 2: \"host\" is no IPv4 network"),
            ("[[shares]]\n", "missing field `share`"),
            ("policy = ", "line 1: "),
        ] {
            let found = bad(text);
            assert!(found.contains(part), "{text:?}: {found:?}");
        }
        let missing = Config::read(Path::new("/nonexistent/agent.toml")).unwrap_err().to_string();
        assert!(missing.starts_with("/nonexistent/agent.toml: No such file"), "{missing}");
    }

    #[test]
    fn a_network_contains_its_addresses() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        let has = |text: &str, address: [u8; 4]| network(text).contains(address.into());
        assert!(has("10.0.0.0/16", [10, 0, 255, 1]) && !has("10.0.0.0/16", [10, 1, 0, 1]));
        assert!(
            has("0.0.0.0/0", [255; 4]) && has("10.0.0.7", [10, 0, 0, 7]) && !has("10.0.0.7", [10, 0, 0, 6])
        );
        assert_eq!(network("0.0.0.0/0"), Network::default());
        for text in ["10.0.0.0/33", "10.0.0/8", "::/0", ""] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
