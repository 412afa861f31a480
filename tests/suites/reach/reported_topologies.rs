//! The common mistakes with direct links, each with its error text: addresses that do not fit, a
//! firewall, a wrong GID index, unacknowledged packets.

use mpib_tests::code::{InvalidUsage, RemoteError};
use mpib_tests::hosts::{Topology, on_hosts};
use mpib_tests::{SHORT, here};

use super::util::{Reach, Setup, has_all, warnings};

/// One cable between two hosts, and a network for control connections.
fn cable(a: &'static str, b: &'static str) -> Topology {
    let oob = vec![("a", "oob", "192.168.9.1/24"), ("b", "oob", "192.168.9.2/24")];
    Topology { networks: vec![vec![("a", "mlx5_0", a), ("b", "mlx5_0", b)], oob], ..Topology::default() }
}

type Vars = Vec<(&'static str, &'static str)>;

fn with(topology: Topology, env: Vars, a: Vars, b: Vars) -> Reach {
    let of = |host, vars: Vars| vars.into_iter().map(move |(name, value)| (host, name, value));
    let env_of = of("a", a).chain(of("b", b)).collect();
    Reach::up(Setup { topology, env: [&SHORT[..], &env].concat(), env_of, ..Setup::default() })
}

//= reach.md: error: two subnets on one cable
#[test]
fn addresses_of_two_subnets_on_one_cable_are_named_with_their_prefixes() {
    on_hosts(here!(), &[], || {
        let topology = || cable("10.0.0.1/24", "10.0.1.2/24");
        let mut net = with(topology(), vec![], vec![], vec![]);
        let parts = [
            "no rail works to 192.168.9.2:",
            "mlx5_0:1 (10.0.0.1/24) to mlx5_0:1 (10.0.1.2/24), no common subnet: the probe failed",
        ];
        // The peer says the same of us, whose address is another one.
        net.refused(("a", 0), ("b", 0), RemoteError, &parts[1..]);
        net.finish();
    });
}

//= reach.md: error: two subnets on one cable
#[test]
fn addresses_of_two_subnets_are_not_tried_with_route_subnet() {
    on_hosts(here!(), &[], || {
        let mut net =
            with(cable("10.0.0.1/24", "10.0.1.2/24"), vec![("MPIB_ROUTE", "subnet")], vec![], vec![]);
        let said = "mlx5_0:1 to mlx5_0:1: no common subnet, which MPIB_ROUTE=subnet requires; if routers join the two, set MPIB_ROUTE=any";
        net.refused(("a", 0), ("b", 0), InvalidUsage, &["no rail reaches", said]);
        net.finish();
    });
}

/// One that drops what comes, and one that says so.
//= reach.md: error: a firewall drops TCP
#[test]
fn an_unanswered_probe_mentions_a_firewall() {
    on_hosts(here!(), &[], || {
        let mut net = with(
            cable("10.0.0.1/24", "10.0.0.2/24"),
            vec![("MPIB_CONNECT_TIMEOUT_MS", "3000")],
            vec![],
            vec![],
        );
        let ip = |net: &Reach, args: &[&str]| {
            assert!(net.hosts.command("b", "ip").args(args).status().unwrap().success())
        };
        let to_a = ["10.0.0.1/32", "192.168.9.1/32"];
        for addr in to_a {
            ip(&net, &["route", "add", "blackhole", addr]);
        }
        let parts = [
            "cannot connect to the peer's listener: no answer within 3000 ms (MPIB_CONNECT_TIMEOUT_MS)",
            "10.0.0.2:",
            "192.168.9.2:",
            ": no connection yet",
            "Does a firewall let TCP through to every port of that host?",
        ];
        net.unreachable("a", "b", &parts);
        for addr in to_a {
            ip(&net, &["route", "del", "blackhole", addr]);
        }
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        net.finish();
    });
}

//= reach.md: error: a wrong GID index
#[test]
fn a_wrong_gid_index_is_named_with_what_stands_there() {
    on_hosts(here!(), &[], || {
        let index = |n| vec![("NCCL_IB_GID_INDEX", n)];
        let mut net = with(cable("10.0.0.1/24", "10.0.0.2/24"), vec![], index("2"), index("3"));
        net.refused(("a", 0), ("b", 0), InvalidUsage, &["mlx5_0:1 speaks RoCE v1, mlx5_0:1 speaks RoCE v2"]);
        // The table is another one by now, and the index means nothing in it.
        net.peers[1].must("addrs mlx5_0 - 10.0.0.2/24");
        let parts = [
            "mlx5_0:1: NCCL_IB_GID_INDEX names GID index 3, which is empty; the port has 0 (fe80::",
            "5 (10.0.0.2, RoCE v2)",
        ];
        net.refused(("a", 0), ("b", 0), RemoteError, &parts);
        net.finish();
    });
}

//= faults.md: 22: packets are not acknowledged: the error lists what to check
//= reach.md: error: completions with status 12
#[test]
fn unacknowledged_packets_are_reported_with_what_to_check() {
    on_hosts(here!(), &[("MPIB_FAILOVER", "0")], || {
        let mut net = with(cable("10.0.0.1/24", "10.0.0.2/24"), vec![], vec![], vec![]);
        net.goes(("a", "mlx5_0", "10.0.0.1"), ("b", "mlx5_0", "10.0.0.2"));
        // The receive is there, its sender knows, and then the cable of the other end is drawn.
        net.peers[1].must("post 1 100000");
        net.peers[1].must("link mlx5_0 0");
        assert_eq!(net.peers[0].code("send-fails 100000"), RemoteError);
        let parts = [
            "data write to 10.0.0.2:",
            "(mlx5_0:1): the peer did not acknowledge, however often it was tried (status=12 IBV_WC_RETRY_EXC_ERR",
            "GID ::ffff:10.0.0.1 -> ::ffff:10.0.0.2",
            "Is its port up (ibv_devinfo)? Do both GIDs lie on networks that reach each other (ping -I, rping)?",
        ];
        has_all(&warnings(&mut net.peers[0]), &parts);
        for peer in &mut net.peers {
            peer.kill();
        }
    });
}
