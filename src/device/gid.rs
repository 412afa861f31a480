//! Which entry of a port's GID table a connection uses.

use crate::proto::{GidKind, LinkLayer};
use crate::verbs::Gid;

/// Chooses among `gids`, the used entries of a port. `wanted` is the user's `NCCL_IB_GID_INDEX`; without it an
/// InfiniBand port uses entry 0, and a RoCE port the first entry of the best class: v2 with an IPv4 address,
/// v2 with a global IPv6 address, v1, and link-local addresses only where there is nothing else.
pub(super) fn choose(gids: &[Gid], link: LinkLayer, wanted: Option<u8>) -> Result<Gid, String> {
    let index = match (wanted, link) {
        (Some(index), _) => Some(index),
        (None, LinkLayer::InfiniBand) => Some(0),
        (None, LinkLayer::Ethernet) => None,
    };
    match index {
        Some(index) => gids.iter().find(|g| g.index == index).copied().ok_or_else(|| {
            let origin = if wanted.is_some() { "NCCL_IB_GID_INDEX says" } else { "InfiniBand uses" };
            format!("{origin} GID index {index}, which is empty; the port has {}", list(gids))
        }),
        None => gids
            .iter()
            .min_by_key(|g| (class(g), g.index))
            .copied()
            .ok_or_else(|| "its GID table is empty: has the network interface an address?".to_owned()),
    }
}

/// Lower is better.
fn class(gid: &Gid) -> u8 {
    let v4 = gid.addr().is_ipv4();
    match (gid.is_link_local(), gid.kind) {
        (false, GidKind::RoceV2) if v4 => 0,
        (false, GidKind::RoceV2) => 1,
        (false, GidKind::RoceV1 | GidKind::Ib) => 2,
        (true, GidKind::RoceV2) => 3,
        (true, GidKind::RoceV1 | GidKind::Ib) => 4,
    }
}

/// The entries, for a message.
fn list(gids: &[Gid]) -> String {
    if gids.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<_> = gids.iter().map(|g| format!("{} ({}, {:?})", g.index, g.addr(), g.kind)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn table(entries: &[(&str, GidKind)]) -> Vec<Gid> {
        let gid = |(i, (text, kind)): (usize, &(&str, GidKind))| Gid {
            index: i as u8,
            raw: text.parse::<Ipv6Addr>().unwrap().octets(),
            kind: *kind,
        };
        entries.iter().enumerate().map(gid).collect()
    }

    use GidKind::{Ib, RoceV1, RoceV2};

    #[test]
    fn classes_in_order() {
        let mut all = vec![
            ("fe80::1", RoceV1),
            ("fe80::1", RoceV2),
            ("::ffff:10.1.2.3", RoceV1),
            ("2001:db8::1", RoceV2),
            ("::ffff:10.1.2.3", RoceV2),
        ];
        for best in (0..all.len()).rev() {
            assert_eq!(choose(&table(&all), LinkLayer::Ethernet, None).unwrap().index as usize, best);
            all.pop();
        }
    }

    #[test]
    fn a_link_local_ipv4_is_not_better_than_a_global_ipv6() {
        let gids = table(&[("::ffff:169.254.1.1", RoceV2), ("2001:db8::1", RoceV2)]);
        assert_eq!(choose(&gids, LinkLayer::Ethernet, None).unwrap().index, 1);
    }

    #[test]
    fn fe80_with_ffff_in_the_middle_is_not_ipv4() {
        // Only bytes 8..12 look like a mapped address.
        let gids = table(&[("fe80::ffff:a00:1", RoceV2), ("2001:db8::1", RoceV2)]);
        assert_eq!(choose(&gids, LinkLayer::Ethernet, None).unwrap().index, 1);
    }

    #[test]
    fn the_users_index_wins_and_must_exist() {
        let gids = table(&[("fe80::1", RoceV1), ("::ffff:10.0.0.1", RoceV2)]);
        assert_eq!(choose(&gids, LinkLayer::Ethernet, Some(0)).unwrap().index, 0);
        let said = choose(&gids, LinkLayer::Ethernet, Some(7)).unwrap_err();
        assert!(
            said.contains("NCCL_IB_GID_INDEX") && said.contains("index 7") && said.contains("10.0.0.1"),
            "{said}"
        );
    }

    #[test]
    fn infiniband_uses_entry_0() {
        let gids = table(&[("fe80::2:c903:1", Ib), ("fe80::2:c903:2", Ib)]);
        assert_eq!(choose(&gids, LinkLayer::InfiniBand, None).unwrap().index, 0);
        assert!(choose(&[], LinkLayer::InfiniBand, None).is_err());
        assert!(choose(&[], LinkLayer::Ethernet, None).unwrap_err().contains("empty"));
    }
}
