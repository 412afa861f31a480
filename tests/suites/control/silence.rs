//! `MPIB_PEER_TIMEOUT_MS`: a host that becomes silent on the control connection.

use std::os::fd::RawFd;

use mpib_tests::code::RemoteError;
use mpib_tests::hosts::watch::{WARN, log};
use mpib_tests::hosts::{Hosts, Topology, on_hosts};
use mpib_tests::pair::{Pair, until};
use mpib_tests::peer::Peer;
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib, set};

/// An option of a socket, where it has that.
fn option(fd: RawFd, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: a number that may be no descriptor, and four bytes to be written to.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (rc == 0).then_some(value)
}

/// Of each TCP connection of this process, no listener: limit of silence in ms, and after how many
/// seconds of it a sign of life is asked for, and again.
fn limits() -> Vec<[i32; 3]> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<RawFd>().ok());
    let of = |fd| {
        option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).filter(|listens| *listens == 0)?;
        let tcp = |name| option(fd, libc::IPPROTO_TCP, name);
        Some([tcp(libc::TCP_USER_TIMEOUT)?, tcp(libc::TCP_KEEPIDLE)?, tcp(libc::TCP_KEEPINTVL)?])
    };
    fds.filter_map(of).collect()
}

//= faults.md: 52: a firewall forgets idle connections: keepalives are sent at half the limit
//= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
#[test]
fn the_limit_of_silence_is_a_setting() {
    isolated(here!(), &mpib("512", &[]), || {
        for (setting, expected) in [
            (None, [150_000, 75, 18]),
            (Some("1000"), [1000, 1, 1]),
            (Some("3600000"), [3_600_000, 1800, 450]),
        ] {
            set("MPIB_PEER_TIMEOUT_MS", setting);
            let pair = Pair::new(newest());
            pair.message(5000, 5000, 1);
            let now = limits();
            // Those of the pair before may linger.
            assert!(now.iter().filter(|of| **of == expected).count() >= 2, "{setting:?}: {now:?}");
            pair.close();
        }
    });
}

/// Whose rails work on, which nobody asks.
//= faults.md: 54
//= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
//= configuration.md: MPIB_PEER_TIMEOUT_MS
#[test]
fn a_host_that_is_silent_beyond_the_limit_is_lost() {
    on_hosts(here!(), &[("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER", "0")], || {
        let (hosts, mut a, b) = two_hosts(&["eth0"]);
        silence(&hosts, "add", "10.0.1.1");
        assert_eq!(a.code("fail 1000"), RemoteError);
        warned(&mut a, &["was lost with sends outstanding", "is its host up, and the network between?"]);
        drop((a, b));
    });
}

//= failover.md: fault: the control connection is broken, and no rail shows for `MPIB_FAILOVER_WAIT` that the peer's host lives
//= faults.md: 54: the host of the peer has lost power: its connections fail after the two limits
//= reach.md: a control connection that breaks is dialled again
//= configuration.md: MPIB_FAILOVER_WAIT
#[test]
fn a_host_that_no_address_reaches_is_lost_after_the_wait() {
    on_hosts(here!(), &[("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER_WAIT", "1")], || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0"]);
        silence(&hosts, "add", "10.0.1.1");
        b.kill();
        assert_eq!(a.code("fail 1000"), RemoteError);
        let parts = [
            "was lost with sends outstanding",
            "is its host up, and the network between?",
            "neither an address of its host nor a rail has answered for 1 s (MPIB_FAILOVER_WAIT)",
        ];
        warned(&mut a, &parts);
        drop((a, b));
    });
}

//= faults.md: 51: the control network is away beyond the limit: rails work on, it is dialled again
//= reach.md: a control connection that breaks is dialled again
#[test]
fn a_network_that_is_silent_for_long_and_comes_back_ends_nothing() {
    on_hosts(here!(), &[("MPIB_PEER_TIMEOUT_MS", "1000")], || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0"]);
        silence(&hosts, "add", "10.0.1.1");
        for end in [&mut a, &mut b] {
            until_logged(end, "is dialled again");
        }
        // The rails do not need the network of the control connection.
        message(&mut a, &mut b, 1);
        silence(&hosts, "del", "10.0.1.1");
        for end in [&mut a, &mut b] {
            until_logged(end, "works again");
        }
        message(&mut a, &mut b, 2);
        a.must("close");
        b.must("close");
    });
}

//= faults.md: 51
//= reach.md: a control connection that breaks is dialled again
#[test]
fn a_network_that_is_silent_is_replaced_by_another() {
    let settings = [("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER_WAIT", "3600")];
    on_hosts(here!(), &settings, || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0", "eth1"]);
        // Over the first one until now.
        silence(&hosts, "add", "10.0.1.1");
        let line = until_logged(&mut a, "works again");
        assert!(line.contains("the control connection to 10.0.2.2:"), "{line}");
        message(&mut a, &mut b, 1);
        a.must("close");
        b.must("close");
    });
}

