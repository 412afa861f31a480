//! The choice of addresses for two rails.

use std::cmp::{max, min};
use std::net::{IpAddr, Ipv6Addr};

use mpib_proto::{Addr, Ends, GidKind, LinkLayer, RailAddr, RailInfo, unusable_gid};

use super::infiniband;

/// The pair of addresses that a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Best {
    /// Indices into the lists of the two rails.
    pub(crate) at: Ends<usize>,
    /// Whether both rails regard the addresses as one subnet.
    pub(crate) one_subnet: bool,
}

/// Most pairs of addresses that are tried for two rails.
const MAX_PAIRS: usize = 4;

/// Returns the pairs of addresses by which two rails of one link layer can be joined, the best
/// first: RoCE v2 before v1, IPv4 before IPv6, as NCCL's own transport chooses; within a version
/// and a family those on one subnet first, then by the order of the lists. Each address is in one
/// pair at most. RoCE v1 and link-local addresses, whose subnet every link has, are used only if
/// there is nothing else. InfiniBand rails have one pair. The order of the rails does not matter
/// unless both have the same addresses; both ends of a connection pass the connector's rail first.
/// The error is the reason why there is no pair. An address that no end may have, such as a
/// multicast one, is in no pair: a peer could make this end send to it.
pub(super) fn pairs(a: &RailInfo, b: &RailInfo) -> Result<Vec<Best>, String> {
    if a.link_layer == LinkLayer::InfiniBand {
        let (at, one_subnet) = infiniband::best(a, b)?;
        let wrong = [(a, at.connector), (b, at.acceptor)].into_iter().find_map(|(rail, at)| wrong(rail, at));
        return wrong.map_or(Ok(vec![Best { at, one_subnet }]), Err);
    }
    let mut found = Vec::new();
    for (i, ours) in a.addrs.iter().enumerate() {
        for (j, theirs) in b.addrs.iter().enumerate() {
            if !fits(ours, theirs) || wrong(a, i).or_else(|| wrong(b, j)).is_some() {
                continue;
            }
            let one_subnet = in_network(ours, theirs) && in_network(theirs, ours);
            let v2 = ours.gid_kind == GidKind::RoceV2 && theirs.gid_kind == GidKind::RoceV2;
            let v4 = gid_addr(ours.gid).is_ipv4();
            let bytes = (min(ours.gid, theirs.gid), max(ours.gid, theirs.gid));
            let class = (link_local(ours), !v2);
            let key = (class, !v4, !one_subnet, i + j, bytes, i);
            found.push((key, Best { at: Ends { connector: i, acceptor: j }, one_subnet }));
        }
    }
    found.sort_unstable_by_key(|(key, _)| *key);
    let Some(((class, ..), _)) = found.first().copied() else { return Err(obstacle(a, b)) };
    let mut chosen: Vec<Best> = Vec::new();
    for (_, pair) in found.into_iter().filter(|(key, _)| key.0 == class) {
        let shares =
            |other: &Best| other.at.connector == pair.at.connector || other.at.acceptor == pair.at.acceptor;
        if chosen.len() < MAX_PAIRS && !chosen.iter().any(shares) {
            chosen.push(pair);
        }
    }
    Ok(chosen)
}

/// Returns the best of the [`pairs`].
pub(super) fn best(a: &RailInfo, b: &RailInfo) -> Result<Best, String> {
    pairs(a, b)?.first().copied().ok_or_else(|| obstacle(a, b))
}

/// Returns why an address of a rail cannot be one of its port.
fn wrong(rail: &RailInfo, at: usize) -> Option<String> {
    let addr = gid_addr(rail.addrs.get(at)?.gid);
    unusable_gid(addr).map(|why| format!("{} has {addr}, which is {why}", rail.name))
}

