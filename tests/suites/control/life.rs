//! The network of the control connection is silent for longer than all limits together: whether the
//! peer's host lives is then what the rails show.

use std::time::{Duration, Instant};

use mpib_tests::code::RemoteError;
use mpib_tests::hosts::watch::adapters;
use mpib_tests::hosts::{Hosts, on_hosts};
use mpib_tests::pair::until;
use mpib_tests::peer::Peer;
use mpib_tests::{here, mpib};

use super::silence::{hosts_with, message, silence, until_logged, warned};

/// The least values of both limits.
const LIMITS: [(&str, &str); 2] = [("MPIB_PEER_TIMEOUT_MS", "1000"), ("MPIB_FAILOVER_WAIT", "1")];

/// Twice as long as both limits.
const LONG: Duration = Duration::from_secs(4);

/// A connection from host a to host b over so many rails, which need not the only other network.
fn rails(n: usize) -> (Hosts, Peer, Peer) {
    let devices = |host: usize| {
        let device = |rail: usize| format!("soft{rail}:addr=10.9.{rail}.{host}/24");
        (0..n).map(device).collect::<Vec<_>>().join(";")
    };
    hosts_with(&["eth0"], [&devices(1), &devices(2)])
}

/// Runs `body` on such a connection whose other network is silent, as both ends have noticed.
fn in_silence(test: &str, n: usize, body: impl FnOnce(&Hosts, Peer, Peer)) {
    let profile = if n == 1 { Vec::new() } else { mpib("512", &[]) };
    on_hosts(test, &[&profile[..], &LIMITS].concat(), || {
        let (hosts, mut a, mut b) = rails(n);
        message(&mut a, &mut b, 1);
        silence(&hosts, "add", "10.0.1.1");
        for end in [&mut a, &mut b] {
            until_logged(end, "is dialled again");
        }
        body(&hosts, a, b);
    });
}

/// Ends the silence. The connection has lost nothing.
fn ends_well(hosts: &Hosts, mut a: Peer, mut b: Peer) {
    silence(hosts, "del", "10.0.1.1");
    for end in [&mut a, &mut b] {
        until_logged(end, "works again");
    }
    message(&mut a, &mut b, 2);
    a.must("close");
    b.must("close");
}

/// Pings that take [`LONG`]: four in each `MPIB_FAILOVER_WAIT`.
const PINGS: u64 = 4 * LONG.as_secs();

/// Waits until an end that writes nothing else has asked for signs of life for [`LONG`].
fn until_pinged(end: &mut Peer) {
    until_pinged_times(end, PINGS);
}

fn until_pinged_times(end: &mut Peer, pings: u64) {
    let mut writes = || adapters(end).iter().map(|(_, count)| count.writes).sum::<u64>();
    let before = writes();
    until("pings", || (writes() >= before + pings).then_some(()));
}

fn data_moves(test: &str, n: usize) {
    in_silence(test, n, |hosts, mut a, mut b| {
        let since = Instant::now();
        while since.elapsed() < LONG {
            message(&mut a, &mut b, 3);
        }
        ends_well(hosts, a, b);
    });
}

//= faults.md: 51
//= failover.md: the management network may be silent while a rail works
#[test]
fn a_silent_network_ends_nothing_while_data_moves_over_the_only_rail() {
    data_moves(here!(), 1);
}

//= failover.md: fault: the management network, while one rail works: a reset, a firewall that forgets connections, silence for any time
//= faults.md: 51
//= failover.md: the management network may be silent while a rail works
#[test]
fn a_silent_network_ends_nothing_while_data_moves_over_two_rails() {
    data_moves(here!(), 2);
}

fn nothing_moves(test: &str, n: usize) {
    in_silence(test, n, |hosts, mut a, mut b| {
        for end in [&mut a, &mut b] {
            until_pinged(end);
        }
        message(&mut a, &mut b, 3);
        // The receiver waits for data.
        b.say("recv 100000 4");
        until_pinged(&mut a);
        a.must("send 100000 4");
        assert_eq!(b.answer(), "ok");
        ends_well(hosts, a, b);
    });
}

