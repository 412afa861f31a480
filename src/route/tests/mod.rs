//! The choice of routes, and its texts.

mod orders;

use mpib_proto::{GidKind, LinkLayer, Mtu, RailAddr};
use mpib_proto::{RailRole, UnusableRail};

use super::*;
use RoutePolicy::{Any, PreferSubnet, Strict, Subnet};
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
        role: RailRole::new(role).unwrap(),
        requested: true,
        grh_required: false,
        is_down: false,
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

/// Returns the rails of a host, `NAME IP/PREFIX` each; those with a `*` are requested.
fn host(rails: &[&str]) -> Vec<RailInfo> {
    let rail = |text: &&str| {
        let (name, addr) = text.split_once(' ').unwrap();
        let (ip, prefix) = addr.split_once('/').unwrap();
        let requested = name.ends_with('*');
        RailInfo { requested, ..roce(name.trim_end_matches('*'), ip, prefix.parse().unwrap(), 0) }
    };
    rails.iter().map(rail).collect()
}

/// Returns the routes of the first attempt and of later ones, as pairs of names.
fn order(policy: RoutePolicy, c: &[RailInfo], a: &[RailInfo], rotation: u32) -> (Vec<String>, Vec<String>) {
    let choice = choose(policy, c, a, rotation);
    let names = |routes: &[Route]| {
        routes.iter().map(|r| format!("{} {}", c[r.rails.connector].name, a[r.rails.acceptor].name)).collect()
    };
    (names(&choice.first), names(&choice.rest))
}

fn first(policy: RoutePolicy, c: &[RailInfo], a: &[RailInfo]) -> Vec<String> {
    order(policy, c, a, 0).0
}

fn ends<'a>(c: &'a [RailInfo], a: &'a [RailInfo]) -> Ends<End<'a>> {
    Ends { connector: End { rails: c, unusable: &[] }, acceptor: End { rails: a, unusable: &[] } }
}

/// Three hosts, a cable between each two: whichever devices are requested, the cable between the
/// two hosts is preferred.
#[test]
fn the_cable_between_two_hosts_of_a_triangle_is_preferred() {
    let hosts = [
        ["a0 10.0.1.1/24", "a1 10.0.2.1/24"],
        ["b0 10.0.1.2/24", "b1 10.0.3.2/24"],
        ["c0 10.0.2.3/24", "c1 10.0.3.3/24"],
    ];
    let requesting = |which: usize, dev: usize| {
        let mut rails = host(&hosts[which]);
        rails[dev].requested = true;
        rails.swap(0, dev);
        rails
    };
    for (from, to, cable) in
        [(0, 1, "a0 b0"), (0, 2, "a1 c0"), (1, 2, "b1 c1"), (1, 0, "b0 a0"), (2, 0, "c0 a1")]
    {
        for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (c, a) = (requesting(from, x), requesting(to, y));
            assert_eq!(first(PreferSubnet, &c, &a), [cable], "{from} {to} {x} {y}");
            assert_eq!(first(Subnet, &c, &a), [cable], "{from} {to} {x} {y}");
        }
    }
}

#[test]
fn a_policy_prefers_subnets_or_requested_rails() {
    let c = host(&["a0* 10.0.0.1/24", "a1 10.0.1.1/24"]);
    let a = host(&["b0* 10.9.0.2/24", "b1 10.0.1.2/24"]);
    let all = |policy| {
        let (first, rest) = order(policy, &c, &a, 0);
        [first, rest].concat()
    };
    assert_eq!(all(PreferSubnet), ["a1 b1", "a0 b0", "a0 b1", "a1 b0"]);
    assert_eq!(all(Subnet), ["a1 b1"]);
    assert_eq!(all(Any), ["a0 b0", "a0 b1", "a1 b0", "a1 b1"]);
    assert_eq!(all(Strict), ["a0 b0"]);
    // If the requested rail has the subnet, all policies agree.
    let near = host(&["b0* 10.0.0.2/24", "b1 10.0.1.2/24"]);
    for policy in RoutePolicy::ALL {
        assert_eq!(first(policy, &c, &near), ["a0 b0"], "{policy}");
    }
    // Of the pairs with one requested rail, the one on a subnet comes first, also with any.
    let half = host(&["b0* 10.9.0.2/24", "b1 10.0.0.2/24"]);
    assert_eq!(order(Any, &c, &half, 0).1[0], "a0 b1");
    assert_eq!(first(PreferSubnet, &c, &half), ["a0 b1"]);
}

