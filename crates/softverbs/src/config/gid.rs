//! Identifiers derived from the description of a device: GUID, LID, GID table.

use std::net::IpAddr;

use crate::config::spec::DEFAULT_SUBNET;
use crate::config::{DeviceSpec, LinkLayer};

/// `enum ibv_gid_type`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// `IBV_GID_TYPE_IB`
    InfiniBand,
    /// `IBV_GID_TYPE_ROCE_V1`
    RoceV1,
    /// `IBV_GID_TYPE_ROCE_V2`
    RoceV2,
}

/// An entry of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid {
    /// Big-endian, as in packets.
    pub(crate) raw: [u8; 16],
    /// Length of the subnet prefix in bits of `raw`.
    pub(crate) prefix: u8,
    /// Type.
    pub(crate) kind: GidKind,
}

/// Returns the GUID of a device. It depends on name, first address, LID, subnet and wire, which
/// identify the device. The GUID is locally administered and cannot collide with those of vendors.
pub(crate) fn guid(spec: &DeviceSpec) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    spec.name.bytes().for_each(&mut mix);
    if let Some((addr, _)) = spec.addrs.first() {
        mapped(*addr).into_iter().for_each(&mut mix);
    }
    if let Some(lid) = spec.lid {
        lid.to_be_bytes().into_iter().for_each(&mut mix);
    }
    if spec.subnet != DEFAULT_SUBNET {
        spec.subnet.to_be_bytes().into_iter().for_each(&mut mix);
    }
    if spec.wire != 0 {
        spec.wire.to_be_bytes().into_iter().for_each(&mut mix);
    }
    let [a, b, c, d, e, f, ..] = hash.to_be_bytes();
    u64::from_be_bytes([(a & 0xfc) | 0x02, b, c, 0xff, 0xfe, d, e, f])
}

/// The highest unicast LID.
pub(crate) const MAX_LID: u16 = 0xBFFF;

/// Returns the base LID of the port; 0 for Ethernet.
pub(crate) fn lid(spec: &DeviceSpec) -> u16 {
    match spec.link_layer {
        LinkLayer::Ethernet => 0,
        LinkLayer::InfiniBand => spec.lid.unwrap_or_else(|| {
            let lids = 1 << spec.lmc;
            let below = u16::try_from(guid(spec) % u64::from(MAX_LID / lids)).unwrap_or(0);
            lids * (1 + below)
        }),
    }
}

/// Returns all LIDs of an InfiniBand port.
pub(crate) fn lids(spec: &DeviceSpec) -> std::ops::Range<u16> {
    let base = lid(spec);
    base..base + (1 << spec.lmc)
}

/// Returns the first 64 bits of a GID with an FLID: the prefix of site-local addresses, the FLID,
/// and the low bits of the subnet prefix.
pub(crate) fn routable_prefix(flid: u16, subnet: u64) -> u64 {
    0xfec0 << 48 | u64::from(flid) << 16 | subnet & 0xffff
}

/// Returns the address as 128 bits. IPv4 is mapped into IPv6, as RoCE requires.
pub(crate) fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the GID table in the order in which Linux fills it: the default (link-local) GID first,
/// then the addresses. A RoCE port has each GID twice, as version 1 and version 2. An InfiniBand
/// port has that of its subnet, and the one with its FLID if it has one.
pub(crate) fn table(spec: &DeviceSpec) -> Vec<Gid> {
    let addrs: Vec<_> = spec.addrs.iter().copied().map(Some).collect();
    table_of(spec, &addrs).into_iter().flatten().collect()
}

/// Like [`table`], with `addrs` instead of the configured addresses. `None` leaves two entries
/// empty, as the removal of an address does.
pub(crate) fn table_of(spec: &DeviceSpec, addrs: &[Option<(IpAddr, u8)>]) -> Vec<Option<Gid>> {
    let guid = guid(spec);
    let gid = |prefix: u64| (u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes();
    if spec.link_layer == LinkLayer::InfiniBand {
        let routable = spec.flid.map(|flid| routable_prefix(flid, spec.subnet));
        let entry = |prefix| Some(Gid { raw: gid(prefix), prefix: 64, kind: GidKind::InfiniBand });
        return std::iter::once(spec.subnet).chain(routable).map(entry).collect();
    }
    roce_table(gid(DEFAULT_SUBNET), addrs)
}

/// Returns the GID table of a RoCE port with this default GID.
pub(crate) fn roce_table(default: [u8; 16], addrs: &[Option<(IpAddr, u8)>]) -> Vec<Option<Gid>> {
    let addrs = addrs.iter().map(|addr| {
        addr.map(|(addr, prefix)| {
            let offset = if addr.is_ipv4() { 96 } else { 0 };
            (mapped(addr), prefix.saturating_add(offset))
        })
    });
    let both = |place: Option<([u8; 16], u8)>| {
        [GidKind::RoceV1, GidKind::RoceV2].map(|kind| place.map(|(raw, prefix)| Gid { raw, prefix, kind }))
    };
    std::iter::once(Some((default, 64))).chain(addrs).flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_devices_differ_and_are_mapped() {
        let [a, b] = crate::config::devices() else { panic!("two default devices") };
        assert_ne!(guid(a), guid(b));
        let gids = table(a);
        assert_eq!(gids.len(), 4);
        assert_eq!((gids[3].kind, gids[3].prefix), (GidKind::RoceV2, 120));
        assert_eq!(gids[3].raw, mapped(a.addrs[0].0));
        assert_eq!(gids[0].raw[..2], [0xfe, 0x80]);
    }
}
