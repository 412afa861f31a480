//! Which addresses of two ports a connection uses: by the peer's addresses, by the settings, and by
//! the GID tables at the time of the handshake.

use std::net::IpAddr;

use mpib_proto::Handle;
use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::hosts::watch::{INFO, log, warnings};
use mpib_tests::hosts::{Hosts, Topology, on_hosts};
use mpib_tests::log::{LOG, take_warning, take_warnings};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, Misbehaviour};
use mpib_tests::pair::{connect, init, until};
use mpib_tests::peer::{Peer, handle_of};
use mpib_tests::table::{TABLES, newest};
use mpib_tests::{here, isolated, mpib, set};

/// Two hosts with a port each, whose interface has all addresses that its table may have, and a
/// network for control connections.
struct Two {
    hosts: Hosts,
    a: Peer,
    b: Peer,
}

const OOB: (&str, &str) = ("NCCL_SOCKET_IFNAME", "=oob");

impl Two {
    fn up() -> Self {
        // The last network of each is that of one host alone.
        let a = ["10.0.0.1/24", "10.0.1.1/24", "2001:db8::1/64", "2001:db8:1::1/64", "10.7.0.1/24"];
        let b = ["10.0.0.2/24", "10.0.1.2/24", "2001:db8::2/64", "2001:db8:1::2/64", "10.8.0.2/24"];
        let cable = [a.map(|addr| ("a", "eth0", addr)), b.map(|addr| ("b", "eth0", addr))].concat();
        let oob = vec![("a", "oob", "192.168.9.1/24"), ("b", "oob", "192.168.9.2/24")];
        let hosts = Hosts::up(Topology { networks: vec![cable, oob], ..Topology::default() });
        let peer = |host, n: u8| {
            let devices = format!("soft0:addr=10.99.0.{n}/24");
            hosts.peer(host, &[OOB, ("SOFTVERBS_DEVICES", &devices), ("MPIB_PROBE_TIMEOUT_MS", "5000")])
        };
        let (a, b) = (peer("a", 1), peer("b", 2));
        Self { hosts, a, b }
    }

    /// Replaces the tables by lists of addresses; `-` is an empty entry.
    fn tables(&mut self, a: &str, b: &str) {
        self.a.must(&format!("addrs soft0 {a}"));
        self.b.must(&format!("addrs soft0 {b}"));
    }

    /// Connects a to b and moves data. The log lines of both ends must name the addresses in use.
    fn connected_by(&mut self, ours: &str, theirs: &str) {
        let handle = self.b.ask("listen");
        self.connect(&handle, ours, theirs);
    }

    fn connect(&mut self, handle: &str, ours: &str, theirs: &str) {
        self.b.say("accept");
        self.a.must(&format!("connect {handle}"));
        assert_eq!(self.b.answer(), "ok");
        for (peer, verb, from, to) in
            [(&mut self.a, "sending to", ours, theirs), (&mut self.b, "receiving from", theirs, ours)]
        {
            let said = log(peer);
            let part = format!("rails soft0:1 from {from} to {to} (RoCE v2)");
            let logged = |line: &&(i32, String)| line.0 == INFO && line.1.contains(verb);
            assert!(said.iter().any(|l| logged(&l) && l.1.ends_with(&part)), "{part}: {said:?}");
        }
        self.b.say("recv 100000 7");
        self.a.say("send 100000 7");
        for peer in [&mut self.a, &mut self.b] {
            assert_eq!(peer.answer(), "ok");
            peer.must("close");
            assert_eq!(warnings(peer), [""; 0]);
        }
    }

    /// Checks that a connection is refused, and that one line at each end has all `parts`.
    fn refused(&mut self, handle: &str, parts: &[&str]) {
        self.b.say("accept-fails");
        assert_eq!(self.a.code(&format!("connect-fails {handle}")), InvalidUsage);
        assert_eq!(self.b.answer(), "ok");
        for peer in [&mut self.a, &mut self.b] {
            let said = warnings(peer);
            assert!(said.iter().any(|l| parts.iter().all(|p| l.contains(p))), "{parts:?}: {said:?}");
        }
    }

    fn finish(self) {
        self.a.finish();
        self.b.finish();
    }
}

