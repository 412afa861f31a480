//! The attributes of a port, and the entries of its GID table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mpib_proto::{GidKind, LinkLayer, flid, unusable_gid};
use rdma_sys as sys;

use super::shim;
use crate::error::{Error, Result};

/// The attributes of a port.
#[derive(Debug, Clone, Copy)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// Whether the port is `IBV_PORT_ACTIVE`.
    pub(crate) active: bool,
    /// The link layer.
    pub link: LinkLayer,
    /// Link width times lane speed, in Mb/s.
    pub speed: u32,
    /// `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u8,
    /// Base LID (InfiniBand).
    pub lid: u16,
    /// LID mask control: the port has 2 to this power LIDs, from the base LID on.
    pub(crate) lmc: u8,
    /// Whether packets of an InfiniBand port must carry a GRH. RoCE packets always do.
    pub grh_required: bool,
    /// Entries in the GID table.
    pub(crate) gids: u32,
    /// Entries in the P_Key table.
    pub(crate) pkeys: u16,
    /// Largest message in bytes.
    pub(crate) max_message: u32,
}

impl Port {
    /// Returns an error if connections cannot use the port.
    pub(super) fn of(number: u8, attr: &sys::ibv_port_attr, speed_ex: u32) -> Result<Self> {
        let link = match attr.link_layer {
            shim::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            shim::LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            other => {
                return Err(Error::Usage(format!(
                    "its link layer is {other}: expected 1 (InfiniBand) or 2 (Ethernet, for RoCE)"
                )));
            }
        };
        Ok(Self {
            number,
            active: attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            link,
            speed: lanes(attr.active_width) * port_speed(attr.active_speed, speed_ex),
            mtu: u8::try_from(attr.active_mtu).unwrap_or(0),
            lid: attr.lid,
            lmc: attr.lmc,
            grh_required: link == LinkLayer::InfiniBand && attr.flags & shim::GRH_REQUIRED != 0,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkeys: attr.pkey_tbl_len,
            max_message: attr.max_msg_sz,
        })
    }
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Index in the table.
    pub index: u8,
    /// The 16 bytes.
    pub raw: [u8; 16],
    /// The GID type; [`GidKind::Ib`] also if the library does not report the version of RoCE.
    pub kind: GidKind,
    /// Index of the network interface of the GID; 0 if unknown.
    pub(crate) interface: u32,
}

impl Gid {
    /// Returns `None` if the entry is empty, or if its index does not fit into an address handle.
    pub(super) fn of(entry: shim::GidEntry) -> Option<Self> {
        let shim::GidEntry { raw, kind, interface, .. } = entry;
        let gid = Self { index: u8::try_from(entry.index).ok()?, raw, kind, interface };
        gid.is_set().then_some(gid)
    }

    /// Returns the address in the GID; an IPv4 address only if the 12 bytes before it mark it as
    /// mapped.
    pub(crate) fn addr(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.raw);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Returns whether the address is valid on one link only: `fe80::/10` or `169.254.0.0/16`.
    pub(crate) fn is_link_local(&self) -> bool {
        match self.addr() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Returns the FLID in a GID of an InfiniBand port; `None` if the GID has none.
    pub(crate) fn flid(&self) -> Option<u16> {
        flid(self.raw)
    }

    /// Returns why no connection can use the GID.
    pub(crate) fn unusable(&self) -> Option<&'static str> {
        unusable_gid(self.addr())
    }

    /// Returns whether the entry is in use.
    pub(crate) fn is_set(&self) -> bool {
        self.raw != [0; 16] && self.addr() != IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    }
}

/// Returns the number of lanes for `active_width` (InfiniBand specification,
/// PortInfo:LinkWidthActive).
fn lanes(width: u8) -> u32 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Returns the speed of one lane in Mb/s: from `active_speed_ex` if its value is known here, else
/// from `active_speed`, which ends at NDR.
fn port_speed(active_speed: u8, active_speed_ex: u32) -> u32 {
    match lane_speed(active_speed_ex) {
        0 => lane_speed(active_speed.into()),
        speed => speed,
    }
}

/// Returns the speed of one lane in Mb/s for `active_speed` or `active_speed_ex`
/// (PortInfo:LinkSpeedActive, LinkSpeedExtActive, LinkSpeedExtActive2).
fn lane_speed(speed: u32) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid { index: 0, raw: text.parse::<Ipv6Addr>().unwrap().octets(), kind: GidKind::RoceV2, interface: 0 }
    }

    #[test]
    fn ipv4_needs_all_twelve_bytes() {
        assert_eq!(gid("::ffff:10.0.0.1").addr(), IpAddr::from([10, 0, 0, 1]));
        assert!(gid("fe80::ffff:a00:1").addr().is_ipv6());
        assert!(gid("::1:ffff:a00:1").addr().is_ipv6());
    }

    #[test]
    fn link_local_of_both_families() {
        assert!(gid("fe80::1").is_link_local());
        assert!(gid("::ffff:169.254.3.4").is_link_local());
        assert!(!gid("::ffff:10.0.0.1").is_link_local());
        assert!(!gid("2001:db8::1").is_link_local());
        assert!(!gid("::").is_set());
    }

    #[test]
    fn addresses_that_no_peer_can_answer_are_known() {
        for (text, why) in [
            ("::ffff:127.0.0.1", Some("loopback")),
            ("::1", Some("loopback")),
            ("::ffff:224.0.0.1", Some("multicast")),
            ("ff02::1", Some("multicast")),
            ("::ffff:255.255.255.255", Some("broadcast")),
            ("fe80::1", None),
            ("::ffff:10.0.0.1", None),
        ] {
            assert_eq!(gid(text).unusable(), why, "{text}");
        }
    }

    #[test]
    fn speeds_of_known_links() {
        assert_eq!(lanes(2) * lane_speed(32), 100_000); // EDR 4x
        assert_eq!(lanes(2) * lane_speed(128), 400_000); // NDR 4x
        assert_eq!(lanes(1) * lane_speed(64), 50_000);
        // XDR 4x, which the older field shows as NDR; a library without the newer field; an unknown
        // speed.
        assert_eq!(lanes(2) * port_speed(128, 256), 800_000);
        assert_eq!(lanes(2) * port_speed(128, 0), 400_000);
        assert_eq!(lanes(2) * port_speed(128, 512), 400_000);
    }
}
