//! Which NICs of two hosts a connection joins. The hosts are network namespaces, with a NIC behind
//! each of their interfaces.

use mpib_tests::code::{Code, InvalidUsage, RemoteError};
use mpib_tests::hosts::watch::{Count, INFO, WARN, adapters, log};
use mpib_tests::hosts::{Hosts, Topology, on_hosts};
use mpib_tests::peer::Peer;
use mpib_tests::{NO_WAIT, SHORT, here};

type Env<'a> = Vec<(&'a str, &'a str)>;

/// A process on a host, with these devices.
fn start(hosts: &Hosts, host: &str, devices: &str, env: &[(&str, &str)]) -> Peer {
    let all: Env<'_> = [&[("SOFTVERBS_DEVICES", devices), NO_WAIT], env].concat();
    hosts.peer(host, &all)
}

/// Which devices have sent more than `before`, beside what a handshake and the receiver's words
/// take.
fn busy(peer: &mut Peer, before: &[(String, Count)]) -> Vec<usize> {
    let now = adapters(peer);
    (0..now.len()).filter(|i| now[*i].1.since(before[*i].1).bytes > 50_000).collect()
}

/// A connection between these devices that moves data over `expected` at both ends. What the two
/// log meanwhile.
fn joined(
    from: &mut Peer,
    to: &mut Peer,
    devs: (usize, usize),
    expected: (usize, usize),
) -> [Vec<(i32, String)>; 2] {
    from.must(&format!("device {}", devs.0));
    to.must(&format!("device {}", devs.1));
    let handle = to.ask("listen");
    let before = [adapters(from), adapters(to)];
    to.say("accept");
    from.must(&format!("connect {handle}"));
    assert_eq!(to.answer(), "ok");
    to.say("recv 100000 7");
    from.say("send 100000 7");
    for peer in [&mut *from, &mut *to] {
        assert_eq!(peer.answer(), "ok");
    }
    assert_eq!(busy(from, &before[0]), [expected.0], "sender's NIC, devices {devs:?}");
    let made = |now: Vec<(String, Count)>| -> Vec<usize> {
        (0..now.len()).filter(|i| now[*i].1.qps > before[1][*i].1.qps).collect()
    };
    let made = made(adapters(to));
    assert!(made.contains(&expected.1), "receiver's NIC, devices {devs:?}: {made:?}");
    for peer in [&mut *from, &mut *to] {
        peer.must("close");
    }
    [log(from), log(to)]
}

/// Lines on a NIC that stands in for the one asked for. The last line of a long warning repeats the
/// first one.
fn instead(lines: &[(i32, String)]) -> Vec<&(i32, String)> {
    let once = lines.iter().filter(|line| !line.1.contains(" in short: "));
    once.filter(|line| line.1.contains("not as NCCL requested")).collect()
}

/// Three hosts; a cable between each two is a subnet. Their NICs: soft0 and soft1.
fn triangle() -> Topology {
    let networks = vec![
        vec![("a", "eth0", "10.0.1.1/24"), ("b", "eth0", "10.0.1.2/24")],
        vec![("a", "eth1", "10.0.2.1/24"), ("c", "eth0", "10.0.2.3/24")],
        vec![("b", "eth1", "10.0.3.2/24"), ("c", "eth1", "10.0.3.3/24")],
    ];
    Topology { networks, ..Topology::default() }
}

const TRIANGLE: [(&str, &str); 3] = [
    ("a", "soft0:addr=10.0.1.1/24;soft1:addr=10.0.2.1/24"),
    ("b", "soft0:addr=10.0.1.2/24;soft1:addr=10.0.3.2/24"),
    ("c", "soft0:addr=10.0.2.3/24;soft1:addr=10.0.3.3/24"),
];
/// The NIC of each host that leads to each other.
const CABLE: [[usize; 3]; 3] = [[9, 0, 1], [0, 9, 1], [0, 1, 9]];

