//! Hosts with direct links and no variable of the plugin set: every pair uses its own link, or gets
//! an error that says why there is none.

use mpib_tests::code::{InvalidUsage, RemoteError};
use mpib_tests::hosts::{Topology, on_hosts};
use mpib_tests::{SHORT, here};

use super::util::{Reach, Setup, pairs, quiet};

/// Three hosts, a cable between each two, a subnet on each cable. No host has its first adapter on
/// the same cable as both others.
fn triangle() -> Topology {
    Topology {
        networks: vec![
            vec![("a", "mlx5_0", "192.168.100.2/24"), ("c", "mlx5_0", "192.168.100.3/24")],
            vec![("a", "mlx5_1", "192.168.101.2/24"), ("b", "mlx5_0", "192.168.101.3/24")],
            vec![("b", "mlx5_1", "192.168.102.2/24"), ("c", "mlx5_1", "192.168.102.3/24")],
        ],
        ..Topology::default()
    }
}

/// Each pair of hosts uses the one cable between them, for every device that NCCL requests.
//= reach.md: three hosts joined by cables connect without settings
//= adapters.md: A1: others are used where the requested pair does not work
#[test]
fn in_a_triangle_every_pair_uses_its_own_link() {
    on_hosts(here!(), &[], || {
        let mut net = Reach::up(Setup { topology: triangle(), ..Setup::default() });
        let links = [
            (("a", "mlx5_0", "192.168.100.2"), ("c", "mlx5_0", "192.168.100.3")),
            (("a", "mlx5_1", "192.168.101.2"), ("b", "mlx5_0", "192.168.101.3")),
            (("b", "mlx5_1", "192.168.102.2"), ("c", "mlx5_1", "192.168.102.3")),
        ];
        for (one, other) in links {
            for (from, to) in [(one, other), (other, one)] {
                for (ask, asked) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    net.goes_asked((from.0, from.1, from.2, ask), (to.0, to.1, to.2, asked));
                }
            }
        }
        net.exchange(300_000);
        net.finish();
    });
}

/// A substituted adapter is logged once for each device and host, and may be refused.
//= reach.md: a substituted NIC is logged once, and refused where strict
#[test]
fn a_substituted_adapter_is_reported_once_and_refused_with_strict() {
    on_hosts(here!(), &[], || {
        let env_of = vec![("c", "MPIB_ROUTE", "strict")];
        let mut net = Reach::up(Setup { topology: triangle(), env_of, ..Setup::default() });
        let reported = |said: &[(i32, String)]| {
            said.iter().filter(|l| l.1.contains("and not as NCCL requested")).count()
        };
        let said = net.connect(("a", 0), ("b", 1));
        assert_eq!([reported(&said[0]), reported(&said[1])], [1, 1], "{said:?}");
        let again = net.connect(("a", 0), ("b", 1));
        assert_eq!([reported(&again[0]), reported(&again[1])], [0, 0], "{again:?}");
        // Both ends must have it alike.
        let parts = ["settings that must be equal at both ends differ", "MPIB_ROUTE"];
        net.refused(("a", 0), ("c", 0), InvalidUsage, &parts);
        net.finish();
    });
}

//= reach.md: MPIB_ROUTE=strict uses only the requested rails
#[test]
fn strict_keeps_to_the_adapters_that_nccl_requests() {
    on_hosts(here!(), &[], || {
        let env = [&SHORT[..], &[("MPIB_ROUTE", "strict")]].concat();
        let mut net = Reach::up(Setup { topology: triangle(), env, ..Setup::default() });
        net.goes_asked(("a", "mlx5_1", "192.168.101.2", 1), ("b", "mlx5_0", "192.168.101.3", 0));
        let said = "no rail works to";
        let row = ": mlx5_0:1 (192.168.100.2/24) to mlx5_0:1 (192.168.101.3/24), no common subnet: the probe failed";
        net.refused(("a", 0), ("b", 0), RemoteError, &[said, row]);
        net.finish();
    });
}

/// Five hosts; each has a cable to the next, and all have a network for control connections.
fn ring() -> Topology {
    let mut networks: Vec<Vec<_>> = Vec::new();
    const HOSTS: [&str; 5] = ["h0", "h1", "h2", "h3", "h4"];
    const ADDRS: [[&str; 2]; 5] = [
        ["10.1.0.1/30", "10.1.0.2/30"],
        ["10.1.1.1/30", "10.1.1.2/30"],
        ["10.1.2.1/30", "10.1.2.2/30"],
        ["10.1.3.1/30", "10.1.3.2/30"],
        ["10.1.4.1/30", "10.1.4.2/30"],
    ];
    for (i, [here, there]) in ADDRS.into_iter().enumerate() {
        networks.push(vec![(HOSTS[i], "mlx5_0", here), (HOSTS[(i + 1) % 5], "mlx5_1", there)]);
    }
    let oob = ["192.168.9.1/24", "192.168.9.2/24", "192.168.9.3/24", "192.168.9.4/24", "192.168.9.5/24"];
    networks.push(HOSTS.into_iter().zip(oob).map(|(host, addr)| (host, "oob", addr)).collect());
    Topology { networks, ..Topology::default() }
}