#[test]
fn a_refusal_names_the_setting_that_permits_it() {
    let c = host(&["a0* 10.0.0.1/24", "a1 10.0.1.1/24"]);
    let a = host(&["b0* 10.9.0.2/24"]);
    let refused = |policy| choose(policy, &c, &a, 0).table(&ends(&c, &a), &[]);
    assert_eq!(
        refused(Subnet),
        "a0 to b0: no common subnet, which MPIB_ROUTE=subnet requires; if routers join the two, set MPIB_ROUTE=any; \
         a1 to b0: no common subnet, which MPIB_ROUTE=subnet requires; if routers join the two, set MPIB_ROUTE=any"
    );
    assert!(
        refused(Strict)
            .ends_with("a1 to b0: NCCL did not request a1, and MPIB_ROUTE=strict uses only what it requests")
    );
}

/// The address that NCCL would use precedes a common subnet of another family, and every other pair
/// of addresses of the requested rails precedes other rails.
//= reach.md: other addresses of the requested pair precede other NICs
#[test]
fn other_addresses_of_the_requested_pair_precede_other_rails() {
    let requested =
        |name: &str, addrs: &[(&str, u8)], requested| RailInfo { requested, ..with(name, addrs, true) };
    let c = [
        requested("a0", &[("10.0.0.1", 31), ("2001:db8::1", 64)], true),
        requested("a1", &[("192.168.0.1", 24)], false),
    ];
    let a = [
        requested("b0", &[("10.0.9.1", 31), ("2001:db8::2", 64)], true),
        requested("b1", &[("192.168.0.2", 24)], false),
    ];
    let addrs = |policy| {
        let choice = choose(policy, &c, &a, 0);
        let addr = |rail: &RailInfo, i: usize| gid_addr(rail.addrs[i].gid).to_string();
        let text = |r: &Route| {
            let (c, a) = (&c[r.rails.connector], &a[r.rails.acceptor]);
            format!("{} {}", addr(c, r.addrs.connector), addr(a, r.addrs.acceptor))
        };
        assert_eq!(choice.first.len(), 1);
        choice.first.iter().chain(&choice.rest).map(text).collect::<Vec<_>>()
    };
    let (v4, v6) = ("10.0.0.1 10.0.9.1", "2001:db8::1 2001:db8::2");
    let (half, other) = (["10.0.0.1 192.168.0.2", "192.168.0.1 10.0.9.1"], "192.168.0.1 192.168.0.2");
    assert_eq!(addrs(Any), [&[v4, v6][..], &half, &[other]].concat());
    assert_eq!(addrs(Strict), [v4, v6]);
    assert_eq!(addrs(PreferSubnet), [&[v6, other, v4][..], &half].concat());
    assert_eq!(addrs(Subnet), [v6, other]);
}