//= reach.md: three hosts joined by cables connect without settings
#[test]
fn a_triangle_uses_its_cables_with_no_variable_set() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(triangle());
        let mut peers = TRIANGLE.map(|(host, devices)| start(&hosts, host, devices, &[]));
        let mut elsewhere = [0; 3];
        let mut reported = [[[false; 2]; 3]; 3];
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            for devs in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let [x, y] = peers.get_disjoint_mut([from, to]).unwrap();
                let expected = (CABLE[from][to], CABLE[to][from]);
                let said = joined(x, y, devs, expected);
                for ((at, other), (dev, nic), lines) in [
                    ((from, to), (devs.0, expected.0), &said[0]),
                    ((to, from), (devs.1, expected.1), &said[1]),
                ] {
                    assert!(lines.iter().all(|line| line.0 != WARN), "{lines:?}");
                    elsewhere[at] += u32::from(dev != nic);
                    // Once for each device and host.
                    let first = dev != nic && !std::mem::replace(&mut reported[at][other][dev], true);
                    let lines = instead(lines);
                    assert_eq!(lines.len(), usize::from(first), "{at} to {other}, device {dev}: {lines:?}");
                    for line in lines {
                        let parts = [
                            format!("a connection of soft{dev} with "),
                            "share a subnet".into(),
                            "strict".into(),
                        ];
                        assert!(line.0 == INFO && parts.iter().all(|p| line.1.contains(p)), "{line:?}");
                    }
                }
            }
        }
        for (peer, expected) in peers.iter_mut().zip(elsewhere) {
            assert_eq!(peer.ask("elsewhere"), expected.to_string());
        }
        peers.into_iter().for_each(Peer::finish);
    });
}

/// A connection that fails at both ends, each with all of these parts in what it says.
fn refused(from: &mut Peer, to: &mut Peer, devs: (usize, usize), code: Code, parts: &[&str]) {
    from.must(&format!("device {}", devs.0));
    to.must(&format!("device {}", devs.1));
    let handle = to.ask("listen");
    to.say("accept-fails");
    assert_eq!(from.code(&format!("connect-fails {handle}")), code);
    assert_eq!(to.answer(), "ok");
    for peer in [from, to] {
        // A long message is several lines.
        let said = log(peer).into_iter().filter(|line| line.0 == WARN).map(|line| line.1);
        let said = said.collect::<Vec<_>>().join(" ").replace(" … NET/MPIB : …", "");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
    }
}

//= reach.md: MPIB_ROUTE=strict uses only the requested rails
//= configuration.md: MPIB_ROUTE
#[test]
fn strict_keeps_to_the_requested_devices() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(triangle());
        let env = [("MPIB_ROUTE", "strict"), SHORT[0], SHORT[1]];
        let [(_, on_a), (_, on_b), _] = TRIANGLE;
        let (mut a, mut b) = (start(&hosts, "a", on_a, &env), start(&hosts, "b", on_b, &env));
        joined(&mut a, &mut b, (0, 0), (0, 0));
        // Its networks are not those of the other: routers might join them, and do not.
        let row = "soft1:1 (10.0.2.1/24) to soft0:1 (10.0.1.2/24), no common subnet: the probe failed";
        refused(&mut a, &mut b, (1, 0), RemoteError, &["no rail works to", row]);
        assert_eq!((a.ask("elsewhere"), b.ask("elsewhere")), ("0".into(), "0".into()));
        // Both ends must have the setting alike.
        let mut other = start(&hosts, "b", on_b, &SHORT);
        let said = "MPIB_ROUTE is";
        refused(
            &mut a,
            &mut other,
            (0, 0),
            InvalidUsage,
            &["settings that must be equal at both ends", said, " any "],
        );
        [a, b, other].into_iter().for_each(Peer::finish);
    });
}

//= reach.md: MPIB_ROUTE=subnet refuses pairs without a common subnet
#[test]
fn with_subnet_a_pair_without_a_common_one_is_refused_with_the_way_out() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(Topology {
            // a and c reach each other over b alone.
            networks: vec![
                vec![("a", "eth0", "10.0.1.1/24"), ("b", "eth0", "10.0.1.2/24")],
                vec![("b", "eth1", "10.0.3.2/24"), ("c", "eth0", "10.0.3.3/24")],
            ],
            routes: vec![("a", "10.0.3.0/24", "10.0.1.2"), ("c", "10.0.1.0/24", "10.0.3.2")],
            routers: vec!["b"],
        });
        let ends = [("a", "soft0:addr=10.0.1.1/24"), ("c", "soft0:addr=10.0.3.3/24")];
        let env = [("MPIB_ROUTE", "subnet")];
        let [mut a, mut c] = ends.map(|(host, devices)| start(&hosts, host, devices, &env));
        let parts = ["no rail reaches", "soft0:1 to soft0:1: no common subnet", "set MPIB_ROUTE=any"];
        refused(&mut a, &mut c, (0, 0), InvalidUsage, &parts);
        // Nothing passes on what is for others, which the probe finds.
        let env = [("MPIB_ROUTE", "any"), SHORT[0], SHORT[1]];
        let [mut x, mut y] = ends.map(|(host, devices)| start(&hosts, host, devices, &env));
        let row = "soft0:1 (10.0.1.1/24) to soft0:1 (10.0.3.3/24), no common subnet: nothing answers: the probe failed";
        refused(&mut x, &mut y, (0, 0), RemoteError, &["no rail works to", row, "ping -I"]);
        // Where something does, it is a route.
        let routed = [("a", "soft0:addr=10.0.1.1/16"), ("c", "soft0:addr=10.0.3.3/16")];
        let [mut v, mut w] = routed.map(|(host, devices)| start(&hosts, host, devices, &[]));
        joined(&mut v, &mut w, (0, 0), (0, 0));
        [a, c, x, y, v, w].into_iter().for_each(Peer::finish);
    });
}