//= reach.md: fabric: a ring of five hosts
#[test]
fn in_a_ring_of_five_neighbours_use_their_link_and_others_get_an_error() {
    on_hosts(here!(), &[], || {
        let mut net = Reach::up(Setup { topology: ring(), env: SHORT.to_vec(), ..Setup::default() });
        let hosts = ["h0", "h1", "h2", "h3", "h4"];
        let (first, second) = (|n: usize| format!("10.1.{n}.1"), |n: usize| format!("10.1.{n}.2"));
        for (from, to) in pairs(&hosts) {
            let (f, t) = (net.index(from), net.index(to));
            if (f + 1) % 5 == t {
                net.goes((from, "mlx5_0", &first(f)), (to, "mlx5_1", &second(f)));
            } else if (t + 1) % 5 == f {
                net.goes((from, "mlx5_1", &second(t)), (to, "mlx5_0", &first(t)));
            } else if f < t {
                // Every pair of adapters, each with its reason.
                let rows = pairs(&["mlx5_0", "mlx5_1"]);
                let rows = rows.into_iter().chain([("mlx5_0", "mlx5_0"), ("mlx5_1", "mlx5_1")]);
                let addr = |n: usize, adapter: &str| match adapter {
                    "mlx5_0" => first(n),
                    _ => second((n + 4) % 5),
                };
                let rows: Vec<String> = rows
                    .map(|(a, b)| {
                        format!("{a}:1 ({}/30) to {b}:1 ({}/30), no common subnet: ", addr(f, a), addr(t, b))
                    })
                    .collect();
                let parts: Vec<&str> = rows.iter().map(String::as_str).chain(["no rail works to"]).collect();
                net.refused((from, 0), (to, 0), RemoteError, &parts);
            }
        }
        net.exchange(100_000);
        net.finish();
    });
}

/// Four hosts in a line. Another network joins two of them, for control connections.
fn line() -> Topology {
    Topology {
        networks: vec![
            vec![("a", "mlx5_0", "10.1.0.1/31"), ("b", "mlx5_0", "10.1.0.0/31")],
            vec![("b", "mlx5_1", "10.2.0.0/31"), ("c", "mlx5_0", "10.2.0.1/31")],
            vec![("c", "mlx5_1", "10.3.0.0/31"), ("d", "mlx5_0", "10.3.0.1/31")],
            vec![("b", "oob", "192.168.9.2/24"), ("d", "oob", "192.168.9.4/24")],
        ],
        ..Topology::default()
    }
}

/// Nothing leads from one end to the other, not even for control connections.
//= reach.md: fabric: a line whose ends have no common link
#[test]
fn the_ends_of_a_line_get_an_error_that_names_the_missing_link() {
    on_hosts(here!(), &[], || {
        let env = [&SHORT[..], &[("MPIB_CONNECT_TIMEOUT_MS", "2000")]].concat();
        let mut net = Reach::up(Setup { topology: line(), env, ..Setup::default() });
        net.unreachable(
            "a",
            "c",
            &["cannot connect to the peer's listener", "10.2.0.1:", "10.3.0.0:", "Network is unreachable"],
        );
        net.finish();
    });
}

/// Something leads there for control connections alone.
//= reach.md: fabric: a line whose ends have no common link
#[test]
fn hosts_that_share_a_management_network_alone_get_an_error_that_says_so() {
    on_hosts(here!(), &[], || {
        let env_of = vec![("b", "MPIB_ROUTE", "subnet"), ("d", "MPIB_ROUTE", "subnet")];
        let mut net = Reach::up(Setup { topology: line(), env: SHORT.to_vec(), env_of, ..Setup::default() });
        let wanted =
            "no common subnet, which MPIB_ROUTE=subnet requires; if routers join the two, set MPIB_ROUTE=any";
        net.refused(
            ("b", 0),
            ("d", 0),
            InvalidUsage,
            &["no rail reaches", "mlx5_0:1 to mlx5_0:1: ", "mlx5_1:1 to mlx5_0:1: ", wanted],
        );
        net.finish();
    });
}

/// Each cable of two between the same hosts carries its part, whichever devices NCCL asks for.
//= reach.md: two links to one host are both used
#[test]
fn a_host_that_two_links_lead_to_uses_both() {
    on_hosts(here!(), &[], || {
        let topology = Topology {
            networks: vec![
                vec![("a", "mlx5_0", "10.0.0.1/24")],
                vec![("b", "mlx5_0", "10.3.0.1/24")],
                vec![("a", "mlx5_1", "10.1.0.1/30"), ("b", "mlx5_1", "10.1.0.2/30")],
                vec![("a", "mlx5_2", "10.2.0.1/30"), ("b", "mlx5_2", "10.2.0.2/30")],
            ],
            ..Topology::default()
        };
        let mut net = Reach::up(Setup { topology, env: SHORT.to_vec(), ..Setup::default() });
        // The devices that are asked for lead nowhere: their connections take turns.
        let mut used = Vec::new();
        for _ in 0..4 {
            quiet(&net.connect(("a", 0), ("b", 0)));
            let [sent, received] = net.message("a", "b", 5000);
            let name = |counts: &std::collections::BTreeMap<String, _>| {
                counts.keys().cloned().collect::<Vec<_>>().join(" ")
            };
            used.push(format!("{} to {}", name(&sent), name(&received)));
        }
        used.sort();
        let [one, two] = ["mlx5_1 to mlx5_1", "mlx5_2 to mlx5_2"];
        assert_eq!(used, [one, one, two, two]);
        for ask in [1, 2] {
            let (name, by, at) = (format!("mlx5_{ask}"), format!("10.{ask}.0.1"), format!("10.{ask}.0.2"));
            net.goes_asked(("a", &name, &by, ask), ("b", &name, &at, ask));
        }
        net.exchange(100_000);
        net.finish();
    });
}
