//! Which rail of the connector talks to which rail of the acceptor, and why not.
//!
//! Both ends run [`pair`] on the same two lists and so come to the same routes without asking each other.

mod address;
mod island;

use std::fmt;

pub use address::gid_addr;
pub use island::{Class, class};

use crate::policy::rail_name as role;
use crate::proto::RailInfo;
use address::best;

/// A rail of the connector joined to one of the acceptor, as indices into their lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Index into the connector's list.
    pub connector: usize,
    /// Index into the acceptor's list.
    pub acceptor: usize,
    /// The addresses that they use: indices into the connector's rail's list and into the acceptor's.
    pub addrs: (usize, usize),
}

/// The outcome for two lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairing {
    /// In order of the connector's rails; a rail is in one route at most.
    pub routes: Vec<Route>,
    /// Every pair that was looked at and not taken.
    pub refused: Vec<Refused>,
    /// SOUT was not to meet SUP.
    by_role: bool,
}

/// A pair that is no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Index into the connector's list.
    pub connector: usize,
    /// Index into the acceptor's list.
    pub acceptor: usize,
    /// In words.
    pub why: String,
}

/// Joins rails: SOUT to SOUT and SUP to SUP where both ends have both, else those of a common subnet first,
/// then those of one role, in order. Ends with unequal numbers of rails use as many as they can join.
pub fn pair(connector: &[RailInfo], acceptor: &[RailInfo]) -> Pairing {
    join(connector, acceptor, has_roles(connector) && has_roles(acceptor))
}

/// As [`pair`] for two devices that are SOUT and SUP: never joins one to the other, also where an end has but one of
/// them to offer.
pub fn pair_roles(connector: &[RailInfo], acceptor: &[RailInfo]) -> Pairing {
    join(connector, acceptor, true)
}

fn join(connector: &[RailInfo], acceptor: &[RailInfo], by_role: bool) -> Pairing {
    let mut pairing = Pairing { by_role, ..Pairing::default() };
    let mut possible = Vec::new();
    for (c, ours) in connector.iter().enumerate() {
        for (a, theirs) in acceptor.iter().enumerate() {
            match joint(ours, theirs, by_role) {
                Err(why) => pairing.refused.push(Refused { connector: c, acceptor: a, why }),
                Ok(found) => {
                    let route = Route { connector: c, acceptor: a, addrs: found.at };
                    possible.push((!found.one_subnet, ours.role != theirs.role, route));
                }
            }
        }
    }
    possible.sort_by_key(|(far, other, r)| (*far, *other, r.connector, r.acceptor));
    for (_, _, route) in possible {
        let taken = |r: &Route| r.connector == route.connector || r.acceptor == route.acceptor;
        if let Some(other) = pairing.routes.iter().find(|r| taken(r)) {
            let (c, a) = (&connector[other.connector], &acceptor[other.acceptor]);
            let why = format!(
                "the connector's {} and the acceptor's {} are a route as good or better",
                c.name, a.name
            );
            pairing.refused.push(Refused { connector: route.connector, acceptor: route.acceptor, why });
        } else {
            pairing.routes.push(route);
        }
    }
    pairing.routes.sort_by_key(|r| r.connector);
    pairing
}

/// Whether the list is SOUT and SUP.
fn has_roles(rails: &[RailInfo]) -> bool {
    [0, 1].iter().all(|role| rails.iter().any(|r| r.role == *role))
}

/// The addresses by which two rails, of the connector and of the acceptor, can be joined, or why they cannot.
fn joint(a: &RailInfo, b: &RailInfo, by_role: bool) -> Result<address::Best, String> {
    if a.link_layer != b.link_layer {
        return Err(format!("{} is {:?}, {} is {:?}", a.name, a.link_layer, b.name, b.link_layer));
    }
    if by_role && a.role != b.role {
        return Err(format!("{} is {}, {} is {}", a.name, role(a.role), b.name, role(b.role)));
    }
    best(a, b)
}