/// The new kernel of a host that has rebooted knows none of its connections.
//= faults.md: 88: the host of the peer reboots: it resets the connection and refuses new ones, calls fail after four pings without an answer
#[test]
fn a_host_that_has_rebooted_is_lost() {
    let settings = [("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER_WAIT", "3600")];
    on_hosts(here!(), &settings, || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0"]);
        message(&mut a, &mut b, 1);
        // Not even the end of its process is heard.
        silence(&hosts, "add", "10.0.1.1");
        b.kill();
        until_logged(&mut a, "is dialled again");
        silence(&hosts, "del", "10.0.1.1");
        assert_eq!(a.code("fail 1000"), RemoteError);
        warned(&mut a, &["was lost with sends outstanding", "its host refuses connections"]);
        drop((a, b));
    });
}

/// For its peers a machine that is suspended, or a virtual one that is moved, is a silent host. Its
/// own processes stand still.
//= faults.md: 47: a machine is suspended beyond MPIB_PEER_TIMEOUT_MS: its connections go on afterwards
#[test]
fn a_host_that_was_suspended_goes_on() {
    on_hosts(here!(), &[("MPIB_PEER_TIMEOUT_MS", "1000")], || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0"]);
        message(&mut a, &mut b, 1);
        silence(&hosts, "add", "10.0.1.1");
        b.process().stop();
        until_logged(&mut a, "is dialled again");
        b.process().go_on();
        silence(&hosts, "del", "10.0.1.1");
        until_logged(&mut a, "works again");
        message(&mut a, &mut b, 2);
        a.must("close");
        b.must("close");
    });
}

/// Nothing of host b is heard but what its adapter acknowledges, until its process ends.
//= failover.md: a connection whose peer gives no sign of life is named in one warning within two seconds
#[test]
fn a_silent_peer_is_named_long_before_its_connection_fails() {
    let settings = [("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER_WAIT", "3600")];
    on_hosts(here!(), &settings, || {
        let (hosts, mut a, mut b) = two_hosts(&["eth0"]);
        message(&mut a, &mut b, 1);
        silence(&hosts, "add", "10.0.1.1");
        until_logged(&mut a, "is dialled again");
        // The rail still shows that b lives.
        message(&mut a, &mut b, 2);
        assert!(!log(&mut a).iter().any(|line| line.1.contains("is silent")), "{:?}", log(&mut a));
        b.kill();
        let line = until_logged(&mut a, "is silent: no sign of life");
        for part in ["10.0.1.2", "its control connection has been broken", "(MPIB_FAILOVER_WAIT=3600)"] {
            assert!(line.contains(part), "{line}");
        }
        drop((a, b));
    });
}

/// Host a, which sends to host b over one rail, on networks with an interface of these names each.
fn two_hosts(interfaces: &'static [&'static str]) -> (Hosts, Peer, Peer) {
    hosts_with(interfaces, ["soft0:addr=10.0.1.1/24", "soft0:addr=10.0.1.2/24"])
}

/// As [`two_hosts`], with these adapters.
pub(crate) fn hosts_with(
    interfaces: &'static [&'static str],
    [of_a, of_b]: [&str; 2],
) -> (Hosts, Peer, Peer) {
    const ADDRS: [[&str; 2]; 2] = [["10.0.1.1/24", "10.0.1.2/24"], ["10.0.2.1/24", "10.0.2.2/24"]];
    let ends = |(name, [a, b]): (&'static str, [&'static str; 2])| vec![("a", name, a), ("b", name, b)];
    let networks = interfaces.iter().copied().zip(ADDRS).map(ends).collect();
    let hosts = Hosts::up(Topology { networks, ..Topology::default() });
    let start = |host, devices| hosts.peer(host, &[("SOFTVERBS_DEVICES", devices)]);
    let (mut a, mut b) = (start("a", of_a), start("b", of_b));
    let handle = b.ask("listen");
    b.say("accept");
    a.must(&format!("connect {handle}"));
    assert_eq!(b.answer(), "ok");
    (hosts, a, b)
}

/// Begins (`add`) or ends (`del`) that nothing of b's reaches an address.
pub(crate) fn silence(hosts: &Hosts, how: &str, addr: &str) {
    let status = hosts.command("b", "ip").args(["route", how, "blackhole", &format!("{addr}/32")]).status();
    assert!(status.unwrap().success());
}

pub(crate) fn message(a: &mut Peer, b: &mut Peer, seed: u64) {
    b.say(&format!("recv 100000 {seed}"));
    a.must(&format!("send 100000 {seed}"));
    assert_eq!(b.answer(), "ok");
}

/// Waits for a line with `part` in a process's log.
pub(crate) fn until_logged(peer: &mut Peer, part: &str) -> String {
    until(part, || log(peer).into_iter().map(|line| line.1).find(|line| line.contains(part)))
}

/// A warning has all of `parts`.
pub(crate) fn warned(peer: &mut Peer, parts: &[&str]) {
    let said: Vec<_> = log(peer).into_iter().filter(|line| line.0 == WARN).collect();
    assert!(said.iter().any(|line| parts.iter().all(|part| line.1.contains(part))), "{said:?}");
}
