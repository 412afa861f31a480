//! Hosts that differ in the number, the order and the MTU of their adapters, or that change
//! meanwhile.

use mpib_tests::code::{InvalidUsage, RemoteError};
use mpib_tests::hosts::{Topology, on_hosts};
use mpib_tests::{SHORT, here};

use super::util::{Reach, Setup, quiet};

//= reach.md: fabric: one adapter and four
#[test]
fn one_adapter_meets_the_one_of_four_that_it_reaches() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("many", "mlx5_0", "10.0.0.1/24")],
                vec![("many", "mlx5_1", "10.0.1.1/24")],
                vec![("many", "mlx5_2", "10.0.2.1/24"), ("one", "mlx5_0", "10.0.2.2/24")],
                vec![("many", "mlx5_3", "10.0.3.1/24")],
            ],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for asked in 0..4 {
            net.goes_asked(("one", "mlx5_0", "10.0.2.2", 0), ("many", "mlx5_2", "10.0.2.1", asked));
            net.goes_asked(("many", "mlx5_2", "10.0.2.1", asked), ("one", "mlx5_0", "10.0.2.2", 0));
        }
        net.exchange(100_000);
        net.finish();
    });
}

/// The same cables, and their adapters in the reverse order and under other names on the other
/// host.
//= reach.md: fabric: adapters in another order, with other names
#[test]
fn adapters_in_another_order_meet_by_their_links() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.0.0.1/24"), ("b", "mlx9_3", "10.0.0.2/24")],
                vec![("a", "mlx5_1", "10.0.1.1/24"), ("b", "mlx9_2", "10.0.1.2/24")],
                vec![("a", "mlx5_2", "10.0.2.1/24"), ("b", "mlx9_1", "10.0.2.2/24")],
            ],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for asked in 0..3 {
            let (ours, theirs) = (format!("mlx5_{asked}"), format!("mlx9_{}", 3 - asked));
            let (by, at) = (format!("10.0.{asked}.1"), format!("10.0.{asked}.2"));
            net.goes_asked(("a", &ours, &by, asked), ("b", &theirs, &at, 2 - asked));
            net.goes_asked(("b", &theirs, &at, 2 - asked), ("a", &ours, &by, asked));
        }
        // The requested devices have the same number on both hosts, and only the middle two are on
        // one cable. At least one of the requested rails is used, with the rail on its cable.
        for dev in 0..3 {
            quiet(&net.connect(("a", dev), ("b", dev)));
            let [sent, received] = net.message("a", "b", 5000);
            let number = |counts: &std::collections::BTreeMap<String, _>| -> usize {
                assert_eq!(counts.len(), 1);
                counts.keys().next().unwrap()[5..].parse().unwrap()
            };
            let (ours, theirs) = (number(&sent), number(&received));
            assert_eq!(ours + theirs, 3, "two ends of one cable");
            assert!(ours == dev || theirs == dev + 1, "neither was asked for");
        }
        net.finish();
    });
}

/// 20 adapters on each host, with one cable each and addresses of both families: more addresses
/// than a handle holds.
//= reach.md: fabric: 20 adapters
#[test]
fn twenty_adapters_meet_each_its_own() {
    on_hosts(here!(), &[], || {
        let text = |s: String| -> &'static str { s.leak() };
        let cable = |i: usize| {
            [("a", 1), ("b", 2)]
                .map(|(host, n)| {
                    let adapter = text(format!("mlx5_{i}"));
                    [format!("10.0.{i}.{n}/24"), format!("2001:db8:{i}::{n}/64")]
                        .map(|addr| (host, adapter, text(addr)))
                })
                .concat()
        };
        let topology = Topology { networks: (0..20).map(cable).collect(), ..Topology::default() };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        let left_out = |said: &[(i32, String)]| {
            said.iter().filter(|l| l.1.contains("more addresses than a handle holds")).count()
        };
        let mut reported = 0;
        for i in 0..20 {
            let (name, by, at) = (format!("mlx5_{i}"), format!("10.0.{i}.1"), format!("10.0.{i}.2"));
            let said = net.connect(("a", i), ("b", i));
            net.said_route(&said, ("a", &name, &by), ("b", &name, &at));
            reported += left_out(&said[1]);
            let [sent, received] = net.message("a", "b", 70_000);
            assert_eq!([sent, received].map(|c| c.into_keys().collect::<Vec<_>>()), [[name.clone()], [name]]);
        }
        assert_eq!(reported, 1, "once");
        net.exchange(10_000);
        net.finish();
    });
}

/// More other networks than a handle holds, and the one with an adapter is the last of them.
//= reach.md: the handle names one address of each subnet before a second one
#[test]
fn a_host_on_many_networks_is_found_by_that_of_its_adapter() {
    on_hosts(here!(), &[], || {
        let text = |s: String| -> &'static str { s.leak() };
        let lan = |i: usize| vec![("b", text(format!("lan{i}")), text(format!("172.16.{i}.1/24")))];
        let mut topology = two();
        topology.networks.splice(0..0, (0..20).map(lan));
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.finish();
    });
}