//= faults.md: 51
//= failover.md: the management network may be silent while a rail works
#[test]
fn a_silent_network_ends_nothing_while_the_only_rail_is_idle() {
    nothing_moves(here!(), 1);
}

//= faults.md: 51
//= failover.md: the management network may be silent while a rail works
#[test]
fn a_silent_network_ends_nothing_while_two_rails_are_idle() {
    nothing_moves(here!(), 2);
}

/// The adapter of a process that stands still acknowledges by itself.
//= faults.md: 12
#[test]
fn a_stopped_process_lives_in_a_silent_network() {
    in_silence(here!(), 1, |hosts, mut a, mut b| {
        b.process().stop();
        a.say("send 100000 3");
        std::thread::sleep(LONG);
        b.process().go_on();
        b.must("recv 100000 3");
        assert_eq!(a.answer(), "ok");
        ends_well(hosts, a, b);
    });
}

/// The words for an end whose peer shows no life.
fn named(end: &mut Peer, outstanding: &str) {
    let lost = format!("was lost with {outstanding} outstanding");
    warned(
        end,
        &[&lost, "neither an address of its host nor a rail has answered for 1 s (MPIB_FAILOVER_WAIT)"],
    );
}

fn sender_names_it(test: &str, n: usize) {
    in_silence(test, n, |_, mut a, mut b| {
        b.must("post 1 100000");
        until_pinged(&mut a);
        b.kill();
        assert_eq!(a.code("send-fails 100000"), RemoteError);
        named(&mut a, "sends");
    });
}

//= failover.md: a process that dies while the management network is silent is found
#[test]
fn a_sender_on_one_rail_names_a_process_that_was_killed_in_a_silent_network() {
    sender_names_it(here!(), 1);
}

//= failover.md: a process that dies while the management network is silent is found
#[test]
fn a_sender_on_two_rails_names_a_process_that_was_killed_in_a_silent_network() {
    sender_names_it(here!(), 2);
}

//= failover.md: fault: the peer's process ends
//= failover.md: a process that dies while the management network is silent is found
#[test]
fn a_receiver_names_a_process_that_was_killed_in_a_silent_network() {
    in_silence(here!(), 1, |_, mut a, mut b| {
        b.say("recv-fails 100000");
        until_pinged(&mut a);
        a.kill();
        assert_eq!(b.answer(), RemoteError.number().unwrap().to_string());
        named(&mut b, "receives");
    });
}

/// Kills `peer` once `end`, which `call` keeps busy, has sent it something that it does not read: its
/// host resets the control connection then, and refuses the next ones.
fn names_it_after_a_reset(mut end: Peer, mut peer: Peer, call: &str, outstanding: &str) {
    peer.process().stop();
    end.must("link soft1 0");
    end.say(call);
    let sockets = ["tcp", "tcp6"].map(|family| format!("/proc/{}/net/{family}", peer.pid()));
    until("bytes that the peer does not read", || {
        let is_unread = |line: &str| {
            let queues = line.split_whitespace().nth(4);
            queues.is_some_and(|of| of.contains(':') && !of.ends_with(":00000000"))
        };
        let mut sockets = sockets.iter().map(|file| std::fs::read_to_string(file).unwrap());
        sockets.any(|file| file.lines().any(is_unread)).then_some(())
    });
    peer.kill();
    assert_eq!(end.answer(), RemoteError.number().unwrap().to_string());
    let lost = format!("was lost with {outstanding} outstanding");
    warned(&mut end, &[&lost, "did its process end?; dialled again: ", REFUSED]);
}

const REFUSED: &str = "its host refuses connections and no rail has answered for 4 s: its process has ended";

/// The longest wait that can be set. The adapter itself gives up after half a minute.
const PATIENT: [(&str, &str); 1] = [("MPIB_FAILOVER_WAIT", "3600")];