impl Pairing {
    /// Rails that have no route, of either end, each with the reasons of its pairs; only those whose index in their
    /// device is `wanted`.
    pub fn left_out(
        &self,
        connector: &[RailInfo],
        acceptor: &[RailInfo],
        wanted: impl Fn(u8) -> bool,
    ) -> Vec<String> {
        let reasons = |rail: &RailInfo, others: &[RailInfo], mine: &dyn Fn(&Refused) -> bool| {
            if self.by_role && !others.iter().any(|r| r.role == rail.role) {
                return format!("the other end has no {} to offer", role(rail.role));
            }
            let mut why: Vec<_> = self.refused.iter().filter(|r| mine(r)).map(|r| r.why.as_str()).collect();
            why.dedup();
            if why.is_empty() { "the other end has no rail for it".to_owned() } else { why.join("; ") }
        };
        let mut lost = Vec::new();
        for (i, rail) in connector.iter().enumerate() {
            if wanted(rail.role) && !self.routes.iter().any(|r| r.connector == i) {
                lost.push(format!(
                    "the connector's {}: {}",
                    rail.name,
                    reasons(rail, acceptor, &|r| r.connector == i)
                ));
            }
        }
        for (i, rail) in acceptor.iter().enumerate() {
            if wanted(rail.role) && !self.routes.iter().any(|r| r.acceptor == i) {
                lost.push(format!(
                    "the acceptor's {}: {}",
                    rail.name,
                    reasons(rail, connector, &|r| r.acceptor == i)
                ));
            }
        }
        lost
    }
}

