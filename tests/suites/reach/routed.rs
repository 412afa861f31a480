//! Fabrics whose NICs are joined by routers: a connection uses the NICs that NCCL requested, also
//! if other NICs have a subnet in common. No variable of the plugin is set.

use mpib_tests::code::{InvalidUsage, RemoteError};
use mpib_tests::hosts::watch::{INFO, WARN, log};
use mpib_tests::hosts::{Topology, on_hosts};
use mpib_tests::pair::until;
use mpib_tests::{SHORT, here};

use super::util::{Reach, Setup, has_all, quiet};

/// Runs `ip` on a host.
fn ip(net: &Reach, host: &str, args: &str) {
    let done = net.hosts.command(host, "ip").args(args.split(' ')).status().unwrap();
    assert!(done.success(), "ip {args} on {host}");
}

/// Sends what comes from an address to its own router, as hosts with several uplinks are
/// configured.
fn own_router(net: &Reach, host: &str, (interface, addr, router): (&str, &str, &str), table: u32) {
    ip(net, host, &format!("route add default via {router} dev {interface} table {table}"));
    ip(net, host, &format!("rule add from {addr} lookup {table}"));
}

/// Each NIC is alone with a router, and all hosts have a storage network in common.
//= reach.md: the requested pair is used whether or not routers join it
//= reach.md: fabric: a /31 for each NIC and a storage network in common
//= adapters.md: A1: the requested pair is used whenever it works
#[test]
fn with_a_link_for_each_nic_traffic_stays_off_the_storage_network() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.1.0.0/31"), ("r", "p0", "10.1.0.1/31")],
                vec![("a", "mlx5_1", "10.1.1.0/31"), ("r", "p1", "10.1.1.1/31")],
                vec![("b", "mlx5_0", "10.2.0.0/31"), ("r", "p2", "10.2.0.1/31")],
                vec![("b", "mlx5_1", "10.2.1.0/31"), ("r", "p3", "10.2.1.1/31")],
                vec![("a", "mlx5_2", "192.168.50.1/24"), ("b", "mlx5_2", "192.168.50.2/24")],
            ],
            routers: vec!["r"],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for (host, n) in [("a", 1), ("b", 2)] {
            for nic in 0..2 {
                let (name, addr) = (format!("mlx5_{nic}"), format!("10.{n}.{nic}.0"));
                own_router(&net, host, (&name, &addr, &format!("10.{n}.{nic}.1")), 100 + nic);
            }
        }
        for (ask, asked) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            let (ours, theirs) = (format!("mlx5_{ask}"), format!("mlx5_{asked}"));
            let (by, at) = (format!("10.1.{ask}.0"), format!("10.2.{asked}.0"));
            net.goes_asked(("a", &ours, &by, ask), ("b", &theirs, &at, asked));
            net.goes_asked(("b", &theirs, &at, asked), ("a", &ours, &by, ask));
        }
        net.goes_asked(("a", "mlx5_2", "192.168.50.1", 2), ("b", "mlx5_2", "192.168.50.2", 2));
        net.exchange(100_000);
        net.finish();
    });
}

/// Each rail is a subnet with a router: pairs across rails stay as NCCL requests them.
//= reach.md: fabric: a VLAN for each rail, with routers
//= adapters.md: A1: the requested pair is used whenever it works
#[test]
fn with_a_subnet_for_each_rail_pairs_across_rails_are_routed() {
    on_hosts(here!(), &[], || {
        let rail = |n: usize| -> Vec<(&'static str, &'static str, &'static str)> {
            let nic = ["mlx5_0", "mlx5_1"][n];
            let port = ["p0", "p1"][n];
            let addrs = [
                ["10.10.0.1/24", "10.10.0.2/24", "10.10.0.254/24"],
                ["10.11.0.1/24", "10.11.0.2/24", "10.11.0.254/24"],
            ][n];
            vec![("a", nic, addrs[0]), ("b", nic, addrs[1]), ("r", port, addrs[2])]
        };
        let mut routes = Vec::new();
        for host in ["a", "b"] {
            routes.push((host, "10.0.0.0/8", "10.10.0.254 metric 1"));
            routes.push((host, "10.0.0.0/8", "10.11.0.254 metric 2"));
        }
        let topology = Topology { networks: vec![rail(0), rail(1)], routes, routers: vec!["r"] };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for (ask, asked) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            let (ours, theirs) = (format!("mlx5_{ask}"), format!("mlx5_{asked}"));
            let (by, at) = (format!("10.1{ask}.0.1"), format!("10.1{asked}.0.2"));
            net.goes_asked(("a", &ours, &by, ask), ("b", &theirs, &at, asked));
            net.goes_asked(("b", &theirs, &at, asked), ("a", &ours, &by, ask));
        }
        net.exchange(100_000);
        net.finish();
    });
}