//= reach.md: addresses on a common subnet are preferred
#[test]
fn the_address_on_a_common_subnet_is_used_wherever_it_stands() {
    on_hosts(here!(), &[], || {
        let mut two = Two::up();
        for (a, b, ours, theirs) in [
            // Dual stack on both, and on one alone.
            ("10.0.0.1/24 2001:db8::1/64", "10.0.0.2/24 2001:db8::2/64", "10.0.0.1", "10.0.0.2"),
            ("10.0.0.1/24 2001:db8::1/64", "2001:db8::2/64", "2001:db8::1", "2001:db8::2"),
            ("10.0.0.1/24 2001:db8::1/64", "10.0.0.2/24", "10.0.0.1", "10.0.0.2"),
            ("2001:db8::1/64", "10.8.0.2/24 2001:db8::2/64", "2001:db8::1", "2001:db8::2"),
            // IPv6 only.
            ("2001:db8::1/64", "2001:db8::2/64", "2001:db8::1", "2001:db8::2"),
            ("2001:db8::1/64 2001:db8:1::1/64", "2001:db8:1::2/64", "2001:db8:1::1", "2001:db8:1::2"),
            // The shared network is not the first one, on one end or on both.
            ("10.0.0.1/24 10.0.1.1/24", "10.0.1.2/24", "10.0.1.1", "10.0.1.2"),
            ("10.7.0.1/24 10.0.1.1/24", "10.8.0.2/24 10.0.1.2/24", "10.0.1.1", "10.0.1.2"),
            // The ports have a common IPv6 network and no common IPv4 network.
            ("10.7.0.1/24 2001:db8::1/64", "10.8.0.2/24 2001:db8::2/64", "2001:db8::1", "2001:db8::2"),
        ] {
            two.tables(a, b);
            two.connected_by(ours, theirs);
        }
        two.finish();
    });
}

//= protocol.md: each connection reads the GID tables again
//= adapters.md: A6: what is kept of ports follows their events
#[test]
fn every_connection_goes_by_the_table_of_its_time() {
    on_hosts(here!(), &[], || {
        let mut two = Two::up();
        two.tables("10.0.0.1/24", "10.0.0.2/24");
        two.connected_by("10.0.0.1", "10.0.0.2");
        // As after a link flap: the address has another index, and its old index another address.
        two.tables("2001:db8::1/64 - 10.0.0.1/24", "10.8.0.2/24 10.0.0.2/24");
        two.connected_by("10.0.0.1", "10.0.0.2");
        two.tables("- - - 10.0.1.1/24", "10.0.1.2/24");
        two.connected_by("10.0.1.1", "10.0.1.2");
        // Between listen and connect, on either end.
        two.tables("10.0.0.1/24 10.0.1.1/24", "10.0.0.2/24 10.0.1.2/24");
        let handle = two.b.ask("listen");
        two.tables("10.0.0.1/24 10.0.1.1/24", "- 10.0.1.2/24");
        two.connect(&handle, "10.0.1.1", "10.0.1.2");
        two.finish();
    });
}

//= reach.md: an address that was removed is named in the reason
#[test]
fn a_removed_address_is_named_in_the_reason() {
    on_hosts(here!(), &[], || {
        let mut two = Two::up();
        two.tables("10.0.0.1/24", "10.0.0.2/24 2001:db8::2/64");
        let handle = two.b.ask("listen");
        two.tables("10.0.0.1/24", "- 2001:db8::2/64");
        two.refused(
            &handle,
            &[
                "no rail reaches",
                "soft0:1 to soft0:1: soft0:1 has 10.0.0.1, soft0:1 has 2001:db8::2: not of one family",
            ],
        );
        let handle = two.b.ask("listen");
        two.tables("10.0.0.1/24", "-");
        two.refused(&handle, &["soft0:1 has 10.0.0.1, soft0:1 has fe80::", "not of one family"]);
        let handle = two.b.ask("listen");
        two.tables("2001:db8::1/64", "-");
        let parts = [
            "soft0:1 has 2001:db8::1, soft0:1 has fe80::",
            ": a link-local address reaches only link-local ones",
        ];
        two.refused(&handle, &parts);
        // And back.
        two.tables("2001:db8::1/64", "2001:db8::2/64");
        two.connected_by("2001:db8::1", "2001:db8::2");
        two.finish();
    });
}