//= failover.md: a process whose host refuses connections has ended
#[test]
fn a_sender_names_a_process_that_was_killed_with_unread_bytes() {
    on_hosts(here!(), &[&mpib("512", &[])[..], &PATIENT].concat(), || {
        let (_hosts, a, b) = rails(2);
        names_it_after_a_reset(a, b, "fail 100000", "sends");
    });
}

//= failover.md: a process whose host refuses connections has ended
#[test]
fn a_receiver_names_a_process_that_was_killed_with_unread_bytes() {
    on_hosts(here!(), &[&mpib("512", &[])[..], &PATIENT].concat(), || {
        let (_hosts, a, b) = rails(2);
        names_it_after_a_reset(b, a, "recv-fails 100000", "receives");
    });
}

/// Host a takes b's address for itself: its own kernel resets the connection and refuses new ones.
//= failover.md: a process whose host refuses connections has ended
#[test]
fn a_refused_peer_whose_rail_works_lives() {
    on_hosts(here!(), &[&PATIENT[..], &[("MPIB_PEER_TIMEOUT_MS", "1000")]].concat(), || {
        let (hosts, mut a, mut b) = rails(1);
        message(&mut a, &mut b, 1);
        let address = |how| hosts.command("a", "ip").args(["addr", how, "10.0.1.2/32", "dev", "lo"]).status();
        assert!(address("add").unwrap().success());
        let line = until_logged(&mut a, "is dialled again");
        assert!(line.contains("reset"), "{line}");
        // Four of them without an answer would be the end.
        until_pinged_times(&mut a, 6);
        message(&mut a, &mut b, 2);
        assert!(address("del").unwrap().success());
        until_logged(&mut a, "works again");
        message(&mut a, &mut b, 3);
        a.must("close");
        b.must("close");
    });
}

/// The pings of its connection fail, which shows nothing of the way to its host.
//= rail-life.md: a process that has ended costs no other connection a rail
#[test]
fn a_process_that_was_killed_in_a_silent_network_costs_no_other_its_rail() {
    // The adapter gives up on the pings in two seconds.
    on_hosts(here!(), &[&LIMITS[..], &[("NCCL_IB_TIMEOUT", "16")]].concat(), || {
        let (hosts, mut a, mut b) = rails(1);
        let mut other = hosts.peer("b", &[("SOFTVERBS_DEVICES", "soft0:addr=10.9.0.2/24")]);
        let handle = other.ask("listen");
        other.say("accept");
        a.must(&format!("connect {handle}"));
        assert_eq!(other.answer(), "ok");
        silence(&hosts, "add", "10.0.1.1");
        for end in [&mut other, &mut b] {
            until_logged(end, "is dialled again");
        }
        b.kill();
        until_logged(&mut a, "the route from soft0:1 to 10.9.0.2 failed");
        for seed in 0..3 {
            other.say(&format!("recv 100000 {seed}"));
            a.must(&format!("send 100000 {seed} 1"));
            assert_eq!(other.answer(), "ok");
        }
        a.must("close");
        other.must("close");
    });
}

/// It cannot answer for the rail, and its host lives.
//= failover.md: fault: a peer's process that is stopped (a debugger, a checkpoint), also while rails or the management network fail
//= faults.md: 14
//= failover.md: a stopped process costs no connection
#[test]
fn a_process_may_be_stopped_for_long_while_a_rail_fails() {
    on_hosts(here!(), &mpib("512", &LIMITS), || {
        let (_hosts, mut a, mut b) = rails(2);
        message(&mut a, &mut b, 1);
        b.must("post 1 100000");
        b.process().stop();
        a.must("link soft1 0");
        a.say("send 100000 2");
        // It goes over the other rail alone if the loss is noticed first.
        std::thread::sleep(LONG);
        b.process().go_on();
        assert_eq!(a.answer(), "ok");
        message(&mut a, &mut b, 3);
        a.must("close");
        b.must("close");
    });
}