/// 1500 at one end and 9000 at the other: packets are as long as the smaller one allows, and data
/// flows.
//= faults.md: 57: ports differ in MTU: the smaller one is used
//= reach.md: fabric: ports of different MTU use the smaller one
#[test]
fn ports_of_different_mtu_use_the_smaller_one() {
    on_hosts(here!(), &[], || {
        let mut net = Reach::up(Setup {
            topology: two(),
            adapters: vec![("b", "mlx5_0", ",mtu=1024")],
            ..Setup::default()
        });
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.goes(("b", "mlx5_0", "10.0.0.2"), ("a", "mlx5_0", "10.0.0.1"));
        net.finish();
    });
}

fn two() -> Topology {
    Topology {
        networks: vec![vec![("a", "mlx5_0", "10.0.0.1/24"), ("b", "mlx5_0", "10.0.0.2/24")]],
        ..Topology::default()
    }
}

/// Both ends have 9000, and the switch between them 1500.
//= faults.md: 58: a switch drops long packets: the probe finds that and the error says so
//= reach.md: a path that loses long packets is reported as such
#[test]
fn a_switch_that_drops_long_packets_is_found_by_the_probe() {
    on_hosts(here!(), &[], || {
        let adapters = vec![("a", "mlx5_0", ",path_mtu=1024")];
        let mut net = Reach::up(Setup { topology: two(), adapters, env: SHORT.to_vec(), ..Setup::default() });
        let parts = [
            "no rail works to",
            "mlx5_0:1 (10.0.0.1/24) to mlx5_0:1 (10.0.0.2/24): ",
            "empty packets arrive, and those of 4096 bytes do not: has an interface or a switch on the way a smaller MTU than the ports at both ends?",
        ];
        net.refused(("a", 0), ("b", 0), RemoteError, &parts);
        net.finish();
    });
}

/// Two addresses at each end; the first one goes between listen and connect, then the other.
//= reach.md: an address that was removed is named in the reason
#[test]
fn an_address_that_is_removed_between_listen_and_connect_is_not_used() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![
                    ("a", "mlx5_0", "10.0.0.1/24"),
                    ("a", "mlx5_0", "10.0.1.1/24"),
                    ("b", "mlx5_0", "10.0.0.2/24"),
                    ("b", "mlx5_0", "10.0.1.2/24"),
                ],
                vec![("a", "oob", "10.9.0.1/24"), ("b", "oob", "10.9.0.2/24")],
            ],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, env: SHORT.to_vec(), ..Setup::default() });
        let handle = net.listen("b", 0);
        let removed = |net: &mut Reach, addr: &str, table: &str| {
            // Of the interface, which the kernel says, and of the table, which it makes from that.
            let done =
                net.hosts.command("b", "ip").args(["addr", "del", addr, "dev", "mlx5_0"]).status().unwrap();
            assert!(done.success());
            net.peers[1].must(&format!("addrs mlx5_0 {table}"));
        };
        removed(&mut net, "10.0.0.2/24", "- 10.0.1.2/24");
        let said = net.join(&handle, ("a", 0), "b");
        net.said_route(&said, ("a", "mlx5_0", "10.0.1.1"), ("b", "mlx5_0", "10.0.1.2"));
        net.moves_on(("a", "mlx5_0"), ("b", "mlx5_0"));
        let handle = net.listen("b", 0);
        removed(&mut net, "10.0.1.2/24", "- -");
        let parts = ["mlx5_0:1 has 10.0.0.1, 10.0.1.1, mlx5_0:1 has fe80::", "not of one family"];
        net.refused_at(&handle, ("a", 0), "b", InvalidUsage, &parts);
        net.finish();
    });
}

/// As after a flap of the link: the same addresses, at other places of both tables.
//= protocol.md: each connection reads the GID tables again
#[test]
fn a_renumbered_gid_table_between_two_connections_is_harmless() {
    on_hosts(here!(), &[], || {
        let mut net = Reach::up(Setup { topology: two(), env: SHORT.to_vec(), ..Setup::default() });
        let ends = (("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.goes(ends.0, ends.1);
        for table in ["- - 10.0.0.1/24", "10.7.0.1/24 - - 10.0.0.1/24", "10.0.0.1/24"] {
            net.peers[0].must(&format!("addrs mlx5_0 {table}"));
            net.peers[1].must(&format!("addrs mlx5_0 {}", table.replace(".1/", ".2/")));
            net.goes(ends.0, ends.1);
            net.goes(ends.1, ends.0);
        }
        // What was connected before goes on.
        net.exchange(100_000);
        net.finish();
    });
}
