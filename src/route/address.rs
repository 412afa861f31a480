//! The choice of addresses for two rails.

use std::cmp::{max, min};
use std::net::{IpAddr, Ipv6Addr};

use super::infiniband;
use crate::proto::{Addr, Ends, GidKind, LinkLayer, RailAddr, RailInfo};

/// The pair of addresses that a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Best {
    /// Indices into the lists of the two rails.
    pub at: Ends<usize>,
    /// Whether both rails regard the addresses as one subnet.
    pub one_subnet: bool,
}

/// Returns the best pair of addresses of two rails of one link layer. On RoCE: those on one subnet
/// first, RoCE v2 before v1, then by the order of the lists. Link-local addresses come last, since every
/// link has that subnet. The order of the rails does not matter. The error is the reason why there
/// is no pair.
pub(super) fn best(a: &RailInfo, b: &RailInfo) -> Result<Best, String> {
    if a.link_layer == LinkLayer::InfiniBand {
        return infiniband::best(a, b).map(|(at, one_subnet)| Best { at, one_subnet });
    }
    let mut found = None;
    for (i, ours) in a.addrs.iter().enumerate() {
        for (j, theirs) in b.addrs.iter().enumerate() {
            if !fits(ours, theirs) {
                continue;
            }
            let one_subnet = in_network(ours, theirs) && in_network(theirs, ours);
            let v2 = ours.gid_kind == GidKind::RoceV2 && theirs.gid_kind == GidKind::RoceV2;
            let bytes = (min(ours.gid, theirs.gid), max(ours.gid, theirs.gid));
            let key = (link_local(ours), !one_subnet, !v2, i + j, bytes, i);
            let better = found.as_ref().is_none_or(|(best, _)| key < *best);
            if better {
                found = Some((key, Best { at: Ends { connector: i, acceptor: j }, one_subnet }));
            }
        }
    }
    found.map(|(_, best)| best).ok_or_else(|| obstacle(a, b))
}

/// Returns why no address of a RoCE rail fits one of the other.
fn obstacle(a: &RailInfo, b: &RailInfo) -> String {
    let kinds = |rail: &RailInfo| listed(rail.addrs.iter().map(|addr| format!("{:?}", addr.gid_kind)));
    let ips = |rail: &RailInfo| listed(rail.addrs.iter().map(|addr| gid_addr(addr.gid).to_string()));
    let any = |fits: fn(&RailAddr, &RailAddr) -> bool| {
        a.addrs.iter().any(|ours| b.addrs.iter().any(|theirs| fits(ours, theirs)))
    };
    if !any(one_kind) {
        format!("{} speaks {}, {} speaks {}", a.name, kinds(a), b.name, kinds(b))
    } else if !any(one_family) {
        format!("{} has {}, {} has {}: not of one family", a.name, ips(a), b.name, ips(b))
    } else if !any(one_scope) {
        format!(
            "{} has {}, {} has {}: a link-local address reaches only link-local ones",
            a.name,
            ips(a),
            b.name,
            ips(b)
        )
    } else {
        let both = |rail: &RailInfo| {
            listed(rail.addrs.iter().map(|addr| format!("{} ({:?})", gid_addr(addr.gid), addr.gid_kind)))
        };
        format!(
            "{} has {}, {} has {}: no two addresses of one family and one RoCE version, both link-local or neither",
            a.name,
            both(a),
            b.name,
            both(b)
        )
    }
}

/// Joins texts, each once.
fn listed(texts: impl Iterator<Item = String>) -> String {
    let mut each: Vec<String> = Vec::new();
    for text in texts {
        if !each.contains(&text) {
            each.push(text);
        }
    }
    each.join(", ")
}

/// Returns whether both have one version of RoCE. An unknown version fits either.
fn one_kind(a: &RailAddr, b: &RailAddr) -> bool {
    a.gid_kind == b.gid_kind || a.gid_kind == GidKind::Ib || b.gid_kind == GidKind::Ib
}

fn one_family(a: &RailAddr, b: &RailAddr) -> bool {
    gid_addr(a.gid).is_ipv4() == gid_addr(b.gid).is_ipv4()
}