/// The requested device does not reach the peer, two others do: connections use both in rotation.
#[test]
fn connections_rotate_over_equal_links() {
    let c = host(&["a0* 10.0.0.1/24", "a1 10.0.1.1/24", "a2 10.0.2.1/24"]);
    let a = host(&["b0* 10.9.0.2/24", "b1 10.0.1.2/24", "b2 10.0.2.2/24"]);
    let rotation = |rotation| order(PreferSubnet, &c, &a, rotation).0;
    assert_eq!([0, 1, 2, u32::MAX].map(rotation).concat(), ["a1 b1", "a2 b2", "a1 b1", "a2 b2"]);
    // A requested device that reaches the peer is used alone.
    let near = host(&["b0* 10.0.0.2/24", "b1 10.0.1.2/24", "b2 10.0.2.2/24"]);
    for i in 0..4 {
        assert_eq!(order(PreferSubnet, &c, &near, i).0, ["a0 b0"]);
    }
    // If all are on one network, neighbours share no rail.
    let c = host(&["a0* 10.8.0.1/24", "a1 10.0.0.1/24", "a2 10.0.0.2/24"]);
    let a = host(&["b0* 10.9.0.2/24", "b1 10.0.0.3/24", "b2 10.0.0.4/24"]);
    let rotation = |rotation| order(PreferSubnet, &c, &a, rotation).0;
    assert_eq!([0, 1, 2, 3].map(rotation).concat(), ["a1 b1", "a2 b2", "a1 b2", "a2 b1"]);
    // A slower link is worse.
    let mut slow = a.clone();
    slow[1].speed_mbps = 10_000;
    assert_eq!([0, 1, 2].map(|i| order(PreferSubnet, &c, &slow, i).0).concat(), ["a1 b2", "a2 b2", "a1 b2"]);
}

#[test]
fn devices_of_several_rails_are_matched_by_subnets() {
    let c = host(&["a0* 10.0.0.1/24", "a1* 10.0.1.1/24", "a2 10.0.2.1/24"]);
    let a = host(&["b0* 10.0.1.2/24", "b1* 10.0.0.2/24", "b2 10.0.2.2/24"]);
    assert_eq!(first(PreferSubnet, &c, &a), ["a0 b1", "a1 b0"]);
    // As many as the smaller device has. The unmatched rail is reported.
    let one = host(&["b0* 10.0.1.2/24", "b1 10.0.0.2/24"]);
    assert_eq!(first(PreferSubnet, &c, &one), ["a1 b0"]);
    let choice = choose(PreferSubnet, &c, &one, 0);
    assert_eq!(
        choice.unmatched(&ends(&c, &one), |_| true),
        ["the connector's a0: the connector's a1 and the acceptor's b0 are a route as good or better"]
    );
    // Others are substitutes only if no requested rail reaches the peer.
    let elsewhere = host(&["b0* 10.9.1.2/24", "b1* 10.9.0.2/24", "b2 10.0.2.2/24"]);
    assert_eq!(first(PreferSubnet, &c, &elsewhere), ["a2 b2"]);
    assert_eq!(choose(PreferSubnet, &c, &elsewhere, 0).unmatched(&ends(&c, &elsewhere), |_| true), [""; 0]);
}

#[test]
fn a_rail_is_kept_once() {
    let c = host(&["a0* 10.0.0.1/24", "a1* 10.0.0.2/24"]);
    let a = host(&["b0* 10.0.0.3/24", "b1* 10.0.0.4/24"]);
    let choice = choose(PreferSubnet, &c, &a, 0);
    let all = [&choice.first[..], &choice.rest[..]].concat();
    let names = |kept: Vec<usize>| -> Vec<_> {
        kept.iter().map(|i| (all[*i].rails.connector, all[*i].rails.acceptor)).collect()
    };
    assert_eq!(names(choice.keep(&all, |_| true)), [(0, 0), (1, 1)]);
    assert_eq!(
        names(choice.keep(&all, |i| all[i].rails.connector != all[i].rails.acceptor)),
        [(0, 1), (1, 0)]
    );
    assert_eq!(names(choice.keep(&all, |i| all[i].rails.connector == 1)), [(1, 1)]);
    assert_eq!(choice.keep(&all, |_| false), [0; 0]);
}

