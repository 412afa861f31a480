//! HELLO, the first message of each end: its identity, its settings and its rails.

use std::{fmt, net::IpAddr};

use super::wire::{Codec, DecodeError, Layout, Nested, Reader, Writer, layout, list, numbered, text, within};
use super::{Claim, MAGIC, PROTOCOL_VERSION, RailRole, Terms};

const NAME_BYTES: usize = 64;
const HOST_BYTES: usize = 255;
const WHY_BYTES: usize = 512;
/// The maximum number of usable rails in a HELLO, and of unusable ones. A connection uses at most
/// [`MAX_RAILS`](super::MAX_RAILS).
pub const MAX_OFFERS: usize = 32;
/// The maximum number of addresses of a rail in a HELLO.
pub const MAX_RAIL_ADDRS: usize = 16;

layout! {
    /// The first message of an end. Magic, version and claim come first in every version of the
    /// protocol from 10 on: ends of different versions can refuse each other by name.
    pub struct Hello {
        /// What the connector claims. `control` sets it. Zeros in an acceptor's HELLO.
        pub claim: Claim = VersionedClaim,
        /// Process ID, for logs.
        pub pid: u32 = "process id",
        /// Host name, for logs.
        pub host: String = text("host name", HOST_BYTES),
        /// Settings that must agree with the other end's.
        pub terms: Terms = Nested,
        /// The number of connections that the connector's process has begun from this device to this
        /// host: connections rotate over equal routes. An acceptor's value is ignored.
        pub rotation: u32 = "rotation",
        /// Whether the process has other ports, which a second HELLO would list.
        pub others: bool = "other ports",
        /// Whether a WIRING for the routes that the connector expects follows at once. `control` sets
        /// it. False in an acceptor's HELLO.
        pub wiring_follows: bool = "WIRING follows",
        /// The rails of this end that a connection may use, now or once their port is active, at most
        /// [`MAX_OFFERS`].
        pub rails: Vec<RailInfo> = list("rails", MAX_OFFERS, Nested),
        /// The unusable rails of this end, at most [`MAX_OFFERS`].
        pub unusable: Vec<UnusableRail> = list("rails that cannot be used", MAX_OFFERS, Nested),
    }
}

/// The codec of a claim behind magic and version.
pub(super) struct VersionedClaim;

impl Codec<Claim> for VersionedClaim {
    fn write(&self, claim: &Claim, out: &mut Writer) {
        claim.write(out.bytes(&MAGIC).u16(PROTOCOL_VERSION));
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<Claim, DecodeError> {
        let magic = from.array("magic")?;
        if magic != MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let found = from.u16("version")?;
        let claim = Claim::read(from);
        if found != PROTOCOL_VERSION {
            let release = claim.map(|claim| claim.release).unwrap_or_default();
            return Err(DecodeError::Version { found, release });
        }
        claim
    }
}

layout! {
    /// A rail that cannot be used, and is not part of a connection.
    pub struct UnusableRail {
        /// HCA and port, at most 64 bytes.
        pub name: String = text("rail name", NAME_BYTES),
        /// See [`RailInfo`].
        pub role: RailRole = Nested,
        /// See [`RailInfo`].
        pub requested: bool = "requested",
        /// The reason, at most 512 bytes.
        pub why: String = text("reason", WHY_BYTES),
    }
}

layout! {
    /// A rail, as its owner describes it.
    pub struct RailInfo {
        /// Name of the HCA, at most 64 bytes.
        pub name: String = text("rail name", NAME_BYTES),
        /// Port number, from 1.
        pub port: u8 = within("port", 1..=255, "1 to 255"),
        /// Link layer of the port.
        pub link_layer: LinkLayer = Nested,
        /// Active MTU of the port.
        pub mtu: Mtu = Nested,
        /// Base LID of the port; 0 on RoCE.
        pub lid: u16 = "LID",
        /// Addresses that a connection may use, the best first: 1 to [`MAX_RAIL_ADDRS`].
        pub addrs: Vec<RailAddr> =
            list("addresses of a rail", MAX_RAIL_ADDRS, Nested).not_empty("1 to 16"),
        /// Speed of the port in Mb/s.
        pub speed_mbps: u32 = "speed",
        /// Role of the rail in its device.
        pub role: RailRole = Nested,
        /// Whether the rail belongs to the device that NCCL requested. Others are substitutes, used if
        /// no requested one reaches the peer.
        pub requested: bool = "requested",
        /// Whether packets from and to the port must carry a GRH (`IBV_QPF_GRH_REQUIRED`). False on
        /// RoCE, whose packets always do.
        pub grh_required: bool = "GRH required",
        /// Whether the port is not active at present. The connection begins without the rail, and uses
        /// it once the port is active: see `docs/guide/failover.md`.
        pub is_down: bool = "port is down",
    }
}

layout! {
    /// An address of a rail: an entry of its port's GID table.
    #[derive(Copy)]
    pub struct RailAddr {
        /// The GID, in network byte order.
        pub gid: [u8; 16] = "GID",
        /// Index in the port's GID table when the message was sent.
        pub gid_index: u8 = "GID index",
        /// Type of the GID.
        pub gid_kind: GidKind = Nested,
        /// Prefix length of the network of the IP address; 0 if unknown.
        pub prefix_len: u8 = within("prefix length", 0..=128, "0 to 128"),
    }
}

/// Returns why no connection can use a GID with this address, whichever end has it.
pub fn unusable_gid(addr: IpAddr) -> Option<&'static str> {
    match addr {
        addr if addr.is_loopback() => Some("loopback"),
        addr if addr.is_multicast() => Some("multicast"),
        addr if addr.is_unspecified() => Some("unspecified"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        _ => None,
    }
}

numbered! {
    /// `IBV_LINK_LAYER_*`
    LinkLayer, "link layer", "1 (InfiniBand) or 2 (Ethernet)":
    /// InfiniBand
    InfiniBand = 1,
    /// Ethernet: RoCE
    Ethernet = 2,
}
numbered! {
    /// `enum ibv_mtu`
    Mtu, "MTU", "1 to 5 (256 to 4096 bytes)":
    /// 256 bytes
    B256 = 1,
    /// 512 bytes
    B512 = 2,
    /// 1024 bytes
    B1024 = 3,
    /// 2048 bytes
    B2048 = 4,
    /// 4096 bytes
    B4096 = 5,
}
numbered! {
    /// `enum ibv_gid_type`
    GidKind, "GID type", "0 (InfiniBand), 1 (RoCE v1) or 2 (RoCE v2)":
    /// InfiniBand
    Ib = 0,
    /// RoCE v1
    RoceV1 = 1,
    /// RoCE v2
    RoceV2 = 2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ib => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

impl Mtu {
    /// Returns the payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}