/// Both cables have the same private network, and addresses do not show which cable leads where; a
/// third network is for control.
fn overlapping() -> Topology {
    let networks = vec![
        vec![("a", "oob", "192.168.9.1/24"), ("b", "oob", "192.168.9.2/24")],
        vec![("a", "eth0", "10.0.1.1/16"), ("b", "eth1", "10.0.1.2/16")],
        vec![("a", "eth1", "10.0.2.1/16"), ("b", "eth0", "10.0.2.2/16")],
    ];
    Topology { networks, ..Topology::default() }
}

/// What really leads where: soft0 of a to soft1 of b, and soft1 to soft0.
const CROSSED: [(&str, &str); 2] = [
    ("a", "soft0:addr=10.0.1.1/24;soft1:addr=10.0.2.1/24"),
    ("b", "soft0:addr=10.0.2.2/24;soft1:addr=10.0.1.2/24"),
];
const OOB: (&str, &str) = ("NCCL_SOCKET_IFNAME", "=oob");

//= reach.md: the probe decides where addresses mislead
#[test]
fn the_probe_finds_the_truth_where_addresses_do_not_tell_it() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(overlapping());
        let [mut a, mut b] =
            CROSSED.map(|(host, devices)| start(&hosts, host, devices, &[OOB, SHORT[0], SHORT[1]]));
        joined(&mut a, &mut b, (0, 1), (0, 1));
        assert_eq!((a.ask("elsewhere"), b.ask("elsewhere")), ("0".into(), "0".into()));
        // Both are on 10.0.0.0/16, and no cable joins them. Two others are as good as each other,
        // and take turns.
        for (times, nics) in [(1, (1, 0)), (0, (0, 1))] {
            let said = joined(&mut a, &mut b, (0, 0), nics);
            for lines in said {
                let lines = instead(&lines);
                assert_eq!(lines.len(), times, "{lines:?}");
                for line in lines {
                    let row =
                        "soft0:1 (10.0.1.1/16) to soft0:1 (10.0.2.2/16): nothing answers: the probe failed";
                    let chosen = "goes from soft1:1 (10.0.2.1/16) to soft0:1 (10.0.2.2/16)";
                    assert!(line.0 == WARN && line.1.contains(row) && line.1.contains(chosen), "{line:?}");
                }
            }
        }
        assert_eq!((a.ask("elsewhere"), b.ask("elsewhere")), ("1".into(), "1".into()));
        [a, b].into_iter().for_each(Peer::finish);
    });
}

/// Nothing joins the two hosts but the control network: every pair is in the table, with the reason
/// of its probe.
//= failover.md: fault: no rail works for another reason
//= reach.md: where nothing works, the error lists every pair with its reason
#[test]
fn if_nothing_works_every_pair_is_reported_with_its_reason() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(overlapping());
        let [(_, on_a), _] = CROSSED;
        let on_b = "soft0:addr=10.0.7.2/24;soft1:addr=10.0.8.2/24";
        let mut a = start(&hosts, "a", on_a, &[OOB, SHORT[0], SHORT[1]]);
        let mut b = start(&hosts, "b", on_b, &[OOB, SHORT[0], SHORT[1]]);
        let row = |(x, y): (&str, &str)| format!("soft{x} to soft{y}, no common subnet: ");
        let rows = [
            ("0:1 (10.0.1.1/16)", "0:1 (10.0.7.2)"),
            ("0:1 (10.0.1.1/16)", "1:1 (10.0.8.2)"),
            ("1:1 (10.0.2.1/16)", "0:1 (10.0.7.2)"),
            ("1:1 (10.0.2.1/16)", "1:1 (10.0.8.2)"),
        ]
        .map(row);
        // The first pair is probed, and the others are searched.
        let first = format!(
            "{}nothing answers: the probe failed: the peer did not acknowledge, however often it was tried (status=12",
            rows[0]
        );
        let searched = "nothing answers: no acknowledgement came in time";
        let parts: Vec<&str> = ["no rail works to", &first, searched]
            .into_iter()
            .chain(rows.iter().map(String::as_str))
            .collect();
        refused(&mut a, &mut b, (0, 0), RemoteError, &parts);
        // With strict losses a connection that must do without what was asked for is refused too.
        let strict = [OOB, SHORT[0], SHORT[1], ("MPIB_STRICT", "1")];
        let [mut x, mut y] = CROSSED.map(|(host, devices)| start(&hosts, host, devices, &strict));
        refused(&mut x, &mut y, (0, 0), InvalidUsage, &["not as NCCL requested", "MPIB_STRICT=1"]);
        [a, b, x, y].into_iter().for_each(Peer::finish);
    });
}