/// Routed IPv4 addresses, and IPv6 addresses of one prefix on the same NICs and on others.
//= reach.md: a common subnet decides among addresses of one family and version
//= reach.md: fabric: dual stack with routed IPv4
//= adapters.md: A1b: a common IPv6 prefix does not replace routed IPv4
#[test]
fn a_common_ipv6_prefix_does_not_replace_routed_ipv4() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![vec![
                ("a", "mlx5_0", "10.1.0.0/31"),
                ("a", "mlx5_0", "2001:db8::1/64"),
                ("a", "mlx5_1", "2001:db8::11/64"),
                ("b", "mlx5_0", "10.2.0.0/31"),
                ("b", "mlx5_0", "2001:db8::2/64"),
                ("b", "mlx5_1", "2001:db8::12/64"),
                ("r", "p0", "10.1.0.1/31"),
                ("r", "p0", "10.2.0.1/31"),
            ]],
            routes: vec![("a", "10.0.0.0/8", "10.1.0.1"), ("b", "10.0.0.0/8", "10.2.0.1")],
            routers: vec!["r"],
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        net.goes(("a", "mlx5_0", "10.1.0.0"), ("b", "mlx5_0", "10.2.0.0"));
        net.goes(("b", "mlx5_0", "10.2.0.0"), ("a", "mlx5_0", "10.1.0.0"));
        net.goes_asked(("a", "mlx5_1", "2001:db8::11", 1), ("b", "mlx5_1", "2001:db8::12", 1));
        net.finish();
    });
}

/// Two cables between two hosts. The ends of the second one have IPv4 addresses of two subnets, and
/// IPv6 addresses of one.
fn sup_by_ipv6() -> Topology {
    let networks = vec![
        vec![("a", "mlx5_0", "10.0.0.1/24"), ("b", "mlx5_0", "10.0.0.2/24")],
        vec![
            ("a", "mlx5_1", "10.1.0.1/24"),
            ("a", "mlx5_1", "2001:db8::1/64"),
            ("b", "mlx5_1", "10.2.0.2/24"),
            ("b", "mlx5_1", "2001:db8::2/64"),
        ],
    ];
    Topology { networks, ..Topology::default() }
}

//= reach.md: other addresses of the requested pair precede other NICs
#[test]
fn a_rail_whose_ipv4_address_leads_nowhere_uses_ipv6() {
    on_hosts(here!(), &[], || {
        let mut net = Reach::up(Setup { topology: sup_by_ipv6(), ..Setup::default() });
        net.goes_asked(("a", "mlx5_1", "2001:db8::1", 1), ("b", "mlx5_1", "2001:db8::2", 1));
        net.finish();
    });
}

/// SUP's IPv4 addresses have no route, and SOUT works.
//= reach.md: a rail that fails with one pair of addresses is tried with the next
#[test]
fn sup_is_joined_by_its_other_addresses() {
    on_hosts(here!(), &[], || {
        let env = vec![("MPIB_HCA_SOUT", "mlx5_0"), ("MPIB_HCA_SUP", "mlx5_1"), ("MPIB_SUP_SHARE", "512")];
        let mut net = Reach::up(Setup { topology: sup_by_ipv6(), env, ..Setup::default() });
        let said = net.connect(("a", 0), ("b", 0));
        quiet(&said);
        let [sent, _] = net.message("a", "b", 1 << 20);
        let bytes: Vec<_> = sent.values().map(|count| count.bytes).collect();
        assert_eq!(bytes, [1 << 19, 1 << 19], "{sent:?}");
        net.finish();
    });
}

