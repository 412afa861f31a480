//! Selects the entries of a port's GID table that a connection may use. `route` chooses among them
//! by the peer's addresses.

use mpib_proto::{GidKind, LinkLayer};

use crate::config::{AddrRange, Config, Family, GidIndex};
use crate::verbs::Gid;

/// The settings that concern one port: its addresses, and its speed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// `NCCL_IB_GID_INDEX`. It overrides the other settings of addresses.
    index: Option<u8>,
    /// The index is one number for all ports. Then it counts for RoCE only, as in NCCL's own
    /// transport: entry 3 of an InfiniBand port is seldom in use.
    index_of_roce: bool,
    /// `NCCL_IB_ADDR_FAMILY`
    family: Option<Family>,
    /// `NCCL_IB_ADDR_RANGE`
    range: Option<AddrRange>,
    /// `NCCL_IB_ROCE_VERSION_NUM`
    version: Option<u8>,
    /// `NCCL_IB_ROUTABLE_FLID_GID_INDEX`
    flid_index: u8,
    /// `MPIB_RAIL_SPEED`, in Mb/s.
    pub(super) speed: Option<u32>,
}

impl Wanted {
    /// Reads the settings of port `port` of this HCA.
    pub(super) fn new(config: &Config, hca: &str, port: u8) -> Self {
        Self {
            index: config.gid_index.of(hca, port),
            index_of_roce: matches!(config.gid_index, GidIndex::All(_)),
            family: config.addr_family,
            range: config.addr_range.clone(),
            version: config.roce_version,
            flid_index: config.flid_gid_index,
            speed: config.rail_speed.as_ref().and_then(|speeds| speeds.of(hca, port)),
        }
    }

    /// Returns the configured index for a port of this link layer.
    fn index(&self, link: LinkLayer) -> Option<u8> {
        self.index.filter(|_| link == LinkLayer::Ethernet || !self.index_of_roce)
    }

    /// Returns why an entry of a RoCE port must not be used, if so.
    fn objection(&self, gid: &Gid) -> Option<String> {
        let ip = gid.addr();
        if let Some(why) = gid.unusable() {
            return Some(why.to_owned());
        }
        if self.version == Some(1) && gid.kind == GidKind::RoceV2 {
            return Some("not RoCE v1".into());
        }
        if self.version == Some(2) && gid.kind == GidKind::RoceV1 {
            return Some("not RoCE v2".into());
        }
        if self.family.is_some_and(|family| (family == Family::V4) != ip.is_ipv4()) {
            return Some(if ip.is_ipv4() { "IPv4".into() } else { "IPv6".into() });
        }
        match &self.range {
            Some(range) if !range.contains(ip) => Some("not in the range".into()),
            // Every port has one: no setting of a family can mean it.
            None if self.family.is_some() && gid.is_link_local() => Some("link-local".into()),
            _ => None,
        }
    }

    /// Lists the settings in effect as they would be written.
    fn settings(&self) -> Vec<String> {
        let family = self.family.map(|family| format!("NCCL_IB_ADDR_FAMILY={family}"));
        let range = self.range.as_ref().map(|range| format!("NCCL_IB_ADDR_RANGE={range}"));
        let version = self.version.map(|version| format!("NCCL_IB_ROCE_VERSION_NUM={version}"));
        [family, range, version].into_iter().flatten().collect()
    }
}

