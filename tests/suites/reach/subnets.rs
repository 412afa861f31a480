//! Subnets of every kind between two hosts: each connection uses the addresses that reach the peer,
//! or gets an error that names those that do not.

use mpib_tests::code::RemoteError;
use mpib_tests::hosts::{Topology, on_hosts};
use mpib_tests::{SHORT, here};

use super::util::{Reach, Setup, has_all, quiet, warnings};

type Ends = Vec<(&'static str, &'static str, &'static str)>;

/// Hosts a and b, or more, with short probes.
fn with(test: &str, networks: Vec<Ends>, body: impl FnOnce(Reach)) {
    on_hosts(test, &[], || {
        let topology = Topology { networks, ..Topology::default() };
        body(Reach::up(Setup { topology, env: SHORT.to_vec(), ..Setup::default() }));
    });
}

/// Two adapters of each host are on one switch, in two different subnets.
//= reach.md: fabric: two subnets on one link
#[test]
fn two_subnets_on_one_link_are_kept_apart() {
    let switch = vec![
        ("a", "mlx5_0", "10.0.0.1/24"),
        ("a", "mlx5_1", "10.0.1.1/24"),
        ("b", "mlx5_0", "10.0.1.2/24"),
        ("b", "mlx5_1", "10.0.0.2/24"),
    ];
    with(here!(), vec![switch], |mut net| {
        for (from, to) in [("a", "b"), ("b", "a")] {
            let (one, other) = if from == "a" { (".1", ".2") } else { (".2", ".1") };
            let addr = |subnet: &str, host: &str| format!("10.0.{subnet}{host}");
            // NCCL requests the two rails of one subnet, whose numbers differ on the two hosts.
            for (ask, asked) in [(0, 1), (1, 0)] {
                let subnet = if (from == "a") == (ask == 0) { "0" } else { "1" };
                let (ours, theirs) = (format!("mlx5_{ask}"), format!("mlx5_{asked}"));
                let (by, at) = (addr(subnet, one), addr(subnet, other));
                net.goes_asked((from, &ours, &by, ask), (to, &theirs, &at, asked));
            }
            // NCCL requests two rails of different subnets: one of them is joined to its match.
            for dev in [0, 1] {
                quiet(&net.connect((from, dev), (to, dev)));
                let [sent, received] = net.message(from, to, 5000);
                let (ours, theirs) = (sent.keys().next().unwrap(), received.keys().next().unwrap());
                assert_eq!((sent.len(), received.len()), (1, 1));
                assert_ne!(ours, theirs, "adapters of one number are on different subnets");
            }
        }
        net.exchange(100_000);
        net.finish();
    });
}

/// IPv4 and IPv6 on all; one pair has only the one in common, another only the other. And hosts
/// that have IPv6 alone.
//= faults.md: 56: hosts have IPv6 alone, or both families: they use what they share
//= reach.md: fabric: dual stack and IPv6 only
#[test]
fn dual_stack_and_ipv6_alone_find_what_they_share() {
    let networks = vec![
        vec![
            ("a", "mlx5_0", "10.0.0.1/24"),
            ("a", "mlx5_0", "2001:db8::1/64"),
            ("b", "mlx5_0", "10.0.0.2/24"),
            ("b", "mlx5_0", "2001:db8::2/64"),
            ("c", "mlx5_0", "2001:db8::3/64"),
            ("d", "mlx5_0", "2001:db8::4/64"),
            ("d", "mlx5_0", "10.7.0.4/24"),
        ],
        vec![("c", "oob", "2001:db8:9::3/64"), ("d", "oob", "2001:db8:9::4/64")],
    ];
    with(here!(), networks, |mut net| {
        let v6 = |n| format!("2001:db8::{n}");
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.goes(("b", "mlx5_0", "10.0.0.2"), ("a", "mlx5_0", "10.0.0.1"));
        for (from, n, to, m) in
            [("a", 1, "c", 3), ("c", 3, "b", 2), ("c", 3, "d", 4), ("d", 4, "a", 1), ("a", 1, "d", 4)]
        {
            net.goes((from, "mlx5_0", &v6(n)), (to, "mlx5_0", &v6(m)));
        }
        net.exchange(100_000);
        net.finish();
    });
}

//= reach.md: fabric: /30, /31 and /127 links
#[test]
fn links_with_no_room_for_more_than_their_two_ends_work() {
    let networks = vec![
        vec![("a", "mlx5_0", "10.0.0.1/30"), ("b", "mlx5_0", "10.0.0.2/30")],
        vec![("a", "mlx5_1", "10.0.0.4/31"), ("c", "mlx5_0", "10.0.0.5/31")],
        vec![("b", "mlx5_1", "2001:db8::6/127"), ("c", "mlx5_1", "2001:db8::7/127")],
    ];
    with(here!(), networks, |mut net| {
        for (one, other) in [
            (("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2")),
            (("a", "mlx5_1", "10.0.0.4"), ("c", "mlx5_0", "10.0.0.5")),
            (("b", "mlx5_1", "2001:db8::6"), ("c", "mlx5_1", "2001:db8::7")),
        ] {
            net.goes(one, other);
            net.goes(other, one);
        }
        net.finish();
    });
}

/// By its addresses the first adapter of either host reaches the other's: the same private subnet,
/// on two cables that are not one. The probe finds the truth, and the connection goes on by what
/// does reach.
//= reach.md: the probe decides where addresses mislead
#[test]
fn the_probe_finds_out_that_one_subnet_on_two_links_is_not_one() {
    let networks = vec![
        vec![("a", "mlx5_0", "192.168.0.1/24"), ("x", "mlx5_0", "192.168.0.2/24")],
        vec![("b", "mlx5_0", "192.168.0.2/24"), ("y", "mlx5_0", "192.168.0.1/24")],
        vec![("a", "mlx5_1", "10.0.0.1/24"), ("b", "mlx5_1", "10.0.0.2/24")],
        vec![
            ("a", "oob", "10.9.0.1/24"),
            ("b", "oob", "10.9.0.2/24"),
            ("x", "oob", "10.9.0.3/24"),
            ("y", "oob", "10.9.0.4/24"),
        ],
    ];
    with(here!(), networks, |mut net| {
        // Those whose cables are as they seem.
        net.goes(("a", "mlx5_0", "192.168.0.1"), ("x", "mlx5_0", "192.168.0.2"));
        net.goes(("y", "mlx5_0", "192.168.0.1"), ("b", "mlx5_0", "192.168.0.2"));
        for (from, to, by, at) in [("a", "b", "1", "2"), ("b", "a", "2", "1")] {
            let said = net.connect((from, 0), (to, 0));
            net.moves_on((from, "mlx5_1"), (to, "mlx5_1"));
            let (ours, theirs) = (format!("(10.0.0.{by}/24)"), format!("(10.0.0.{at}/24)"));
            // Each end logs it once.
            for said in said.iter().filter(|_| from == "a") {
                let warned: Vec<String> = said.iter().filter(|l| l.0 == 2).map(|l| l.1.clone()).collect();
                let parts = [
                    "goes from mlx5_1:1 ",
                    &ours,
                    &theirs,
                    "since they share a subnet, and not as NCCL requested: ",
                    &format!("mlx5_0:1 (192.168.0.{by}/24) to mlx5_0:1 (192.168.0.{at}/24): "),
                ];
                has_all(&warned, &parts);
            }
        }
        // Nothing else leads from x to y.
        net.refused(
            ("x", 0),
            ("y", 0),
            RemoteError,
            &["no rail works to", "mlx5_0:1 (192.168.0.2/24) to mlx5_0:1 (192.168.0.1/24): "],
        );
        net.finish();
    });
}

/// One that does no harm, since each end still finds the other in its own subnet; and one that puts
/// an end outside of the other's, where the reason names both with their prefixes.
//= reach.md: fabric: a wrong prefix length at one end is named
#[test]
fn a_wrong_prefix_at_one_end_is_named() {
    let networks = vec![
        vec![
            ("a", "mlx5_0", "10.0.0.1/24"),
            ("b", "mlx5_0", "10.0.0.2/16"),
            ("c", "mlx5_0", "10.0.0.130/25"),
        ],
        vec![("a", "oob", "10.9.0.1/24"), ("b", "oob", "10.9.0.2/24"), ("c", "oob", "10.9.0.3/24")],
    ];
    with(here!(), networks, |mut net| {
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.goes(("b", "mlx5_0", "10.0.0.2"), ("a", "mlx5_0", "10.0.0.1"));
        let said = "mlx5_0:1 (10.0.0.1/24) to mlx5_0:1 (10.0.0.130/25), no common subnet: ";
        net.refused(("a", 0), ("c", 0), RemoteError, &["no rail works to", said]);
        let said = "mlx5_0:1 (10.0.0.130/25) to mlx5_0:1 (10.0.0.2/16), no common subnet: ";
        net.refused(("c", 0), ("b", 0), RemoteError, &["no rail works to", said]);
        assert_eq!(warnings(&mut net.peers[0]), [""; 0]);
        net.finish();
    });
}
