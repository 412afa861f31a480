//! The plugin's report on a host, and its report on the routes between two hosts.
//!
//! The plugin writes these documents as JSON: [`Report`] from its function `mpib_doctor_v1`, and
//! [`Routes`] from `mpib_doctor_routes_v1`. `mpib doctor` and other tools read them;
//! `docs/guide/doctor.md` is their manual.
//!
//! A reader should check [`Report::format`] and ignore unknown fields:
//!
//! ```
//! use nccl_net_mpib_agent_iface::doctor::{Check, Level};
//!
//! let check = Check::new("ports", Level::Warn, "port mlx5_1:1 is down").remedy("check the cable");
//! assert!(check.level > Level::Note);
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::codes::Code;

/// Value of [`Report::format`] and [`Routes::format`]. Fields may be added without a new number. No
/// field is removed, and none changes its meaning.
pub const FORMAT: u32 = 1;

/// Severity of a finding, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As expected.
    Ok,
    /// Worth knowing, without any loss.
    Note,
    /// A feature or some performance is lost; the rest works.
    Warn,
    /// The plugin cannot work.
    Fail,
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// Subject of the check, in one word. Several checks may have the same id.
    pub id: String,
    /// Severity.
    pub level: Level,
    /// The finding as a sentence.
    pub text: String,
    /// What to do, unless the text already contains it.
    pub remedy: Option<String>,
    /// Code of a loss or a failure, which `mpib explain` knows; absent in the reports of plugins before
    /// 0.3.
    #[serde(default)]
    pub code: Option<String>,
}

impl Check {
    /// Creates a check without a remedy. A loss or a failure has the code at the end of its text, else
    /// that of its cause.
    pub fn new(id: &str, level: Level, text: impl Into<String>) -> Self {
        let text = text.into();
        let (text, code) = match Code::take(&text) {
            (text, Some(code)) => (text.to_owned(), Some(code)),
            (_, None) => (text, None),
        };
        let code = code.or_else(|| Code::of_check(id, &text)).filter(|_| level > Level::Note);
        Self { id: id.to_owned(), level, text, remedy: None, code: code.map(|code| code.to_string()) }
    }

    /// Adds a remedy.
    pub fn remedy(mut self, what: impl Into<String>) -> Self {
        self.remedy = Some(what.into());
        self
    }
}

/// A host as the plugin sees it with the settings of the process: the document of `mpib_doctor_v1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// [`FORMAT`]
    pub format: u32,
    /// Version of the plugin.
    pub plugin: String,
    /// Version of the wire protocol.
    pub protocol: u16,
    /// Name of the host.
    pub host: String,
    /// All settings.
    pub settings: Vec<Setting>,
    /// All ports of all adapters.
    pub ports: Vec<Port>,
    /// Devices as NCCL sees them, in the order of their numbers; empty if init would fail.
    pub devices: Vec<Device>,
    /// Addresses of a listener, as its handle contains them.
    pub control: Vec<String>,
    /// With SOUT and SUP: the SOUT addresses that form one island with this host.
    pub island: Option<String>,
    /// HELLO message of this host in hexadecimal, an argument of `mpib_doctor_routes_v1`. Absent if
    /// init would fail.
    pub hello: Option<String>,
    /// All checks.
    pub checks: Vec<Check>,
}

/// The routes between the ports of two hosts: the document of `mpib_doctor_routes_v1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Routes {
    /// [`FORMAT`]
    pub format: u32,
    /// Why there are no routes: a HELLO message is invalid, or the hosts cannot be connected at
    /// all.
    pub error: Option<String>,
    /// Settings that must be equal but differ, with both values. Such hosts refuse to connect.
    pub differences: Vec<String>,
    /// All pairs of ports, in the order in which a connection tries them.
    pub pairs: Vec<Pair>,
}

/// Use of a pair of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Tried first.
    First,
    /// Tried if the earlier pairs fail.
    Later,
    /// Not tried.
    Refused,
}

/// A port of this host and a port of the peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// `hca:port` of this host.
    pub ours: String,
    /// `hca:port` of the peer.
    pub theirs: String,
    /// Use of the pair.
    pub verdict: Verdict,
    /// Addresses of the route, as text; absent if the pair is refused.
    pub way: Option<String>,
    /// Reason of the verdict.
    pub why: String,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Setting {
    /// Environment variable.
    pub name: String,
    /// Value as it would be set.
    pub value: String,
    /// Whether the value is the default.
    pub default: bool,
    /// Why it is to be alike on all hosts; absent if hosts may differ, if a handshake compares it
    /// ([`Routes::differences`]), and in reports of plugins before 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alike: Option<Alike>,
}

/// Why a setting is to be alike on all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alike {
    /// Severity of a difference.
    pub level: Level,
    /// Whether a difference is that one host sets it and the other does not: the value names what each
    /// host may call otherwise.
    pub by_presence: bool,
    /// What a difference does.
    pub why: Cow<'static, str>,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// InfiniBand.
    Infiniband,
    /// Ethernet (RoCE).
    Ethernet,
}