/// One end's kernel has a route for the requested pair, and the other's has none. Neither end waits
/// for a probe, and nothing is wrong: the cable between the hosts is used.
//= reach.md: a pair without a route at one end fails at once at both
#[test]
fn a_route_at_one_end_alone_is_none() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.1.0.0/31"), ("x", "mlx5_0", "10.1.0.1/31")],
                vec![("b", "mlx5_0", "10.2.0.0/31"), ("y", "mlx5_0", "10.2.0.1/31")],
                vec![("a", "mlx5_1", "10.3.0.1/24"), ("b", "mlx5_1", "10.3.0.2/24")],
            ],
            // The default route of a.
            routes: vec![("a", "0.0.0.0/0", "10.1.0.1")],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for (from, to) in [("a", "b"), ("b", "a")] {
            let said = net.connect((from, 0), (to, 0));
            quiet(&said);
            net.moves_on((from, "mlx5_1"), (to, "mlx5_1"));
            if from == "b" {
                // Logged once for each device and host.
                continue;
            }
            let missing = "no route from 10.2.0.0 (mlx5_0) to 10.1.0.0";
            let parts =
                [format!("the peer does not try it; reported by the peer: {missing}"), missing.to_owned()];
            for (said, part) in said.iter().zip(parts) {
                let report = said.iter().find(|line| line.1.contains("and not as NCCL requested"));
                assert!(
                    report.is_some_and(|(level, text)| *level == INFO && text.contains(&part)),
                    "{said:?}"
                );
            }
        }
        net.finish();
    });
}

/// A switch joins hosts whose addresses are of two subnets without a router. Linux asks for the
/// neighbour on the link nevertheless, and packets arrive. No pair has a route, so each is tried.
//= reach.md: if nothing else works, a pair without a route is tried nevertheless
#[test]
fn without_a_route_the_requested_pair_is_the_last_resort() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![
                    ("a", "mlx5_0", "10.1.0.1/24"),
                    ("a", "mlx5_1", "10.2.0.1/24"),
                    ("b", "mlx5_0", "10.3.0.1/24"),
                    ("b", "mlx5_1", "10.4.0.1/24"),
                ],
                vec![("a", "oob", "192.168.9.1/24"), ("b", "oob", "192.168.9.2/24")],
            ],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, flat: true, ..Setup::default() });
        for asked in [0, 1] {
            let theirs = (format!("mlx5_{asked}"), format!("10.{}.0.1", 3 + asked));
            net.goes_asked(("a", "mlx5_0", "10.1.0.1", 0), ("b", &theirs.0, &theirs.1, asked));
        }
        net.finish();
    });
}

/// The requested devices have one private subnet, on two cables that are not one. The first
/// connection finds out by a probe; later ones do not send one, until a port changes.
//= reach.md: a failed route is tried again after 60 s, when it works, or when a port changes
#[test]
fn a_failed_pair_is_not_probed_again_until_a_port_changes() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "192.168.0.1/24")],
                vec![("b", "mlx5_0", "192.168.0.2/24")],
                vec![("a", "mlx5_1", "10.0.0.1/24"), ("b", "mlx5_1", "10.0.0.2/24")],
            ],
            ..Topology::default()
        };
        let env = SHORT.to_vec();
        let mut net = Reach::up(Setup { topology, env, ..Setup::default() });
        // Whether a connection sends a probe from the requested adapter of each end.
        let probes = |net: &mut Reach| {
            let before = [0, 1].map(|host| net.counts(host)["mlx5_0"]);
            let said = net.connect(("a", 0), ("b", 0));
            net.moves_on(("a", "mlx5_1"), ("b", "mlx5_1"));
            let sent = [0, 1].map(|host| net.counts(host)["mlx5_0"].since(before[host]).writes > 0);
            (sent, said.map(|lines| lines.iter().any(|line| line.0 == WARN)))
        };
        assert_eq!(probes(&mut net), ([true, true], [true, true]));
        for _ in 0..2 {
            assert_eq!(probes(&mut net), ([false, false], [false, false]));
        }
        for peer in &mut net.peers {
            peer.must("link mlx5_0 0");
            peer.must("link mlx5_0 1");
            let active = |line: &(i32, String)| line.1.contains("IBV_EVENT_PORT_ACTIVE");
            until("the event", || log(peer).iter().any(active).then_some(()));
        }
        assert_eq!(probes(&mut net).0, [true, true]);
        net.finish();
    });
}

