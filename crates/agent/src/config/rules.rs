//! Rules for flows and ports.

use std::net::Ipv4Addr;
use std::str::FromStr;

use nccl_net_mpib_agent_iface::agent::{PORT_NAME_MAX, SHARE_ONE};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

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
    /// Nothing goes on SUP.
    Drain,
}

/// What applies to the flows between two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PlainRule")]
pub struct ShareRule {
    source: Network,
    destination: Network,
    /// What decides the shares. `None`: the policy of the configuration.
    pub policy: Option<Policy>,
    /// Part of SUP, in parts per 1024, unless the policy decides otherwise. `None`: that of the
    /// configuration.
    pub share: Option<u16>,
}

/// A rule before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainRule {
    /// SOUT addresses of this host.
    #[serde(default)]
    source: Network,
    /// SOUT addresses of other hosts.
    #[serde(default)]
    destination: Network,
    policy: Option<Policy>,
    #[serde(default, deserialize_with = "some_share")]
    share: Option<u16>,
}

impl TryFrom<PlainRule> for ShareRule {
    type Error = &'static str;

    fn try_from(rule: PlainRule) -> Result<Self, Self::Error> {
        let PlainRule { source, destination, policy, share } = rule;
        match (policy, share) {
            (None, None) => Err("missing field `share`: a rule has a share, a policy or both"),
            (Some(Policy::Drain), Some(_)) => {
                Err("a rule with policy = \"drain\" and a share: the share would be 0")
            }
            _ => Ok(Self { source, destination, policy, share }),
        }
    }
}

impl ShareRule {
    /// Returns whether the rule applies to a flow.
    pub fn fits(&self, source: Ipv4Addr, destination: Ipv4Addr) -> bool {
        self.source.contains(source) && self.destination.contains(destination)
    }
}

/// What applies to a port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRule {
    /// HCA and port: `mlx5_0:1`.
    #[serde(deserialize_with = "port")]
    pub port: String,
    /// What decides what it carries.
    pub policy: PortPolicy,
}

/// What decides what a port carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortPolicy {
    /// Nothing: the port is out of use.
    Drain,
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

pub(super) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let number = i64::deserialize(from)?;
    u16::try_from(number)
        .ok()
        .filter(|share| *share <= SHARE_ONE)
        .ok_or_else(|| de::Error::custom(format!("a share of {number}, expected 0 to {SHARE_ONE}")))
}

fn some_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    share(from).map(Some)
}

fn port<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let port = String::deserialize(from)?;
    check_port(&port).map_err(de::Error::custom)?;
    Ok(port)
}

pub(super) fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
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