/// Returns why no address of a RoCE rail fits one of the other.
fn obstacle(a: &RailInfo, b: &RailInfo) -> String {
    let all_wrong = |rail: &RailInfo| {
        let wrong: Option<Vec<_>> = (0..rail.addrs.len()).map(|at| wrong(rail, at)).collect();
        wrong.filter(|wrong| !wrong.is_empty()).map(|wrong| listed(wrong.into_iter()))
    };
    if let Some(wrong) = all_wrong(a).or_else(|| all_wrong(b)) {
        return wrong;
    }
    let kinds = |rail: &RailInfo| listed(rail.addrs.iter().map(|addr| addr.gid_kind.to_string()));
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
            listed(rail.addrs.iter().map(|addr| format!("{} ({})", gid_addr(addr.gid), addr.gid_kind)))
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

/// Returns whether each address is on the network of the other as far as its prefix is known, and
/// one prefix is not.
pub(super) fn may_share(a: &RailAddr, b: &RailAddr) -> bool {
    let fits = |x: &RailAddr, y: &RailAddr| x.prefix_len == 0 || in_network(x, y);
    (a.prefix_len == 0 || b.prefix_len == 0) && fits(a, b) && fits(b, a)
}

pub(super) fn link_local(addr: &RailAddr) -> bool {
    match gid_addr(addr.gid) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the IP address in a RoCE GID.
pub(crate) fn gid_addr(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{ib, with};
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

    //= reach.md: link-local, loopback and multicast addresses rank last or are dropped
    #[test]
    fn an_address_that_no_port_may_have_is_not_used() {
        let ours = with("a", &[("10.0.0.1", 24)], false);
        for (ip, what) in [
            ("224.0.0.1", "multicast"),
            ("127.0.0.1", "loopback"),
            ("255.255.255.255", "broadcast"),
            ("0.0.0.0", "unspecified"),
        ] {
            let theirs = |addrs: &[(&str, u8)]| with("b", addrs, false);
            let why = format!("b has {ip}, which is {what}");
            assert_eq!(chosen(&ours, &theirs(&[(ip, 24)])), Err(why));
            let used = Ok(("10.0.0.1 v2".to_owned(), "10.0.0.2 v2".to_owned()));
            assert_eq!(chosen(&ours, &theirs(&[(ip, 24), ("10.0.0.2", 24)])), used);
        }
        let [mut x, mut y] = [ib("x", 0), ib("y", 0)];
        y.addrs[0].gid = x.addrs[0].gid;
        assert!(best(&x, &y).is_ok());
        for rail in [&mut x, &mut y] {
            rail.addrs[0].gid[0] = 0xff;
        }
        assert!(best(&x, &y).unwrap_err().ends_with(", which is multicast"));
    }

    //= reach.md: a common subnet decides among addresses of one family and version
    #[test]
    fn the_common_subnet_is_found_at_any_index() {
        let dual =
            with("a", &[("10.0.0.1", 24), ("10.0.1.1", 24), ("2001:db8::1", 64), ("fe80::1", 64)], true);
        for (theirs, ours, other) in [
            (&[("10.0.0.2", 24)][..], "10.0.0.1 v2", "10.0.0.2 v2"),
            (&[("10.0.1.2", 24)], "10.0.1.1 v2", "10.0.1.2 v2"),
            (&[("10.9.9.9", 24), ("10.0.1.2", 24)], "10.0.1.1 v2", "10.0.1.2 v2"),
            // A subnet of another family does not count.
            (&[("10.9.9.9", 24), ("2001:db8::2", 64)], "10.0.0.1 v2", "10.9.9.9 v2"),
            (&[("2001:db8::2", 64), ("10.9.9.9", 24)], "10.0.0.1 v2", "10.9.9.9 v2"),
            (&[("2001:db8::2", 64)], "2001:db8::1 v2", "2001:db8::2 v2"),
            (&[("2001:db8:9::2", 64)], "2001:db8::1 v2", "2001:db8:9::2 v2"),
            // No common subnet: the first address of each.
            (&[("10.9.9.9", 24), ("10.8.8.8", 24)], "10.0.0.1 v2", "10.9.9.9 v2"),
            // Every link has fe80::/64: it is no common subnet.
            (&[("fe80::2", 64), ("10.9.9.9", 24)], "10.0.0.1 v2", "10.9.9.9 v2"),
            (&[("fe80::2", 64), ("2001:db8:9::2", 64)], "2001:db8::1 v2", "2001:db8:9::2 v2"),
            (&[("fe80::2", 64)], "fe80::1 v2", "fe80::2 v2"),
            // One end sees a wider network than the other.
            (&[("10.0.2.2", 16), ("10.0.1.2", 24)], "10.0.1.1 v2", "10.0.1.2 v2"),
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
        assert_eq!(chosen(&both, &old).unwrap_err(), "a speaks RoCE v2, b speaks RoCE v1");
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
        assert!(text.starts_with("a has 10.0.0.1 (RoCE v1), 2001:db8::1 (RoCE v2), b has"), "{text}");
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
        /// any pair of their family and version is.
        //= protocol.md: both ends derive the same addresses
        #[test]
        fn both_ends_choose_alike(ours in any_addrs(), theirs in any_addrs()) {
            let rail = |addrs| RailInfo { addrs, ..with("r", &[("10.0.0.1", 24)], false) };
            let (a, b) = (rail(ours), rail(theirs));
            let chosen = |x: &RailInfo, y: &RailInfo| {
                let of = |pair: &Best| {
                    (x.addrs[pair.at.connector].gid, y.addrs[pair.at.acceptor].gid, pair.one_subnet)
                };
                pairs(x, y).map(|pairs| pairs.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
            };
            let found = chosen(&a, &b);
            let back = chosen(&b, &a).into_iter().map(|(y, x, one)| (x, y, one));
            // Two rails of one host: (x, y) and (y, x) are equally good.
            if !a.addrs.iter().any(|x| b.addrs.iter().any(|y| x.gid == y.gid)) {
                prop_assert_eq!(&found, &back.collect::<Vec<_>>());
            }
            let all = || a.addrs.iter().flat_map(|x| b.addrs.iter().map(move |y| (x, y)));
            let fits = |(x, y): &(&RailAddr, &RailAddr)| fits(x, y);
            let Ok(pairs) = pairs(&a, &b) else {
                prop_assert!(!all().any(|pair| fits(&pair)));
                return Ok(());
            };
            prop_assert!((1..=MAX_PAIRS).contains(&pairs.len()));
            for (i, pair) in pairs.iter().enumerate() {
                prop_assert!(fits(&(&a.addrs[pair.at.connector], &b.addrs[pair.at.acceptor])));
                let shares = |o: &Best| {
                    o.at.connector == pair.at.connector || o.at.acceptor == pair.at.acceptor
                };
                prop_assert!(!pairs[i + 1..].iter().any(shares));
            }
            let class = |(x, y): &(&RailAddr, &RailAddr)| {
                let v2 = x.gid_kind == GidKind::RoceV2 && y.gid_kind == GidKind::RoceV2;
                (link_local(x), !v2, !gid_addr(x.gid).is_ipv4())
            };
            let best = (&a.addrs[pairs[0].at.connector], &b.addrs[pairs[0].at.acceptor]);
            prop_assert_eq!(Some(class(&best)), all().filter(fits).map(|pair| class(&pair)).min());
            let alike = all().filter(fits).filter(|pair| class(pair) == class(&best));
            let shared = alike.clone().any(|(x, y)| in_network(x, y) && in_network(y, x));
            prop_assert_eq!(pairs[0].one_subnet, shared);
        }
    }
}