/// Nothing joins two hosts: the error names the missing route of each pair, and what a probe of the
/// requested one found.
//= reach.md: error: a pair without a route
#[test]
fn a_missing_route_is_named_in_the_error() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.1.0.1/31"), ("b", "mlx5_0", "10.1.0.0/31")],
                vec![("b", "mlx5_1", "10.2.0.0/31"), ("c", "mlx5_0", "10.2.0.1/31")],
                vec![("c", "mlx5_1", "10.3.0.0/31"), ("d", "mlx5_0", "10.3.0.1/31")],
                vec![("b", "oob", "192.168.9.2/24"), ("d", "oob", "192.168.9.4/24")],
            ],
            ..Topology::default()
        };
        let env = SHORT.to_vec();
        let mut net = Reach::up(Setup { topology, env, ..Setup::default() });
        // Neighbours on the line use their cable, whichever device is requested.
        net.goes(("a", "mlx5_0", "10.1.0.1"), ("b", "mlx5_0", "10.1.0.0"));
        for (ask, asked) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            net.goes_asked(("b", "mlx5_1", "10.2.0.0", ask), ("c", "mlx5_0", "10.2.0.1", asked));
        }
        let parts = [
            "no rail works to",
            "mlx5_0:1 (10.1.0.0/31) to mlx5_0:1 (10.3.0.1/31), no common subnet: no route from",
            "; tried nevertheless: the probe failed",
            "mlx5_1:1 (10.2.0.0/31) to mlx5_0:1 (10.3.0.1/31), no common subnet: no route from",
        ];
        net.refused(("b", 0), ("d", 0), RemoteError, &parts);
        net.finish();
    });
}

/// The requested device leads nowhere. Its substitute is under another PCI root at one end: where
/// NCCL may register GPU memory, that end warns once.
//= reach.md: a substitute under another PCI root or NUMA node is a warning
//= adapters.md: A1c: a substitute far from the requested NIC is a warning
#[test]
fn a_substitute_under_another_pci_root_is_a_warning() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.1.0.1/24")],
                vec![("b", "mlx5_0", "10.2.0.1/24")],
                vec![("a", "mlx5_1", "10.3.0.1/24"), ("b", "mlx5_1", "10.3.0.2/24")],
                vec![("a", "mlx5_2", "10.4.0.1/24"), ("c", "mlx5_0", "10.4.0.2/24")],
            ],
            ..Topology::default()
        };
        let sysfs = tempfile::tempdir().unwrap();
        let at = |adapter: &str, root: &str, function: &str| -> &'static str {
            let (device, folder) = (sysfs.path().join(root).join(function), sysfs.path().join(adapter));
            std::fs::create_dir_all(&device).unwrap();
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::symlink(&device, folder.join("device")).unwrap();
            format!(",dmabuf=on,sysfs={}", folder.display()).leak()
        };
        let adapters = vec![
            ("a", "mlx5_0", at("a0", "pci0000:16", "0000:17:00.0")),
            ("a", "mlx5_1", at("a1", "pci0000:80", "0000:81:00.0")),
            ("a", "mlx5_2", at("a2", "pci0000:16", "0000:18:00.0")),
            ("b", "mlx5_0", at("b0", "pci0000:16", "0000:17:00.0")),
            ("b", "mlx5_1", at("b1", "pci0000:16", "0000:18:00.0")),
        ];
        let mut net = Reach::up(Setup { topology, adapters, ..Setup::default() });
        for expected in [1, 0] {
            let said = net.connect(("a", 0), ("b", 0));
            net.moves_on(("a", "mlx5_1"), ("b", "mlx5_1"));
            let warned = said.map(|lines| lines.into_iter().filter(|l| l.0 == WARN).collect::<Vec<_>>());
            assert!(warned[0].is_empty() == (expected == 0) && warned[1].is_empty(), "{warned:?}");
            if expected == 1 {
                let text: Vec<String> = warned[0].iter().map(|line| line.1.clone()).collect();
                let parts = [
                    "connections go over mlx5_1:1 (",
                    "/pci0000:80/0000:81:00.0) and not over mlx5_0:1 (",
                    "/pci0000:16/0000:17:00.0), which NCCL requested",
                    "NCCL_NET_GDR_LEVEL=LOC",
                ];
                has_all(&text, &parts);
            }
        }
        // The same root; and a requested device without a substitute.
        quiet(&net.connect(("a", 0), ("c", 0)));
        // Devices are in the order of their PCI addresses: mlx5_1 is the last one of a.
        quiet(&net.connect(("a", 2), ("b", 1)));
        net.finish();
    });
}