/// Returns those of `gids`, the used entries of a port, that a connection may use, the best first,
/// at least one. An explicit index is one entry, and InfiniBand uses entry 0. An InfiniBand port
/// has in addition the entry with its FLID, if there is one. A RoCE port has all that the settings
/// allow: v2 with an IPv4 address, v2 with an IPv6 address, v1. Link-local addresses count only if
/// there is no other.
pub(super) fn candidates(gids: &[Gid], link: LinkLayer, wanted: &Wanted) -> Result<Vec<Gid>, String> {
    let index = match (wanted.index(link), link) {
        (Some(index), _) => Some(index),
        (None, LinkLayer::InfiniBand) => Some(0),
        (None, LinkLayer::Ethernet) => None,
    };
    if let Some(index) = index {
        let found = gids.iter().find(|g| g.index == index).copied();
        let routable =
            |gid: &Gid| gid.index == wanted.flid_index && gid.index != index && gid.flid().is_some();
        let routable = gids.iter().filter(|gid| link == LinkLayer::InfiniBand && routable(gid));
        let found = found.map(|gid| std::iter::once(gid).chain(routable.copied()).collect());
        return found.ok_or_else(|| {
            let origin =
                if wanted.index(link).is_some() { "NCCL_IB_GID_INDEX names" } else { "InfiniBand uses" };
            format!("{origin} GID index {index}, which is empty; the port has {}", list(gids, |_| None))
        });
    }
    let mut good: Vec<Gid> = gids.iter().filter(|gid| wanted.objection(gid).is_none()).copied().collect();
    if good.is_empty() {
        let settings = wanted.settings();
        return Err(match (gids.is_empty(), settings.is_empty()) {
            (true, _) => "its GID table is empty: has the network interface an address?".to_owned(),
            (false, true) => {
                format!("no entry of its GID table can be used: {}", list(gids, |g| wanted.objection(g)))
            }
            (false, false) => format!(
                "no entry of its GID table fits {}: {}",
                settings.join(" and "),
                list(gids, |g| wanted.objection(g))
            ),
        });
    }
    if good.iter().any(|gid| !gid.is_link_local()) {
        good.retain(|gid| !gid.is_link_local());
    }
    good.sort_by_key(|gid| (class(gid), gid.index));
    Ok(good)
}

/// Returns for each of `gids` its rank among the [`candidates`], 0 for the best, or why it is not
/// one of them.
pub(super) fn verdicts(gids: &[Gid], link: LinkLayer, wanted: &Wanted) -> Vec<Result<usize, String>> {
    let chosen = candidates(gids, link, wanted).unwrap_or_default();
    let verdict = |gid: &Gid| {
        if let Some(place) = chosen.iter().position(|c| c.index == gid.index) {
            return Ok(place);
        }
        Err(match (wanted.index(link), link) {
            (Some(index), _) => format!("NCCL_IB_GID_INDEX names {index}"),
            (None, LinkLayer::InfiniBand) => "InfiniBand uses GID index 0".into(),
            (None, LinkLayer::Ethernet) => {
                wanted.objection(gid).unwrap_or_else(|| "link-local, and there are others".into())
            }
        })
    };
    gids.iter().map(verdict).collect()
}

/// Ranks an entry. Lower is better.
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