/// Type of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Kind {
    /// InfiniBand, or RoCE of an unknown version.
    #[serde(rename = "ib")]
    Ib,
    /// RoCE v1.
    #[serde(rename = "roce-v1")]
    RoceV1,
    /// RoCE v2.
    #[serde(rename = "roce-v2")]
    RoceV2,
}

/// One port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Port {
    /// Name of the adapter.
    pub hca: String,
    /// Port number, from 1.
    pub port: u8,
    /// Whether a connection can use the port.
    pub usable: bool,
    /// Why the port is not usable.
    pub trouble: Option<String>,
    /// Whether `NCCL_IB_HCA` selects the port, or is not set.
    #[serde(default = "selected")]
    pub selected: bool,
    /// Name of the device that contains the port, or the reason why no device contains it although
    /// it is usable.
    pub device: Option<String>,
    /// State of the port; absent if it cannot be queried.
    pub state: Option<PortState>,
    /// sysfs path of the PCI device; absent if the adapter is not a PCI device.
    pub pci_path: Option<String>,
    /// Ports with equal numbers are known to be one physical port: PCI functions that share a wire.
    /// Absent if the adapter cannot be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<usize>,
    /// NUMA node of the PCI device; absent if the kernel reports none.
    pub numa: Option<u32>,
    /// The used entries of its GID table.
    pub gids: Vec<Gid>,
    /// Folder of its hardware counters, which may not exist; absent if no device contains the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hw_counters: Option<String>,
    /// How long the adapter takes for a queue pair; absent if none could be connected to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<VerbTimes>,
}

impl Port {
    /// Returns its name, as in `mlx5_0:1`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.hca, self.port)
    }

    /// Reads in sysfs whether its PCI function is a virtual one.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.pci_path.as_deref().is_some_and(|path| Path::new(path).join("physfn").exists())
    }

    /// Groups ports whose wire is known by that.
    #[must_use]
    pub fn by_wire<'a>(ports: impl Iterator<Item = &'a Self>) -> BTreeMap<usize, Vec<&'a Self>> {
        let mut wires: BTreeMap<usize, Vec<&Self>> = BTreeMap::new();
        for (wire, port) in ports.filter_map(|port| Some((port.wire?, port))) {
            wires.entry(wire).or_default().push(port);
        }
        wires
    }
}

/// Times of verbs for one queue pair that is connected to itself, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerbTimes {
    /// `ibv_create_qp`
    pub create_us: u64,
    /// The three calls of `ibv_modify_qp` to RTS.
    pub modify_us: u64,
    /// `ibv_destroy_qp`
    pub destroy_us: u64,
}

/// Value of [`Port::selected`] in reports of plugins before 0.3.
fn selected() -> bool {
    true
}

/// Attributes of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortState {
    /// Whether its link is up (IBV_PORT_ACTIVE).
    pub active: bool,
    /// Link layer.
    pub link: Link,
    /// Speed in Mb/s.
    pub speed_mbps: u32,
    /// Active MTU in bytes.
    pub mtu: u32,
    /// Base LID of an InfiniBand port; 0 for RoCE.
    pub lid: u16,
    /// What only an InfiniBand port has; absent for RoCE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infiniband: Option<Infiniband>,
}

/// Attributes of an InfiniBand port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Infiniband {
    /// LID mask control: the port has 2 to this power LIDs, from the base LID on.
    pub lmc: u8,
    /// Whether packets from and to the port must carry a GRH (IBV_QPF_GRH_REQUIRED).
    pub grh_required: bool,
    /// Prefix of its subnet in hexadecimal; absent if its GID table is empty.
    pub subnet: Option<String>,
    /// FLID by which routers reach it from other subnets; absent if it has none.
    pub flid: Option<u16>,
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gid {
    /// Index in the table.
    pub index: u8,
    /// The address, IPv4 or IPv6.
    pub address: String,
    /// Type.
    pub kind: Kind,
    /// Whether the address is link-local.
    pub link_local: bool,
    /// Network interface of the address, if the kernel reports it.
    pub interface: Option<String>,
    /// Prefix length of its network; absent if no interface in the network namespace has the
    /// address.
    pub prefix: Option<u8>,
    /// Rank among the GIDs that a connection may use, 0 for the best; absent for the others.
    pub rank: Option<usize>,
    /// Why a connection may not use it.
    pub why_not: Option<String>,
}

/// A device as NCCL sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Device {
    /// `name` of its properties.
    pub name: String,
    /// `speed` of its properties, in Mb/s.
    pub speed_mbps: u32,
    /// `pciPath` of its properties.
    pub pci_path: Option<String>,
    /// `maxComms` of its properties.
    pub max_connections: u32,
    /// Network rail of the device, if configured.
    pub rail_id: Option<i16>,
    /// Network plane of the device, if configured.
    pub plane_id: Option<i16>,
    /// Ports of the device.
    pub rails: Vec<Rail>,
}

/// One port of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rail {
    /// `hca:port`
    pub name: String,
    /// 0 SOUT, 1 SUP; 0 if the device does not have both.
    pub role: u8,
}
