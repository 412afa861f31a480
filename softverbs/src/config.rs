//! Which devices exist.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

/// What a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// Subnet with LIDs.
    #[allow(dead_code, reason = "made by the parser of SOFTVERBS_DEVICES")]
    InfiniBand,
}

/// One device as configured.
#[derive(Debug, Clone)]
pub(crate) struct DeviceSpec {
    /// Device name, at most 63 bytes.
    pub(crate) name: String,
    /// Addresses of the port with their prefix lengths.
    pub(crate) addrs: Vec<(IpAddr, u8)>,
    /// What the port speaks.
    pub(crate) link_layer: LinkLayer,
    /// Bytes per second and direction; `None` is as fast as memory.
    pub(crate) rate: Option<u64>,
    /// One-way latency in nanoseconds.
    pub(crate) latency_ns: u64,
    /// Path MTU of the port in bytes: 256 to 4096.
    pub(crate) mtu: u32,
}

/// The configured devices; the same at every call.
pub(crate) fn devices() -> &'static [DeviceSpec] {
    static DEVICES: OnceLock<Vec<DeviceSpec>> = OnceLock::new();
    DEVICES.get_or_init(|| (0..2).map(default_device).collect())
}

fn default_device(index: u8) -> DeviceSpec {
    DeviceSpec {
        name: format!("soft{index}"),
        addrs: vec![(IpAddr::V4(Ipv4Addr::new(192, 168, 200 + index, 1)), 24)],
        link_layer: LinkLayer::Ethernet,
        rate: None,
        latency_ns: 0,
        mtu: 4096,
    }
}
