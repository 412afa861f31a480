//! HELLO, the first message of each end: its identity, its settings and its rails.

use std::net::IpAddr;

use super::RailRole;
use super::wire::{DecodeError, Reader, Writer};
use super::{Claim, MAGIC, PROTOCOL_VERSION, Release, Terms};

const NAME_BYTES: usize = 64;
const HOST_BYTES: usize = 255;
const WHY_BYTES: usize = 512;
/// The maximum number of usable rails in a HELLO, and of unusable ones. A connection uses at most
/// [`MAX_RAILS`](super::MAX_RAILS).
pub(crate) const MAX_OFFERS: usize = 32;
/// The maximum number of addresses of a rail in a HELLO.
pub(crate) const MAX_RAIL_ADDRS: usize = 16;

/// The first message of an end. Magic, version and claim come first in every version of the
/// protocol from 10 on: ends of different versions can refuse each other by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hello {
    /// What the connector claims. `control` sets it. Zeros in an acceptor's HELLO.
    pub claim: Claim,
    /// Process ID, for logs.
    pub pid: u32,
    /// Host name, for logs.
    pub host: String,
    /// Settings that must agree with the other end's.
    pub terms: Terms,
    /// The number of connections that the connector's process has begun from this device to this
    /// host: connections rotate over equal routes. An acceptor's value is ignored.
    pub rotation: u32,
    /// Whether the process has other ports, which a second HELLO would list.
    pub others: bool,
    /// Whether a WIRING for the routes that the connector expects follows at once. `control` sets
    /// it. False in an acceptor's HELLO.
    pub wiring_follows: bool,
    /// The rails of this end that a connection may use, now or once their port is active, at most
    /// [`MAX_OFFERS`].
    pub rails: Vec<RailInfo>,
    /// The unusable rails of this end, at most [`MAX_OFFERS`].
    pub unusable: Vec<UnusableRail>,
}

/// A rail that cannot be used, and is not part of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnusableRail {
    /// HCA and port, at most 64 bytes.
    pub name: String,
    /// See [`RailInfo`].
    pub role: RailRole,
    /// See [`RailInfo`].
    pub requested: bool,
    /// The reason, at most 512 bytes.
    pub why: String,
}

/// A rail, as its owner describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RailInfo {
    /// Name of the HCA, at most 64 bytes.
    pub name: String,
    /// Port number, from 1.
    pub port: u8,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Active MTU of the port.
    pub mtu: Mtu,
    /// Base LID of the port; 0 on RoCE.
    pub lid: u16,
    /// Addresses that a connection may use, the best first: 1 to [`MAX_RAIL_ADDRS`].
    pub addrs: Vec<RailAddr>,
    /// Speed of the port in Mb/s.
    pub speed_mbps: u32,
    /// Role of the rail in its device.
    pub role: RailRole,
    /// Whether the rail belongs to the device that NCCL requested. Others are substitutes, used if
    /// no requested one reaches the peer.
    pub requested: bool,
    /// Whether packets from and to the port must carry a GRH (`IBV_QPF_GRH_REQUIRED`). False on
    /// RoCE, whose packets always do.
    pub grh_required: bool,
    /// Whether the port is not active at present. The connection begins without the rail, and uses
    /// it once the port is active: see `docs/guide/failover.md`.
    pub is_down: bool,
}

/// An address of a rail: an entry of its port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RailAddr {
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    /// Index in the port's GID table when the message was sent.
    pub gid_index: u8,
    /// Type of the GID.
    pub gid_kind: GidKind,
    /// Prefix length of the network of the IP address; 0 if unknown.
    pub prefix_len: u8,
}

/// Returns why no connection can use a GID with this address, whichever end has it.
pub(crate) fn unusable_gid(addr: IpAddr) -> Option<&'static str> {
    match addr {
        addr if addr.is_loopback() => Some("loopback"),
        addr if addr.is_multicast() => Some("multicast"),
        addr if addr.is_unspecified() => Some("unspecified"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        _ => None,
    }
}