/// Returns whether both are link-local or neither is.
fn one_scope(a: &RailAddr, b: &RailAddr) -> bool {
    link_local(a) == link_local(b)
}

/// Returns whether two RoCE addresses can be joined.
fn fits(a: &RailAddr, b: &RailAddr) -> bool {
    one_kind(a, b) && one_family(a, b) && one_scope(a, b)
}

/// Returns whether `b` is on the network of `a`. The link-local network does not count, since every
/// link has it.
fn in_network(a: &RailAddr, b: &RailAddr) -> bool {
    let net = Addr::new(gid_addr(a.gid), a.prefix_len).filter(|_| a.prefix_len > 0 && !link_local(a));
    net.is_some_and(|net| net.same_subnet(gid_addr(b.gid)))
}

fn link_local(addr: &RailAddr) -> bool {
    match gid_addr(addr.gid) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the IP address in a RoCE GID.
pub fn gid_addr(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::with;
    use proptest::prelude::*;

    /// Names the pair, or the reason why there is none. The order of the rails does not matter.
    fn chosen(a: &RailInfo, b: &RailInfo) -> Result<(String, String), String> {
        let text = |rail: &RailInfo, i: usize| {
            let addr = rail.addrs[i];
            let version = if addr.gid_kind == GidKind::RoceV2 { "v2" } else { "v1" };
            format!("{} {version}", gid_addr(addr.gid))
        };
        let found = best(a, b);
        assert_eq!(
            found.clone().map(|b| (b.at.acceptor, b.at.connector)).ok(),
            best(b, a).map(|b| (b.at.connector, b.at.acceptor)).ok()
        );
        found.map(|best| (text(a, best.at.connector), text(b, best.at.acceptor)))
    }

    #[test]
    fn the_common_subnet_is_found_at_any_index() {
        let dual =
            with("a", &[("10.0.0.1", 24), ("10.0.1.1", 24), ("2001:db8::1", 64), ("fe80::1", 64)], true);
        for (theirs, ours, other) in [
            (&[("10.0.0.2", 24)][..], "10.0.0.1 v2", "10.0.0.2 v2"),
            (&[("10.0.1.2", 24)], "10.0.1.1 v2", "10.0.1.2 v2"),
            (&[("10.9.9.9", 24), ("10.0.1.2", 24)], "10.0.1.1 v2", "10.0.1.2 v2"),
            (&[("10.9.9.9", 24), ("2001:db8::2", 64)], "2001:db8::1 v2", "2001:db8::2 v2"),
            (&[("2001:db8:9::2", 64)], "2001:db8::1 v2", "2001:db8:9::2 v2"),
            // No common subnet: the first address of each.
            (&[("10.9.9.9", 24), ("10.8.8.8", 24)], "10.0.0.1 v2", "10.9.9.9 v2"),
            // Every link has fe80::/64: it is no common subnet.
            (&[("fe80::2", 64), ("10.9.9.9", 24)], "10.0.0.1 v2", "10.9.9.9 v2"),
            (&[("fe80::2", 64), ("2001:db8:9::2", 64)], "2001:db8::1 v2", "2001:db8:9::2 v2"),
            (&[("fe80::2", 64)], "fe80::1 v2", "fe80::2 v2"),
            // One end sees a wider network than the other.
            (&[("10.0.2.2", 16), ("2001:db8::2", 64)], "2001:db8::1 v2", "2001:db8::2 v2"),
        ] {
            let theirs = with("b", theirs, true);
            assert_eq!(chosen(&dual, &theirs), Ok((ours.to_owned(), other.to_owned())), "{theirs:?}");
        }
        let (local, global) =
            (with("c", &[("fe80::9", 64)], false), with("d", &[("2001:db8::2", 64)], false));
        let text = "c has fe80::9, d has 2001:db8::2: a link-local address reaches only link-local ones";
        assert_eq!(chosen(&local, &global).unwrap_err(), text);
    }

    #[test]
    fn version_1_is_used_only_without_version_2() {
        let mut both = with("a", &[("10.0.0.1", 24)], true);
        let mut old = with("b", &[("10.0.0.2", 24)], true);
        old.addrs.remove(0);
        assert_eq!(chosen(&both, &old), Ok(("10.0.0.1 v1".into(), "10.0.0.2 v1".into())));
        both.addrs.remove(1);
        assert_eq!(chosen(&both, &old).unwrap_err(), "a speaks RoceV2, b speaks RoceV1");
    }

    #[test]
    fn an_obstacle_names_all_addresses() {
        let v4 = with("a", &[("10.0.0.1", 24), ("10.0.1.1", 24)], true);
        let v6 = with("b", &[("2001:db8::1", 64)], true);
        assert_eq!(
            chosen(&v4, &v6).unwrap_err(),
            "a has 10.0.0.1, 10.0.1.1, b has 2001:db8::1: not of one family"
        );
        // Both families and both versions, but never together.
        let mut a = with("a", &[("10.0.0.1", 24), ("2001:db8::1", 64)], false);
        let mut b = with("b", &[("10.0.0.2", 24), ("2001:db8::2", 64)], false);
        a.addrs[0].gid_kind = GidKind::RoceV1;
        b.addrs[1].gid_kind = GidKind::RoceV1;
        let text = chosen(&a, &b).unwrap_err();
        assert!(text.starts_with("a has 10.0.0.1 (RoceV1), 2001:db8::1 (RoceV2), b has"), "{text}");
        assert!(
            text.ends_with("no two addresses of one family and one RoCE version, both link-local or neither"),
            "{text}"
        );
    }

    fn any_addrs() -> impl Strategy<Value = Vec<RailAddr>> {
        let ip = prop_oneof![
            (0u8..3, 1u8..3).prop_map(|(net, host)| format!("10.0.{net}.{host}")),
            (0u8..3, 1u8..3).prop_map(|(net, host)| format!("2001:db8:{net}::{host}")),
            (1u8..3).prop_map(|host| format!("fe80::{host}")),
            (1u8..3).prop_map(|host| format!("169.254.0.{host}")),
        ];
        let addr = (ip, 0u32..3, prop_oneof![Just(0u8), Just(24), Just(64), 0u8..=128]);
        let addr = addr.prop_map(|(ip, kind, prefix)| RailAddr {
            gid_kind: GidKind::from_raw(kind).unwrap(),
            prefix_len: prefix,
            ..with("r", &[(&ip, 24)], false).addrs[0]
        });
        prop::collection::vec(addr, 1..=16)
    }

    proptest! {
        /// Both ends choose the same addresses. The addresses fit, and they are on one subnet if
        /// any pair is.
        //= protocol.md: both ends derive the same addresses
        #[test]
        fn both_ends_choose_alike(ours in any_addrs(), theirs in any_addrs()) {
            let rail = |addrs| RailInfo { addrs, ..with("r", &[("10.0.0.1", 24)], false) };
            let (a, b) = (rail(ours), rail(theirs));
            let chosen = |x: &RailInfo, y: &RailInfo| {
                best(x, y).ok().map(|best| (x.addrs[best.at.connector].gid, y.addrs[best.at.acceptor].gid, best.one_subnet))
            };
            let found = chosen(&a, &b);
            let back = chosen(&b, &a);
            prop_assert_eq!(found, back.map(|(y, x, one)| (x, y, one)));
            let pairs = || a.addrs.iter().flat_map(|x| b.addrs.iter().map(move |y| (x, y)));
            let fits = |(x, y): &(&RailAddr, &RailAddr)| fits(x, y);
            let Ok(best) = best(&a, &b) else {
                prop_assert!(!pairs().any(|pair| fits(&pair)));
                return Ok(());
            };
            prop_assert!(fits(&(&a.addrs[best.at.connector], &b.addrs[best.at.acceptor])));
            let shared = pairs().filter(fits).any(|(x, y)| in_network(x, y) && in_network(y, x));
            prop_assert_eq!(best.one_subnet, shared);
        }
    }
}
