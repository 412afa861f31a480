//! What the plugin says of the host that it is on, for `mpib doctor` and other tools: the document of `mpib_doctor_v1`.
//! `docs/guide/doctor.md` is its manual.

use serde::{Deserialize, Serialize};

/// [`Report::format`]. A field may come on top without a new number; none goes or changes its meaning.
pub const FORMAT: u32 = 1;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing is lost.
    Note,
    /// Something is lost, and the rest works.
    Warn,
    /// It cannot work so.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at, in a word. Several checks may have the same.
    pub id: String,
    /// The finding's weight.
    pub level: Level,
    /// The finding, in a sentence.
    pub text: String,
    /// What to do, where the sentence does not say it.
    pub remedy: Option<String>,
}

impl Check {
    /// Without a remedy.
    pub fn new(id: &str, level: Level, text: impl Into<String>) -> Self {
        Self { id: id.to_owned(), level, text: text.into(), remedy: None }
    }

    /// With what to do.
    pub fn remedy(mut self, what: impl Into<String>) -> Self {
        self.remedy = Some(what.into());
        self
    }
}

/// A host as the plugin sees it under the settings of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`]
    pub format: u32,
    /// The plugin's version.
    pub plugin: String,
    /// Version of the protocol between two ends.
    pub protocol: u16,
    /// The host's name.
    pub host: String,
    /// Every setting in effect.
    pub settings: Vec<Setting>,
    /// Every port of every adapter.
    pub ports: Vec<Port>,
    /// The devices that NCCL is shown, in the order of their numbers; none where init would fail.
    pub devices: Vec<Device>,
    /// Addresses at which a listener can be reached, as its handle names them.
    pub control: Vec<String>,
    /// With SOUT and SUP: which addresses of SOUT make one island with this host.
    pub island: Option<String>,
    /// What a peer is told of this host's ports: the bytes of a HELLO in hexadecimal, for `mpib_doctor_routes_v1` of the peer.
    /// Absent where init would fail.
    pub hello: Option<String>,
    /// What was looked at.
    pub checks: Vec<Check>,
}

/// Which port of one host reaches which port of another: the document of `mpib_doctor_routes_v1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// [`FORMAT`]
    pub format: u32,
    /// Why there is no table: what one of the two says cannot be read, or they cannot be joined at all.
    pub error: Option<String>,
    /// Settings that must be alike and are not, with both values: such hosts refuse each other's connections.
    pub differences: Vec<String>,
    /// Every pair of ports, those that a connection tries first before the others.
    pub pairs: Vec<Pair>,
}

/// What becomes of a pair of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Tried first.
    First,
    /// Tried where nothing before it works.
    Later,
    /// Not tried.
    Refused,
}

/// A port of this host and one of the peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// `hca:port` of this host.
    pub ours: String,
    /// `hca:port` of the peer.
    pub theirs: String,
    /// What becomes of it.
    pub verdict: Verdict,
    /// The addresses that it would use, in words; absent where it is refused.
    pub way: Option<String>,
    /// Why.
    pub why: String,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Environment variable.
    pub name: String,
    /// As it would be written.
    pub value: String,
    /// Whether that is the default.
    pub default: bool,
}

/// What carries a port's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// InfiniBand
    Infiniband,
    /// Ethernet: RoCE
    Ethernet,
}

/// What an entry of a GID table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// InfiniBand, or RoCE of a version that nobody told.
    #[serde(rename = "ib")]
    Ib,
    /// RoCE v1
    #[serde(rename = "roce-v1")]
    RoceV1,
    /// RoCE v2
    #[serde(rename = "roce-v2")]
    RoceV2,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The adapter's name.
    pub hca: String,
    /// Its number, from 1.
    pub port: u8,
    /// Whether a connection could use it.
    pub usable: bool,
    /// Why it could not.
    pub trouble: Option<String>,
    /// Why it is in none of the devices although it is usable, or what device it is in: its name.
    pub device: Option<String>,
    /// What it says of itself; absent where the adapter cannot be asked.
    pub state: Option<PortState>,
    /// sysfs path of the PCI device; absent for adapters that are not on PCI.
    pub pci_path: Option<String>,
    /// NUMA node of the PCI device; absent where the kernel knows none.
    pub numa: Option<u32>,
    /// The used entries of its GID table.
    pub gids: Vec<Gid>,
}

/// A port's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Whether its link is up (IBV_PORT_ACTIVE).
    pub active: bool,
    /// Link layer.
    pub link: Link,
    /// Mb/s
    pub speed_mbps: u32,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// InfiniBand only, else 0.
    pub lid: u16,
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// The address that it spells, IPv4 or IPv6.
    pub address: String,
    /// What it is.
    pub kind: Kind,
    /// Whether it holds on one link only.
    pub link_local: bool,
    /// The network interface behind it, where the kernel tells.
    pub interface: Option<String>,
    /// Prefix length of its network; absent where no interface of the process has the address.
    pub prefix: Option<u8>,
    /// Its place among those that a connection may use, 0 for the best; absent for the others.
    pub rank: Option<usize>,
    /// Why a connection may not use it.
    pub why_not: Option<String>,
}

/// A device as NCCL sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `name` of its properties.
    pub name: String,
    /// `speed` of its properties, in Mb/s.
    pub speed_mbps: u32,
    /// `pciPath` of its properties.
    pub pci_path: Option<String>,
    /// `maxComms` of its properties.
    pub max_connections: u32,
    /// Which rail and which plane of the network it is on, where the settings say so.
    pub rail_id: Option<i16>,
    /// See `rail_id`.
    pub plane_id: Option<i16>,
    /// Its ports: SOUT and SUP, or one.
    pub rails: Vec<Rail>,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail {
    /// `hca:port`
    pub name: String,
    /// 0 SOUT, 1 SUP, where the device has both; else 0.
    pub role: u8,
}