/// With `MPIB_STRICT=1` such a connection is refused at both ends.
//= reach.md: a substitute under another PCI root or NUMA node is a warning
#[test]
fn a_substitute_under_another_pci_root_is_refused_with_strict() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.1.0.1/24")],
                vec![("a", "mlx5_1", "10.3.0.1/24"), ("b", "mlx5_0", "10.3.0.2/24")],
            ],
            ..Topology::default()
        };
        let sysfs = tempfile::tempdir().unwrap();
        let numa = |adapter: &str, node: &str| -> &'static str {
            let device = sysfs.path().join("pci0000:16").join(adapter);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("numa_node"), node).unwrap();
            std::fs::create_dir(sysfs.path().join(adapter)).unwrap();
            std::os::unix::fs::symlink(&device, sysfs.path().join(adapter).join("device")).unwrap();
            format!(",dmabuf=on,sysfs={}", sysfs.path().join(adapter).display()).leak()
        };
        let adapters = vec![("a", "mlx5_0", numa("a0", "0")), ("a", "mlx5_1", numa("a1", "1"))];
        let env = vec![("MPIB_STRICT", "1")];
        let mut net = Reach::up(Setup { topology, adapters, env, ..Setup::default() });
        let parts = ["a1, NUMA node 1) and not over mlx5_0:1 (", "a0, NUMA node 0)", "MPIB_STRICT=1"];
        net.refused(("a", 0), ("b", 0), InvalidUsage, &parts);
        net.goes_asked(("a", "mlx5_1", "10.3.0.1", 1), ("b", "mlx5_0", "10.3.0.2", 0));
        net.finish();
    });
}

/// Hosts with five NICs each and one cable between them. A connection that requests others fails
/// once, and the next attempt is the cable alone: no other NIC gets a queue pair.
//= reach.md: after a missing route, pairs on a common subnet are tried first
#[test]
fn after_a_missing_route_only_the_common_cable_is_tried() {
    on_hosts(here!(), &[], || {
        let mut networks = vec![vec![("a", "mlx5_4", "10.9.0.1/24"), ("b", "mlx5_4", "10.9.0.2/24")]];
        for (adapter, on_a, on_b) in [
            ("mlx5_0", "10.1.0.1/24", "10.5.0.1/24"),
            ("mlx5_1", "10.2.0.1/24", "10.6.0.1/24"),
            ("mlx5_2", "10.3.0.1/24", "10.7.0.1/24"),
            ("mlx5_3", "10.4.0.1/24", "10.8.0.1/24"),
        ] {
            networks.extend([vec![("a", adapter, on_a)], vec![("b", adapter, on_b)]]);
        }
        let topology = Topology { networks, ..Topology::default() };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        net.goes(("a", "mlx5_4", "10.9.0.1"), ("b", "mlx5_4", "10.9.0.2"));
        for host in 0..2 {
            let counts = net.counts(host).into_iter().filter(|(_, count)| count.qps > 0);
            assert_eq!(counts.map(|(name, _)| name).collect::<Vec<_>>(), ["mlx5_0", "mlx5_4"]);
        }
        net.finish();
    });
}

/// Cables with IPv6 alone, and hosts whose default route leads through another interface. Linux
/// answers with that route for any source address: it is none for the NIC.
//= reach.md: fabric: a triangle of IPv6 links beside a default route
#[test]
fn a_default_route_of_another_interface_is_no_route_for_ipv6() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "2001:db8:1::1/64"), ("b", "mlx5_0", "2001:db8:1::2/64")],
                vec![("a", "mlx5_1", "2001:db8:2::1/64"), ("c", "mlx5_0", "2001:db8:2::3/64")],
                vec![("b", "mlx5_1", "2001:db8:3::2/64"), ("c", "mlx5_1", "2001:db8:3::3/64")],
                vec![
                    ("a", "oob", "2001:db8:9::1/64"),
                    ("b", "oob", "2001:db8:9::2/64"),
                    ("c", "oob", "2001:db8:9::3/64"),
                    ("r", "p0", "2001:db8:9::ff/64"),
                ],
            ],
            routes: ["a", "b", "c"].map(|host| (host, "::/0", "2001:db8:9::ff")).to_vec(),
            routers: vec!["r"],
        };
        let mut net = Reach::up(Setup { topology, ..Setup::default() });
        for (ask, asked) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for (one, other) in [
                (("a", "mlx5_0", "2001:db8:1::1", ask), ("b", "mlx5_0", "2001:db8:1::2", asked)),
                (("c", "mlx5_0", "2001:db8:2::3", ask), ("a", "mlx5_1", "2001:db8:2::1", asked)),
                (("b", "mlx5_1", "2001:db8:3::2", ask), ("c", "mlx5_1", "2001:db8:3::3", asked)),
            ] {
                net.goes_asked(one, other);
            }
        }
        net.finish();
    });
}