/// Defines an enum of small numbers of the verbs interface.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident, $what:literal, $expected:literal: $($(#[$vdoc:meta])* $variant:ident = $n:literal,)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $n,)+
        }

        impl $name {
            /// Returns the variant with this number; `None` for others.
            pub const fn from_raw(n: u32) -> Option<Self> {
                match n {
                    $($n => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the number in the verbs interface.
            pub const fn raw(self) -> u32 {
                self as u32
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let found = from.u8($what)?;
                Self::from_raw(found.into()).ok_or(DecodeError::Range { what: $what, found: found.into(), expected: $expected })
            }
        }
    };
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

impl Mtu {
    /// Returns the payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self.raw()
    }
}

impl Claim {
    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.release.encode()).bytes(&self.id).bytes(&self.token).bytes(&self.tag);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            release: Release::decode(&from.array("release")?),
            id: from.array("listener id")?,
            token: from.array("token")?,
            tag: from.array("tag")?,
        })
    }
}

impl Hello {
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        out.bytes(&MAGIC).u16(PROTOCOL_VERSION);
        self.claim.write(out);
        out.u32(self.pid).text(&self.host, HOST_BYTES);
        self.terms.write(out);
        out.u32(self.rotation).u8(self.others.into()).u8(self.wiring_follows.into());
        out.list(&self.rails, MAX_OFFERS, "rails", |out, rail| rail.write(out))?;
        out.list(&self.unusable, MAX_OFFERS, "rails that cannot be used", |out, rail| {
            rail.write(out);
            Ok(())
        })
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
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
        Ok(Self {
            claim: claim?,
            pid: from.u32("process id")?,
            host: from.text(HOST_BYTES, "host name")?,
            terms: Terms::read(from)?,
            rotation: from.u32("rotation")?,
            others: from.flag("other ports")?,
            wiring_follows: from.flag("WIRING follows")?,
            rails: from.list(MAX_OFFERS, "rails", RailInfo::read)?,
            unusable: from.list(MAX_OFFERS, "rails that cannot be used", UnusableRail::read)?,
        })
    }
}

impl RailInfo {
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        out.text(&self.name, NAME_BYTES).u8(self.port);
        out.u8(self.link_layer.raw() as u8).u8(self.mtu.raw() as u8).u16(self.lid);
        out.list(&self.addrs, MAX_RAIL_ADDRS, "addresses of a rail", |out, addr| {
            out.bytes(&addr.gid).u8(addr.gid_index).u8(addr.gid_kind.raw() as u8).u8(addr.prefix_len);
            Ok(())
        })?;
        out.u32(self.speed_mbps).u8(self.role.index()).u8(self.requested.into());
        out.u8(self.grh_required.into()).u8(self.is_down.into());
        Ok(())
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = from.text(NAME_BYTES, "rail name")?;
        let port = from.u8("port")?;
        if port == 0 {
            return Err(DecodeError::Range { what: "port", found: 0, expected: "1 to 255" });
        }
        let (link_layer, mtu) = (LinkLayer::read(from)?, Mtu::read(from)?);
        let lid = from.u16("LID")?;
        let addrs = from.list(MAX_RAIL_ADDRS, "addresses of a rail", RailAddr::read)?;
        if addrs.is_empty() {
            return Err(DecodeError::Range { what: "addresses of a rail", found: 0, expected: "1 to 16" });
        }
        Ok(Self {
            name,
            port,
            link_layer,
            mtu,
            lid,
            addrs,
            speed_mbps: from.u32("speed")?,
            role: RailRole::read(from)?,
            requested: from.flag("requested")?,
            grh_required: from.flag("GRH required")?,
            is_down: from.flag("port is down")?,
        })
    }
}

impl UnusableRail {
    fn write(&self, out: &mut Writer) {
        out.text(&self.name, NAME_BYTES)
            .u8(self.role.index())
            .u8(self.requested.into())
            .text(&self.why, WHY_BYTES);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: from.text(NAME_BYTES, "rail name")?,
            role: RailRole::read(from)?,
            requested: from.flag("requested")?,
            why: from.text(WHY_BYTES, "reason")?,
        })
    }
}

impl RailAddr {
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            gid: from.array("GID")?,
            gid_index: from.u8("GID index")?,
            gid_kind: GidKind::read(from)?,
            prefix_len: from.below(129, "prefix length", "0 to 128")?,
        })
    }
}
