//! The order of routes, of any rails.

use proptest::prelude::*;

use super::*;

fn any_rail() -> impl Strategy<Value = RailInfo> {
    (0u8..3, 0u8..3, 0u8..8, any::<bool>(), 0u8..2, any::<bool>(), 0u32..2).prop_map(
        |(net, host, ib_in, v6, role, requested, speed)| {
            let ip = if v6 { format!("2001:db8:{net}::{host}") } else { format!("10.0.{net}.{}", host + 1) };
            let mut rail = roce("r", &ip, if v6 { 48 } else { 24 }, role);
            // Some have both families.
            if host == 0 {
                rail.addrs.extend(roce("r", &format!("fd00:{net}::1"), 64, role).addrs);
            }
            let rail = if ib_in == 0 { ib("i", role) } else { rail };
            RailInfo { requested, speed_mbps: 100 + speed, ..rail }
        },
    )
}

proptest! {
    /// Every pair is in one of the three lists, the first routes follow the rules, and no route
    /// precedes a better one.
    #[test]
    fn every_pair_is_tried_in_the_order_of_the_policy_or_refused(
        c in prop::collection::vec(any_rail(), 0..=5),
        a in prop::collection::vec(any_rail(), 0..=5),
        policy in 0usize..4,
        rotation: u32,
    ) {
        let policy = RoutePolicy::ALL[policy];
        let choice = choose(policy, &c, &a, rotation);
        let Choice { first, rest, refused, width, .. } = &choice;
        let routes = || first.iter().chain(rest);
        let mut pairs: Vec<_> = routes().map(|r| (r.rails.connector, r.rails.acceptor)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.extend(refused.iter().map(|r| (r.rails.connector, r.rails.acceptor)));
        pairs.sort_unstable();
        let all: Vec<_> = (0..c.len()).flat_map(|x| (0..a.len()).map(move |y| (x, y))).collect();
        prop_assert_eq!(pairs, all);
        prop_assert!(first.len() <= *width && (first.is_empty() == rest.is_empty() || !first.is_empty()));
        for r in routes() {
            prop_assert!(policy != Subnet || r.one_subnet);
            prop_assert!(policy != Strict || r.requested == 2);
        }
        for (i, r) in first.iter().enumerate() {
            prop_assert!(first[i + 1..].iter().all(|s| r.rails.connector < s.rails.connector && r.rails.acceptor != s.rails.acceptor));
        }
        let kind = |r: &Route| match policy {
            Any | Strict => (2 - r.requested, r.alternate, u8::from(!r.one_subnet)),
            PreferSubnet | Subnet => (u8::from(!r.one_subnet), u8::from(r.requested < 2), 0),
        };
        prop_assert!(rest.is_sorted_by_key(kind));
        // No route is better than the first ones.
        let best = routes().map(kind).min();
        prop_assert_eq!(first.iter().map(kind).min(), best);
        // No route with two requested rails could have been added.
        if first.len() < *width && first.iter().all(|r| r.requested == 2) {
            prop_assert!(!rest.iter().any(|r| r.requested == 2 && is_disjoint(first, r)));
        }
    }

    /// The rotation changes the order of equal routes only.
    #[test]
    fn turns_change_nothing_but_the_order_of_equals(
        c in prop::collection::vec(any_rail(), 1..=4),
        a in prop::collection::vec(any_rail(), 1..=4),
        rotation: u32,
    ) {
        let at = |rotation| {
            let choice = choose(PreferSubnet, &c, &a, rotation);
            let mut all: Vec<_> = choice.first.iter().chain(&choice.rest).map(|r| (r.rails.connector, r.rails.acceptor)).collect();
            all.sort_unstable();
            all.dedup();
            let kinds: Vec<_> = choice.first.iter().map(|r| (r.one_subnet, r.requested)).collect();
            (all, kinds.first().copied(), choice.first.iter().all(|r| r.requested == 2).then_some(choice.first))
        };
        prop_assert_eq!(at(0), at(rotation));
    }
}