/// The requested device does not reach the peer, and two other devices do: connections use these
/// two alternately.
//= reach.md: two links to one host are both used
#[test]
fn a_host_that_is_reached_over_two_links_uses_both() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(Topology {
            networks: vec![
                vec![("a", "eth0", "10.0.0.1/24")],
                vec![("a", "eth1", "10.0.1.1/24"), ("b", "eth1", "10.0.1.2/24")],
                vec![("a", "eth2", "10.0.2.1/24"), ("b", "eth2", "10.0.2.2/24")],
                vec![("b", "eth0", "10.9.0.2/24")],
            ],
            ..Topology::default()
        });
        let devices =
            |own: &str, n: u8| format!("soft0:addr={own};soft1:addr=10.0.1.{n}/24;soft2:addr=10.0.2.{n}/24");
        let mut a = start(&hosts, "a", &devices("10.0.0.1/24", 1), &[]);
        let mut b = start(&hosts, "b", &devices("10.9.0.2/24", 2), &[]);
        for link in [1, 2, 1, 2] {
            joined(&mut a, &mut b, (0, 0), (link, link));
        }
        // A requested device that reaches the peer is used alone.
        for _ in 0..2 {
            joined(&mut a, &mut b, (1, 1), (1, 1));
        }
        assert_eq!((a.ask("elsewhere"), b.ask("elsewhere")), ("4".into(), "4".into()));
        [a, b].into_iter().for_each(Peer::finish);
    });
}

/// The owner of a port that went down names it at both ends, and another port replaces it.
//= failover.md: fault: a rail that cannot reach the peer: no route, another fabric, no usable GID, a faulty port
//= reach.md: each end knows why the other lacks a rail
#[test]
fn each_end_knows_why_the_other_does_without_a_rail() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(triangle());
        let [(_, on_a), (_, on_b), _] = TRIANGLE;
        let env = [("MPIB_HCA_SOUT", "soft0"), ("MPIB_HCA_SUP", "soft1"), ("MPIB_SUP_SHARE", "512")];
        let (mut a, mut b) = (start(&hosts, "a", on_a, &env), start(&hosts, "b", on_b, &env));
        b.must("link soft1 0");
        let said = joined(&mut a, &mut b, (0, 0), (0, 0));
        for lines in said {
            // Beside what the adapter itself reports of its link.
            let of_rails = |line: &&(i32, String)| line.0 == WARN && line.1.contains("rails");
            let warned: Vec<_> = lines.iter().filter(of_rails).collect();
            assert_eq!(warned.len(), 1, "{lines:?}");
            for part in ["the acceptor's SUP soft1:1: the port is not active", "goes on with SOUT alone"] {
                assert!(warned[0].1.contains(part), "{part}: {warned:?}");
            }
        }
        [a, b].into_iter().for_each(Peer::finish);
    });
}

/// Both ports take long packets and what is between them does not: an empty probe would find
/// nothing. Ports of different MTUs are no trouble.
//= faults.md: 58
//= reach.md: a path that loses long packets is reported as such
#[test]
fn a_path_that_drops_long_packets_is_reported_as_such() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(overlapping());
        let devices = |ip: &str, more: &str| format!("soft0:addr={ip}/24,{more}");
        let env = [OOB, SHORT[0], SHORT[1]];
        let mut a = start(&hosts, "a", &devices("10.0.1.1", "mtu=4096,path_mtu=1024"), &env);
        let mut b = start(&hosts, "b", &devices("10.0.1.2", "mtu=4096"), &env);
        let said = "empty packets arrive, and those of 4096 bytes do not: has an interface or a switch on the way a smaller MTU";
        refused(&mut a, &mut b, (0, 0), RemoteError, &["no rail works to", said]);
        let mut small = start(&hosts, "a", &devices("10.0.1.1", "mtu=1024"), &env);
        joined(&mut small, &mut b, (0, 0), (0, 0));
        [a, b, small].into_iter().for_each(Peer::finish);
    });
}