#[test]
fn a_substitution_has_every_reason() {
    let c = host(&["a0* 10.0.0.1/24", "a1 10.0.1.1/24"]);
    let a = host(&["b0* 10.9.0.2/24", "b1 10.0.1.2/24"]);
    let choice = choose(PreferSubnet, &c, &a, 0);
    assert_eq!(
        choice.substitution(&ends(&c, &a), &choice.first[0], &[]).whole(),
        "goes from a1 (10.0.1.1/24) to b1 (10.0.1.2/24), since they share a subnet, and not as NCCL requested: \
         a0 (10.0.0.1/24) to b0 (10.9.0.2/24): no common subnet"
    );
    let down = |name: &str, requested| UnusableRail {
        name: name.into(),
        role: RailRole::SOUT,
        requested,
        why: "the port is not active".into(),
    };
    let unusable = [down("a0", true), down("a2", false)];
    let ends = Ends { connector: End { rails: &c[1..], unusable: &unusable }, ..ends(&c, &a) };
    let choice = choose(PreferSubnet, &c[1..], &a, 0);
    let tried = [(choice.first[0], "no answer".to_owned())];
    let found = choice.substitution(&ends, &choice.rest[0], &tried);
    assert_eq!(
        found.whole(),
        "goes from a1 (10.0.1.1/24) to b0 (10.9.0.2/24), since one of them was requested; they share no subnet, and \
         routers must join them, and not as NCCL requested: the connector's a0: the port is not active; \
         a1 (10.0.1.1/24) to b1 (10.0.1.2/24): no answer"
    );
    // A warning has the first reason, and the number of those in the next line.
    let end =
        "and not as NCCL requested: the connector's a0: the port is not active; other reasons at INFO: 1";
    assert!(found.short().ends_with(end), "{}", found.short());
    assert_eq!(found.others().unwrap(), "a1 (10.0.1.1/24) to b1 (10.0.1.2/24): no answer");
    assert_eq!(
        choice.table(&ends, &tried),
        "a1 (10.0.1.1/24) to b1 (10.0.1.2/24): no answer; a1 (10.0.1.1/24) to b0 (10.9.0.2/24): not tried, the time was \
         up; the connector's a0: the port is not active; the connector's a2: the port is not active"
    );
}

fn roles(c: &[RailInfo], a: &[RailInfo]) -> Vec<(usize, usize)> {
    choose_roles(c, a).first.iter().map(|r| (r.rails.connector, r.rails.acceptor)).collect()
}

#[test]
fn sout_never_meets_sup() {
    let ours = [roce("a", "10.0.0.1", 24, 0), roce("b", "10.0.1.1", 24, 1)];
    let theirs = [roce("c", "10.0.1.2", 24, 0), roce("d", "10.0.0.2", 24, 1)];
    assert_eq!(roles(&ours, &theirs), [(0, 0), (1, 1)]);
    // The ports of other devices are ignored.
    let strange = RailInfo { requested: false, ..roce("e", "10.0.0.2", 24, 0) };
    assert_eq!(roles(&ours, &[strange]), [(0, 0); 0]);
    let choice = choose_roles(&ours[..1], &theirs[1..]);
    assert_eq!(choice.first, []);
    assert_eq!(choice.refused[0].why, "a is SOUT, d is SUP");
    let table = choice.table(&ends(&ours[..1], &theirs[1..]), &[]);
    assert_eq!(table, "a to d: a is SOUT, d is SUP");
}

/// The report has the reason that the owner of the rail sent.
#[test]
fn an_unusable_rail_has_its_owners_reason() {
    let ours = [roce("a", "10.0.0.1", 24, 0), roce("b", "10.0.1.1", 24, 1)];
    let theirs = [roce("c", "10.0.0.2", 24, 0)];
    let choice = choose_roles(&ours, &theirs);
    let none = ends(&ours, &theirs);
    assert_eq!(choice.unmatched(&none, |_| true), ["the connector's b: the other end has no SUP to offer"]);
    let unusable = [UnusableRail {
        name: "d".into(),
        role: RailRole::SUP,
        requested: true,
        why: "the port is not active".into(),
    }];
    let said = Ends { acceptor: End { unusable: &unusable, ..none.acceptor }, ..none };
    assert_eq!(choice.unmatched(&said, |_| true), ["the acceptor's SUP d: the port is not active"]);
    assert_eq!(choice.unmatched(&said, |role| role == RailRole::SOUT), [""; 0]);
}