//= protocol.md: interfaces are read again after the kernel has announced a change
#[test]
fn a_handle_names_the_addresses_of_the_moment() {
    on_hosts(here!(), &[], || {
        let mut two = Two::up();
        let named = |two: &mut Two| {
            let handle = Handle::decode(&handle_of(&two.b.ask("listen"))).unwrap();
            handle.addrs().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let address = |two: &Two, what: &str| {
            let done =
                two.hosts.command("b", "ip").args(["addr", what, "192.168.8.2/24", "dev", "oob"]).status();
            assert!(done.unwrap().success(), "ip addr {what}");
        };
        for _ in 0..3 {
            assert_eq!(named(&mut two), ["192.168.9.2/24"]);
            assert_eq!(named(&mut two), ["192.168.9.2/24"]);
            address(&two, "add");
            assert_eq!(named(&mut two), ["192.168.9.2/24", "192.168.8.2/24"]);
            address(&two, "del");
        }
        two.finish();
    });
}

/// Each port: link-local at 0 and 1, then IPv4 at 2 and 3, 4 and 5, and IPv6 at 6 and 7.
const DEVICES: (&str, &str) = (
    "SOFTVERBS_DEVICES",
    "soft0:addr=10.0.0.1/24+10.0.1.1/24+2001:db8::1/64;soft1:addr=10.2.0.1/24+10.2.1.1/24+2001:db8:2::1/64",
);

/// A port connected to itself goes by this address.
fn goes_by(ctx: mpib_tests::table::Ptr, dev: i32, expected: &str) {
    LOG.lock().unwrap().clear();
    let pair = connect(newest(), ctx, dev);
    let part = format!("rails soft{dev}:1 from {expected}");
    let said = LOG.lock().unwrap().clone();
    assert_eq!(said.iter().filter(|l| l.1.contains(&part)).count(), 2, "{part}: {said:?}");
    pair.message(10_000, 10_000, 1);
    pair.close();
    assert_eq!(take_warnings(), [""; 0]);
}

fn settings(test: &str, vars: &[(&str, &str)], expected: [&str; 2]) {
    isolated(test, &[&[DEVICES], vars].concat(), || {
        let ctx = init(newest());
        for (dev, expected) in (0..).zip(expected) {
            let (ip, version) = expected.split_once(' ').unwrap();
            goes_by(ctx, dev, &format!("{ip} to {ip} (RoCE {version})"));
        }
        assert_eq!(newest().finalize(ctx), Success);
    });
}

#[test]
fn without_settings_it_is_ipv4_by_version_2() {
    settings(here!(), &[], ["10.0.0.1 v2", "10.2.0.1 v2"]);
}

//= reach.md: NCCL_IB_GID_INDEX: one number or a list
#[test]
fn one_index_is_for_every_port() {
    settings(here!(), &[("NCCL_IB_GID_INDEX", "4")], ["10.0.1.1 v1", "10.2.1.1 v1"]);
}

//= reach.md: NCCL_IB_GID_INDEX: one number or a list
//= configuration.md: NCCL_IB_GID_INDEX
#[test]
fn a_list_has_an_index_for_each_port() {
    settings(here!(), &[("NCCL_IB_GID_INDEX", "soft0:5,soft1:1:6")], ["10.0.1.1 v2", "2001:db8:2::1 v1"]);
}

//= reach.md: NCCL_IB_GID_INDEX: one number or a list
#[test]
fn a_port_that_the_list_lacks_chooses() {
    let vars = [("NCCL_IB_GID_INDEX", "soft1:2"), ("NCCL_IB_ADDR_FAMILY", "AF_INET6")];
    settings(here!(), &vars, ["2001:db8::1 v2", "10.2.0.1 v1"]);
}

//= reach.md: address family, range and RoCE version restrict the choice
#[test]
fn a_family_is_kept_to() {
    settings(here!(), &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")], ["2001:db8::1 v2", "2001:db8:2::1 v2"]);
}

//= reach.md: address family, range and RoCE version restrict the choice
#[test]
fn a_range_is_kept_to() {
    // A range that contains an address of each port.
    settings(here!(), &[("NCCL_IB_ADDR_RANGE", "10.0.1.0/14")], ["10.0.0.1 v2", "10.2.0.1 v2"]);
}

//= reach.md: address family, range and RoCE version restrict the choice
//= configuration.md: NCCL_IB_ADDR_RANGE
#[test]
fn a_range_may_leave_the_second_address() {
    let vars = [("NCCL_IB_ADDR_RANGE", "10.0.1.0/24"), ("NCCL_IB_GID_INDEX", "soft1:5")];
    settings(here!(), &vars, ["10.0.1.1 v2", "10.2.1.1 v2"]);
}

//= reach.md: address family, range and RoCE version restrict the choice
//= configuration.md: NCCL_IB_ROCE_VERSION_NUM
#[test]
fn a_version_is_kept_to() {
    settings(here!(), &[("NCCL_IB_ROCE_VERSION_NUM", "1")], ["10.0.0.1 v1", "10.2.0.1 v1"]);
}

//= reach.md: address family, range and RoCE version restrict the choice
//= configuration.md: NCCL_IB_ADDR_FAMILY
#[test]
fn all_three_settings_together() {
    let vars = [
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_IB_ADDR_RANGE", "2001:db8::/32"),
        ("NCCL_IB_ROCE_VERSION_NUM", "1"),
    ];
    settings(here!(), &vars, ["2001:db8::1 v1", "2001:db8:2::1 v1"]);
}

//= reach.md: settings that exclude every address are reported, with each entry
#[test]
fn settings_that_leave_a_port_nothing_leave_it_out_with_a_reason_for_each_entry() {
    isolated(here!(), &[DEVICES, ("NCCL_IB_ADDR_RANGE", "10.0.0.0/16")], || {
        let ctx = init(newest());
        assert_eq!(newest().devices(), (Success, 1));
        let said = take_warnings();
        let [line] = &said[..] else { panic!("{said:?}") };
        for part in [
            "soft1:1 (no entry of its GID table fits NCCL_IB_ADDR_RANGE=10.0.0.0/16: 0 (fe80::",
            "3 (10.2.0.1, RoCE v2: not in the range), ",
            "7 (2001:db8:2::1, RoCE v2: not in the range)",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= reach.md: settings that exclude every address are reported, with each entry
#[test]
fn invalid_values_are_reported_with_the_valid_ones() {
    isolated(here!(), &[DEVICES], || {
        let (index, family, range) = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE");
        for (vars, said) in [
            (
                &[(index, "soft0:1:2:3")][..],
                "NCCL_IB_GID_INDEX=\"soft0:1:2:3\": expected -1 or a whole number",
            ),
            (&[(index, "soft0:3,soft0:5")], "with each port named once"),
            (
                &[(index, "soft0:3,mlx5_7:5")],
                "NCCL_IB_GID_INDEX=\"soft0:3,mlx5_7:5\": expected HCAs and ports of this \
              host, which mlx5_7 is not: it has soft0:1, soft1:1",
            ),
            (&[(index, "soft0:2:3")], "which soft0:2 is not"),
            (&[(family, "inet")], "NCCL_IB_ADDR_FAMILY=\"inet\": expected AF_INET or AF_INET6"),
            (
                &[(range, "10.0.0.0")],
                "NCCL_IB_ADDR_RANGE=\"10.0.0.0\": expected an IPv4 or IPv6 address and a prefix",
            ),
            (
                &[(family, "AF_INET6"), (range, "10.0.0.0/8")],
                "NCCL_IB_ADDR_RANGE=\"10.0.0.0/8\": expected a range of \
              NCCL_IB_ADDR_FAMILY=AF_INET6",
            ),
            (
                &[("NCCL_IB_ROCE_VERSION_NUM", "3")],
                "NCCL_IB_ROCE_VERSION_NUM=\"3\": expected a whole number from 1 to 2",
            ),
        ] {
            vars.iter().for_each(|(name, value)| set(name, Some(value)));
            for table in TABLES {
                assert_eq!(table.init().0, InvalidUsage, "{vars:?}");
                take_warning(&[said]);
            }
            vars.iter().for_each(|(name, _)| set(name, None::<&str>));
        }
        // A valid index whose entry is empty.
        set(index, Some("soft0:3,soft1:9"));
        let ctx = init(newest());
        assert_eq!(newest().devices(), (Success, 1));
        let lines = take_warnings();
        assert!(
            lines.len() == 1
                && lines[0].contains("soft1:1 (NCCL_IB_GID_INDEX names GID index 9, which is empty")
        );
        assert_eq!(newest().finalize(ctx), Success);
    });
}

/// The index is an index of the table: its current entry is used.
//= protocol.md: each connection reads the GID tables again
#[test]
fn an_explicit_index_means_what_stands_there_now() {
    // The event of a change is read for a while: until then, the port may not pass for unchanged.
    let devices = DEVICES.1.replace(';', ",verb_time=get_async_event:300ms;");
    let vars = [(DEVICES.0, &*devices), ("NCCL_IB_GID_INDEX", "3"), ("MPIB_ROUTE", "strict")];
    isolated(here!(), &vars, || {
        let ctx = init(newest());
        goes_by(ctx, 0, "10.0.0.1 to 10.0.0.1 (RoCE v2)");
        let v4 = |c| Some((IpAddr::from([10, 0, c, 1]), 24));
        softverbs::set_addrs("soft0", &[v4(1), v4(0)]).unwrap();
        goes_by(ctx, 0, "10.0.1.1 to 10.0.1.1 (RoCE v2)");
        softverbs::set_addrs("soft0", &[None, v4(0)]).unwrap();
        let mut handle = [0; 128];
        let (rc, listen) = newest().listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        assert_eq!(newest().connect(ctx, 0, &mut handle).0, InvalidUsage);
        let reason =
            "our soft0:1: NCCL_IB_GID_INDEX names GID index 3, which is empty; the port has 0 (fe80::";
        take_warning(&[reason]);
        assert_eq!((newest().close_listen(listen), newest().finalize(ctx)), (Success, Success));
    });
}

/// Sets soft0's addresses, in the order of the table behind the link-local one.
fn places(addrs: &[Option<[u8; 4]>]) {
    let addrs: Vec<_> = addrs.iter().map(|a| a.map(|ip| (IpAddr::from(ip), 24))).collect();
    softverbs::set_addrs("soft0", &addrs).unwrap();
}

/// Accepts a connection from a peer that calls `meanwhile` before it sends its WIRING. At that time
/// the plugin has advertised its addresses and has not used them yet. `check` gets the warnings.
fn wired_after(test: &str, meanwhile: fn(), check: impl FnOnce(Vec<String>)) {
    isolated(test, &mpib("512", &[]), || {
        let ctx = init(newest());
        let mut handle = [0; 128];
        let (rc, listen) = newest().listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        static MEANWHILE: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();
        MEANWHILE.set(meanwhile).unwrap();
        let misbehaviour =
            Misbehaviour { wiring: Some(|_| MEANWHILE.get().unwrap()()), ..Misbehaviour::default() };
        let liar = std::thread::spawn(move || MisbehavingPeer::connect(&handle, &misbehaviour).unwrap());
        let comm = until("accept", || {
            let (rc, comm) = newest().accept(listen);
            assert_eq!(rc, Success);
            (!comm.is_null()).then_some(comm)
        });
        let liar = liar.join().unwrap();
        check(take_warnings());
        drop(liar);
        assert_eq!((newest().close_recv(comm), newest().close_listen(listen)), (Success, Success));
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= faults.md: 19: GIDs move in the handshake: they are found at their new index
//= reach.md: a GID table that changes during the handshake costs at most its rail
#[test]
fn a_renumbered_gid_table_during_the_handshake_is_harmless() {
    let moved = || places(&[Some([10, 9, 9, 9]), Some([192, 168, 200, 1])]);
    wired_after(here!(), moved, |said| assert_eq!(said, [""; 0]));
}

//= faults.md: 20: a GID is removed in the handshake: its rail is dropped by name
//= reach.md: a GID table that changes during the handshake costs at most its rail
#[test]
fn an_address_removed_during_the_handshake_drops_its_rail_with_the_reason() {
    let removed = || places(&[Some([10, 9, 9, 9])]);
    wired_after(here!(), removed, |said| {
        let [line] = &said[..] else { panic!("{said:?}") };
        for part in [
            "the address of the route has been removed: 192.168.200.1 (RoCE v2), which was advertised to the peer, is no longer in the \
             GID table of soft0:1, which has 0 (fe80::",
            "3 (10.9.9.9, RoCE v2)",
            "the connection goes on with SUP alone",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    });
}