/// Every pair and why it is none, for the error that no route exists.
impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.refused.is_empty() {
            return f.write_str("an end has no rail to offer");
        }
        for (i, refused) in self.refused.iter().enumerate() {
            let Refused { connector, acceptor, why } = refused;
            let sep = if i == 0 { "" } else { "; " };
            write!(f, "{sep}rail {connector} to rail {acceptor}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::proto::{GidKind, LinkLayer, Mtu, RailAddr};
    use proptest::prelude::*;
    use std::net::IpAddr;

    pub(crate) fn roce(name: &str, ip: &str, prefix_len: u8, role: u8) -> RailInfo {
        let gid = match ip.parse::<IpAddr>().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        RailInfo {
            name: name.into(),
            port: 1,
            link_layer: LinkLayer::Ethernet,
            mtu: Mtu::B4096,
            lid: 0,
            addrs: vec![RailAddr { gid, gid_index: 0, gid_kind: GidKind::RoceV2, prefix_len }],
            speed_mbps: 100_000,
            role,
        }
    }

    pub(crate) fn ib(name: &str, role: u8) -> RailInfo {
        let base = roce(name, "fe80::1", 0, role);
        let addrs = base.addrs.iter().map(|addr| RailAddr { gid_kind: GidKind::Ib, ..*addr }).collect();
        RailInfo { link_layer: LinkLayer::InfiniBand, addrs, lid: 7, ..base }
    }

    /// A RoCE rail with these addresses, as both versions of RoCE where `v1` is set.
    pub(crate) fn with(name: &str, addrs: &[(&str, u8)], v1: bool) -> RailInfo {
        let one = |(ip, prefix): &(&str, u8)| roce(name, ip, *prefix, 0).addrs[0];
        let mut all: Vec<_> = addrs.iter().map(one).collect();
        if v1 {
            let old: Vec<_> = all.iter().map(|a| RailAddr { gid_kind: GidKind::RoceV1, ..*a }).collect();
            all.extend(old);
        }
        RailInfo { addrs: all, ..roce(name, "10.0.0.1", 24, 0) }
    }

    fn routes(c: &[RailInfo], a: &[RailInfo]) -> Vec<(usize, usize)> {
        pair(c, a).routes.iter().map(|r| (r.connector, r.acceptor)).collect()
    }

    #[test]
    fn roles_win_over_subnets() {
        let ours = [roce("a", "10.0.0.1", 24, 0), roce("b", "10.0.1.1", 24, 1)];
        let theirs = [roce("c", "10.0.1.2", 24, 0), roce("d", "10.0.0.2", 24, 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_single_rail_meets_the_one_in_its_subnet() {
        let ours = [roce("a", "10.0.1.1", 24, 0)];
        let theirs = [roce("c", "10.0.0.2", 24, 0), roce("d", "10.0.1.2", 24, 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 1)]);
        assert_eq!(routes(&theirs, &ours), [(1, 0)]);
        let lost = pair(&ours, &theirs).left_out(&ours, &theirs, |_| true);
        assert_eq!(lost.len(), 1);
        assert!(lost[0].contains("the acceptor's c"), "{lost:?}");
        assert!(pair(&ours, &theirs).left_out(&ours, &theirs, |role| role == 1).is_empty());
    }

    #[test]
    fn sout_never_meets_sup_where_both_ends_have_both() {
        let ours = [roce("a", "10.0.0.1", 24, 0)];
        let theirs = [roce("d", "10.0.0.2", 24, 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 0)]);
        let pairing = pair_roles(&ours, &theirs);
        assert!(pairing.routes.is_empty());
        assert_eq!(pairing.refused[0].why, "a is SOUT, d is SUP");
    }

    #[test]
    fn a_lone_sup_meets_sup_where_no_subnet_tells() {
        let ours = [roce("b", "10.0.1.1", 0, 1)];
        let theirs = [roce("c", "10.0.0.2", 0, 0), roce("d", "10.0.1.2", 0, 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 1)]);
        assert_eq!(routes(&theirs, &ours), [(1, 0)]);
    }

    #[test]
    fn a_prefix_that_one_end_sees_wider_is_no_common_subnet() {
        let ours = [roce("a", "10.0.0.1", 16, 0)];
        let theirs = [roce("c", "10.0.1.2", 24, 0), roce("d", "10.0.0.2", 24, 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 1)]);
    }

    #[test]
    fn link_layers_do_not_mix() {
        let ours = [ib("a", 0), roce("b", "10.0.0.1", 24, 1)];
        let theirs = [ib("c", 0), ib("d", 1)];
        assert_eq!(routes(&ours, &theirs), [(0, 0)]);
        let none = pair(&ours[1..], &theirs);
        assert!(none.routes.is_empty());
        let table = none.to_string();
        assert!(table.contains("rail 0 to rail 0: b is Ethernet, c is InfiniBand"), "{table}");
        assert!(table.contains("rail 0 to rail 1"), "{table}");
    }

    #[test]
    fn roce_versions_and_families_do_not_mix() {
        let ours = [roce("a", "10.0.0.1", 24, 0)];
        let old = |addr: &RailAddr| RailAddr { gid_kind: GidKind::RoceV1, ..*addr };
        let c = roce("c", "10.0.0.2", 24, 0);
        let v1 = [RailInfo { addrs: c.addrs.iter().map(old).collect(), ..c }];
        assert!(pair(&ours, &v1).refused[0].why.contains("RoceV1"));
        let v6 = [roce("c", "2001:db8::2", 64, 0)];
        assert!(pair(&ours, &v6).refused[0].why.contains("family"));
    }

    #[test]
    fn no_rails_is_said() {
        assert!(pair(&[], &[]).to_string().contains("no rail to offer"));
    }

    fn any_rail() -> impl Strategy<Value = RailInfo> {
        (0u8..3, 0u8..3, any::<bool>(), any::<bool>(), 0u8..2).prop_map(|(net, host, is_ib, v6, role)| {
            let ip = if v6 { format!("2001:db8:{net}::{host}") } else { format!("10.0.{net}.{}", host + 1) };
            let rail = roce("r", &ip, if v6 { 48 } else { 24 }, role);
            if is_ib { RailInfo { role, ..ib("i", role) } } else { rail }
        })
    }

    proptest! {
        /// Whoever connects, each rail is used once, no pair that could be joined is left over, and every
        /// other pair has its reason.
        #[test]
        fn routes_are_a_maximal_matching(
            c in prop::collection::vec(any_rail(), 0..=4),
            a in prop::collection::vec(any_rail(), 0..=4),
        ) {
            let p = pair(&c, &a);
            for (i, r) in p.routes.iter().enumerate() {
                for s in &p.routes[i + 1..] {
                    prop_assert!(r.connector < s.connector && r.acceptor != s.acceptor);
                }
            }
            prop_assert_eq!(p.routes.len() + p.refused.len(), c.len() * a.len());
            let by_role = has_roles(&c) && has_roles(&a);
            for (x, ours) in c.iter().enumerate() {
                for (y, theirs) in a.iter().enumerate() {
                    let free = !p.routes.iter().any(|r| r.connector == x || r.acceptor == y);
                    prop_assert!(!free || joint(ours, theirs, by_role).is_err());
                }
            }
        }
    }
}