/// Lists the entries, each with its remark, for a message.
pub(super) fn list(gids: &[Gid], remark: impl Fn(&Gid) -> Option<String>) -> String {
    if gids.is_empty() {
        return "none".to_owned();
    }
    let name = |g: &Gid| {
        let remark = remark(g).map_or(String::new(), |remark| format!(": {remark}"));
        format!("{} ({}, {}{remark})", g.index, g.addr(), g.kind)
    };
    gids.iter().map(name).collect::<Vec<_>>().join(", ")
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
            interface: 0,
        };
        entries.iter().enumerate().map(gid).collect()
    }

    use GidKind::{Ib, RoceV1, RoceV2};

    fn set(vars: &[(&str, &str)]) -> Wanted {
        let config = Config::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()));
        Wanted::new(&config.unwrap(), "a", 1)
    }

    /// Indices of what a RoCE port may use, in order.
    fn order(entries: &[(&str, GidKind)], vars: &[(&str, &str)]) -> Result<Vec<u8>, String> {
        let found = candidates(&table(entries), LinkLayer::Ethernet, &set(vars))?;
        Ok(found.iter().map(|gid| gid.index).collect())
    }

    const ALL: [(&str, GidKind); 6] = [
        ("fe80::1", RoceV1),
        ("fe80::1", RoceV2),
        ("::ffff:10.1.2.3", RoceV1),
        ("2001:db8::1", RoceV2),
        ("::ffff:10.1.2.3", RoceV2),
        ("::1", RoceV2),
    ];

    //= reach.md: link-local, loopback and multicast addresses rank last or are dropped
    #[test]
    fn the_best_come_first_and_what_nobody_can_reach_not_at_all() {
        assert_eq!(order(&ALL, &[]), Ok(vec![4, 3, 2]));
    }

    #[test]
    fn each_entry_has_its_place_or_a_reason() {
        let of = |entries: &[(&str, GidKind)], link, vars: &[(&str, &str)]| {
            let text = |v: Result<usize, String>| v.map_or_else(|why| why, |place| place.to_string());
            verdicts(&table(entries), link, &set(vars)).into_iter().map(text).collect::<Vec<_>>()
        };
        let others = "link-local, and there are others";
        let roce = LinkLayer::Ethernet;
        assert_eq!(of(&ALL, roce, &[]), [others, others, "2", "1", "0", "loopback"]);
        assert_eq!(of(&ALL[1..4], roce, &[("NCCL_IB_ADDR_FAMILY", "AF_INET")]), ["IPv6", "0", "IPv6"]);
        assert_eq!(of(&ALL[2..4], roce, &[("NCCL_IB_GID_INDEX", "1")]), ["NCCL_IB_GID_INDEX names 1", "0"]);
        let two = [("fe80::2:c903:1", Ib), ("fe80::2:c903:2", Ib)];
        assert_eq!(of(&two, LinkLayer::InfiniBand, &[]), ["0", "InfiniBand uses GID index 0"]);
        // Nothing can be used: each has its reason.
        assert_eq!(of(&ALL[5..], roce, &[]), ["loopback"]);
    }

    #[test]
    fn a_port_with_nothing_but_link_local_addresses_uses_them() {
        assert_eq!(order(&[("::ffff:169.254.1.1", RoceV1), ("fe80::1", RoceV2)], &[]), Ok(vec![1, 0]));
    }

    #[test]
    fn each_setting_leaves_what_it_says() {
        let (family, range) = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE");
        let version = "NCCL_IB_ROCE_VERSION_NUM";
        for (vars, left) in [
            (&[(family, "AF_INET")][..], &[4, 2][..]),
            (&[(family, "AF_INET6")], &[3]),
            (&[(range, "10.1.0.0/16")], &[4, 2]),
            (&[(range, "2001:db8::/64")], &[3]),
            (&[(range, "fe80::/64")], &[1, 0]),
            (&[(version, "1")], &[2]),
            (&[(version, "2")], &[4, 3]),
            (&[(version, "1"), (family, "AF_INET")], &[2]),
            (&[(family, "AF_INET6"), (range, "fe80::/16"), (version, "1")], &[0]),
            (&[("NCCL_IB_GID_INDEX", "0"), (family, "AF_INET"), (version, "2")], &[0]),
            (&[("NCCL_IB_GID_INDEX", "a:2"), (family, "AF_INET6")], &[2]),
            (&[("NCCL_IB_GID_INDEX", "b:2"), (family, "AF_INET6")], &[3]),
        ] {
            assert_eq!(order(&ALL, vars).as_deref(), Ok(left), "{vars:?}");
        }
    }

    #[test]
    fn an_empty_choice_of_gids_names_the_settings_and_every_entry() {
        let vars = [("NCCL_IB_ADDR_FAMILY", "AF_INET"), ("NCCL_IB_ADDR_RANGE", "10.2.0.0/16")];
        let error = order(&ALL[1..5], &vars).unwrap_err();
        assert_eq!(
            error,
            "no entry of its GID table fits NCCL_IB_ADDR_FAMILY=AF_INET and NCCL_IB_ADDR_RANGE=10.2.0.0/16: \
             0 (fe80::1, RoCE v2: IPv6), 1 (10.1.2.3, RoCE v1: not in the range), 2 (2001:db8::1, RoCE v2: IPv6), \
             3 (10.1.2.3, RoCE v2: not in the range)"
        );
        let error = order(&ALL[..2], &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]).unwrap_err();
        assert!(error.contains("0 (fe80::1, RoCE v1: link-local)"), "{error}");
        let error = order(&ALL[3..5], &[("NCCL_IB_ROCE_VERSION_NUM", "1")]).unwrap_err();
        assert!(
            error.contains("NCCL_IB_ROCE_VERSION_NUM=1: 0 (2001:db8::1, RoCE v2: not RoCE v1)"),
            "{error}"
        );
        assert_eq!(
            order(&ALL[5..], &[]).unwrap_err(),
            "no entry of its GID table can be used: 0 (::1, RoCE v2: loopback)"
        );
    }

    #[test]
    fn a_link_local_ipv4_is_not_better_than_a_global_ipv6() {
        assert_eq!(order(&[("::ffff:169.254.1.1", RoceV2), ("2001:db8::1", RoceV2)], &[]), Ok(vec![1]));
    }

    #[test]
    fn fe80_with_ffff_in_the_middle_is_not_ipv4() {
        // Only bytes 8..12 look like a mapped address.
        assert_eq!(order(&[("fe80::ffff:a00:1", RoceV2), ("2001:db8::1", RoceV2)], &[]), Ok(vec![1]));
    }

    #[test]
    fn the_users_index_must_exist() {
        let error = order(&[("fe80::1", RoceV1), ("::ffff:10.0.0.1", RoceV2)], &[("NCCL_IB_GID_INDEX", "7")]);
        let error = error.unwrap_err();
        assert!(
            error.contains("NCCL_IB_GID_INDEX") && error.contains("index 7") && error.contains("10.0.0.1"),
            "{error}"
        );
    }

    //= configuration.md: NCCL_IB_GID_INDEX as one number is for RoCE only
    #[test]
    fn infiniband_uses_gid_0_despite_roce_settings() {
        let gids = table(&[("fe80::2:c903:1", Ib), ("fe80::2:c903:2", Ib)]);
        let wanted = set(&[("NCCL_IB_ADDR_FAMILY", "AF_INET"), ("NCCL_IB_ROCE_VERSION_NUM", "1")]);
        assert_eq!(candidates(&gids, LinkLayer::InfiniBand, &wanted).unwrap()[0].index, 0);
        // A number is for RoCE; a list means whom it names.
        let with = |index| candidates(&gids, LinkLayer::InfiniBand, &set(&[("NCCL_IB_GID_INDEX", index)]));
        assert_eq!((with("1").unwrap()[0].index, with("7").unwrap()[0].index), (0, 0));
        assert_eq!((with("a:1").unwrap()[0].index, with("b:1").unwrap()[0].index), (1, 0));
        assert!(with("a:7").unwrap_err().contains("NCCL_IB_GID_INDEX names GID index 7"));
        let verdicts = verdicts(&gids, LinkLayer::InfiniBand, &set(&[("NCCL_IB_GID_INDEX", "1")]));
        assert_eq!(verdicts, [Ok(0), Err("InfiniBand uses GID index 0".to_owned())]);
        // The entry with the FLID comes second, if there is one.
        let routed = table(&[("fe80::1:2:c903:1:1", Ib), ("fec0:0:9:1:2:c903:1:1", Ib)]);
        let used = |vars: &[(&str, &str)]| -> Vec<u8> {
            let found = candidates(&routed, LinkLayer::InfiniBand, &set(vars)).unwrap();
            found.iter().map(|gid| gid.index).collect()
        };
        let flid = "NCCL_IB_ROUTABLE_FLID_GID_INDEX";
        assert_eq!([used(&[]), used(&[(flid, "0")]), used(&[(flid, "2")])], [vec![0, 1], vec![0], vec![0]]);
        assert_eq!(used(&[("NCCL_IB_GID_INDEX", "a:1")]), [1]);
        assert_eq!(candidates(&gids, LinkLayer::InfiniBand, &set(&[])).unwrap().len(), 1, "no FLID in it");
        let error = |link| candidates(&[], link, &set(&[])).unwrap_err();
        assert!(error(LinkLayer::InfiniBand).contains("InfiniBand uses GID index 0"));
        assert!(error(LinkLayer::Ethernet).contains("empty"));
    }
}