#[test]
fn a_single_rail_meets_the_one_in_its_subnet() {
    let ours = [roce("a", "10.0.1.1", 24, 0)];
    let theirs = [roce("c", "10.0.0.2", 24, 0), roce("d", "10.0.1.2", 24, 1)];
    assert_eq!(first(PreferSubnet, &ours, &theirs), ["a d"]);
    assert_eq!(first(PreferSubnet, &theirs, &ours), ["d a"]);
    let unmatched = choose(PreferSubnet, &ours, &theirs, 0).unmatched(&ends(&ours, &theirs), |_| true);
    assert_eq!(
        unmatched,
        ["the acceptor's c: the connector's a and the acceptor's d are a route as good or better"]
    );
}

#[test]
fn without_a_common_subnet_sup_pairs_with_sup() {
    let ours = [roce("b", "10.0.1.1", 0, 1)];
    let theirs = [roce("c", "10.0.0.2", 0, 0), roce("d", "10.0.1.2", 0, 1)];
    assert_eq!(first(PreferSubnet, &ours, &theirs), ["b d"]);
    assert_eq!(first(PreferSubnet, &theirs, &ours), ["d b"]);
}

#[test]
fn a_prefix_that_one_end_sees_wider_is_no_common_subnet() {
    let ours = [roce("a", "10.0.0.1", 16, 0)];
    let theirs = [roce("c", "10.0.1.2", 24, 0), roce("d", "10.0.0.2", 24, 1)];
    assert_eq!(first(PreferSubnet, &ours, &theirs), ["a d"]);
}

#[test]
fn link_layers_do_not_mix() {
    let ours = [ib("a", 0), roce("b", "10.0.0.1", 24, 1)];
    let theirs = [ib("c", 0), ib("d", 1)];
    assert_eq!(first(PreferSubnet, &ours, &theirs), ["a c"]);
    let none = choose(PreferSubnet, &ours[1..], &theirs, 0);
    assert_eq!((none.first.len(), none.rest.len()), (0, 0));
    assert_eq!(
        none.table(&ends(&ours[1..], &theirs), &[]),
        "b to c: b is Ethernet, c is InfiniBand; b to d: b is Ethernet, d is InfiniBand"
    );
}

/// A queue pair uses the smaller MTU.
#[test]
fn mtus_may_differ() {
    let ours = [RailInfo { mtu: Mtu::B1024, ..roce("a", "10.0.0.1", 24, 0) }];
    assert_eq!(first(Strict, &ours, &[roce("b", "10.0.0.2", 24, 0)]), ["a b"]);
}

#[test]
fn roce_versions_and_families_do_not_mix() {
    let ours = [roce("a", "10.0.0.1", 24, 0)];
    let why = |theirs: RailInfo| choose(Any, &ours, &[theirs], 0).refused[0].why.clone();
    let c = roce("c", "10.0.0.2", 24, 0);
    let old = |addr: &RailAddr| RailAddr { gid_kind: GidKind::RoceV1, ..*addr };
    assert!(why(RailInfo { addrs: c.addrs.iter().map(old).collect(), ..c }).contains("RoCE v1"));
    assert!(why(roce("c", "2001:db8::2", 64, 0)).contains("family"));
}

#[test]
fn no_rails_is_an_error() {
    assert_eq!(choose(Any, &[], &[], 0).table(&ends(&[], &[]), &[]), "an end has no rail to offer");
}

/// A peer chooses names and reasons.
#[test]
fn a_text_about_many_pairs_has_a_bound() {
    let ours: Vec<_> = (0..32).map(|i| roce(&format!("ours{i}"), "10.0.0.1", 24, 0)).collect();
    let theirs: Vec<_> = (0..32).map(|i| ib(&format!("{}{i}", "x".repeat(60)), 0)).collect();
    let table = choose(PreferSubnet, &ours, &theirs, 0).table(&ends(&ours, &theirs), &[]);
    assert!((4 << 10..9 << 10).contains(&table.len()), "{} bytes", table.len());
    let (_, left) = table.rsplit_once("; and ").unwrap();
    let left: usize = left.strip_suffix(" more").unwrap().parse().unwrap();
    assert_eq!(table.split("; ").count() - 1 + left, 32 * 32);
}
