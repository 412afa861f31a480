//! Peers that die, exit or stall at each point of a connection: real processes, real signals.

use std::sync::atomic::{AtomicBool, Ordering};

use mpib_tests::code::{InvalidArgument, RemoteError, Success};
use mpib_tests::log::{assert_last_warning, warnings};
use mpib_tests::pair::{Buffer, failure, init, pattern, until};
use mpib_tests::peer::{Peer, accepted, connected, from_peer, handle_of, recv, send, to_peer, wait, word};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{here, isolated, mpib};

/// Runs `body` with queue pairs that give an unreachable peer up within milliseconds.
fn with_short_retries(test: &str, body: impl FnOnce(&'static Table, Ptr)) {
    isolated(test, &mpib("512", &[("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "1")]), || {
        let table = newest();
        body(table, init(table));
    });
}

/// The last warning names the peer and has all of `parts`.
pub(crate) fn warned(peer: &Peer, parts: &[&str]) {
    assert_last_warning(&[parts, &[peer.name().as_str()]].concat());
}

/// A warning names the peer, and says that it exited or which rail failed and how. A control connection
/// that is reset, and not closed, may be that of a living peer: the connection then waits for a rail.
fn warned_of_death(peer: &Peer) {
    let name = peer.name();
    let lost = ["was lost with", "did its process end?", &name];
    let silent = ["is silent", "did its process end?", &name];
    let failed = ["on rail ", "soft", "IBV_WC_RETRY_EXC_ERR", &name];
    let all = warnings();
    let has = |parts: &[&str]| all.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!([&lost[..], &silent, &failed].into_iter().any(has), "{all:?}");
}

/// This process and a new one exchange data in both directions.
pub(crate) fn goes_on(table: &'static Table, ctx: Ptr) {
    let mut peer = Peer::start();
    let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
    for len in [1, 100_000] {
        let from = Buffer::new(table, there, pattern(len, 3));
        peer.say(&format!("recv {len} 3"));
        assert_eq!(wait(table, send(table, there, &from, len)), len);
        assert_eq!(peer.answer(), "ok");
        from.dereg();
        let to = Buffer::new(table, here, vec![0; len]);
        let request = recv(table, here, &to, len);
        peer.must(&format!("send {len} 4"));
        assert_eq!(wait(table, request), len);
        assert!(to.bytes == pattern(len, 4));
        to.dereg();
    }
    peer.must("close");
    assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
    peer.finish();
}

//= faults.md: 1: the listener dies before it answers: connect fails and lists the addresses
#[test]
fn a_listener_that_dies_before_it_answers() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let answer = peer.ask("listen");
        let mut handle = handle_of(&answer);
        // The port accepts connections, but no process reads from them.
        peer.process().stop();
        let (rc, comm) = table.connect(ctx, 0, &mut handle);
        assert_eq!((rc, comm.is_null()), (Success, true));
        peer.kill();
        let code =
            until("connect", || Some(table.connect(ctx, 0, &mut handle).0).filter(|rc| *rc != Success));
        assert_eq!(code, RemoteError);
        let last = warnings().pop().unwrap();
        let port = mpib_proto::Handle::decode(&handle_of(&answer)).unwrap().port();
        for part in ["connect", "none of its addresses answers", &format!("127.0.0.1:{port}: ")] {
            assert!(last.contains(part), "{part:?} is not in {last:?}");
        }
        goes_on(table, ctx);
    });
}

//= faults.md: 2: the connector dies in the handshake: accept waits for another handshake, then fails once
//= reach.md: a failed handshake fails accept unless another is in progress
#[test]
fn a_connector_that_dies_in_the_handshake() {
    isolated(here!(), &mpib("512", &[("MPIB_CONNECT_TIMEOUT_MS", "5000")]), || {
        let table = newest();
        let ctx = init(table);
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        let none_yet = || {
            let (rc, comm) = table.accept(listen);
            assert_eq!((rc, comm.is_null()), (Success, true), "accept");
        };
        let mut peer = Peer::start();
        peer.say(&format!("meet {}", word(&handle)));
        let answer = until("the peer to be met", || {
            none_yet();
            peer.answered()
        });
        assert_eq!(answer, "ok");
        peer.kill();
        // Something on the way may have closed the connection. No other handshake comes.
        let code = until("the handshake to fail", || {
            let (rc, comm) = table.accept(listen);
            assert!(comm.is_null());
            (rc != Success).then_some(rc)
        });
        assert_eq!(code, RemoteError);
        warned(&peer, &["accept", "did its process end?", "WIRING", "no other handshake came"]);
        // The listener still works.
        let mut second = Peer::start();
        second.say(&format!("connect {}", word(&handle)));
        let comm = accepted(table, listen);
        assert_eq!(second.answer(), "ok");
        let to = Buffer::new(table, comm, vec![0; 5000]);
        let request = recv(table, comm, &to, 5000);
        second.must("send 5000 1");
        assert_eq!(wait(table, request), 5000);
        assert!(to.bytes == pattern(5000, 1));
        to.dereg();
        second.finish();
        assert_eq!((table.close_recv(comm), table.close_listen(listen)), (Success, Success));
    });
}

//= faults.md: 3: the listener dies in the handshake: connect fails and names the step
#[test]
fn a_listener_that_dies_in_the_handshake() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let mut handle = handle_of(&peer.ask("greet"));
        let answer = until("the peer to be met", || {
            let (rc, comm) = table.connect(ctx, 0, &mut handle);
            assert_eq!((rc, comm.is_null()), (Success, true), "connect");
            peer.answered()
        });
        assert_eq!(answer, "ok");
        peer.kill();
        let code =
            until("connect", || Some(table.connect(ctx, 0, &mut handle).0).filter(|rc| *rc != Success));
        assert_eq!(code, RemoteError);
        warned(&peer, &["connect", "did its process end?", "WIRING"]);
        goes_on(table, ctx);
    });
}

//= faults.md: 67: the kernel kills a process for its memory: as rows 1 to 9, by the same signal
//= faults.md: 5: the sender is killed while it sends: test fails and names the dead peer
#[test]
fn a_sender_killed_while_it_sends() {
    with_short_retries(here!(), |table, ctx| {
        for len in [1000, 100_000, 4 << 20] {
            let mut peer = Peer::start();
            let comm = from_peer(table, ctx, &mut peer);
            let to = Buffer::new(table, comm, vec![0; len + 4096]);
            peer.must(&format!("stream {len}"));
            for _ in 0..5 {
                let request = recv(table, comm, &to, len);
                assert_eq!(wait(table, request), len);
            }
            assert!(to.bytes[..len] == pattern(len, 1));
            // The peer matches these while it dies, or never.
            let requests: Vec<_> = (0..16).map(|_| recv(table, comm, &to, len)).collect();
            peer.kill();
            let failed = until("the death to be known", || {
                requests
                    .iter()
                    .map(|request| table.test(*request).0)
                    .find(|rc| ![Success, InvalidArgument].contains(rc))
            });
            assert_eq!(failed, RemoteError);
            warned_of_death(&peer);
            assert!(to.bytes[len..].iter().all(|byte| *byte == 0), "it wrote behind the buffer");
            assert_eq!(table.irecv(comm, &[(to.addr(), len, 1, to.mr)]).0, RemoteError);
            to.dereg();
            assert_eq!(table.close_recv(comm), Success);
        }
        goes_on(table, ctx);
    });
}

//= faults.md: 67
//= faults.md: 6: the receiver is killed while it receives: isend and test fail, and name it
#[test]
fn a_receiver_killed_while_it_receives() {
    with_short_retries(here!(), |table, ctx| {
        for len in [1000, 100_000, 4 << 20] {
            let mut peer = Peer::start();
            let comm = to_peer(table, ctx, &mut peer);
            let from = Buffer::new(table, comm, pattern(len, 1));
            peer.must(&format!("drain {len}"));
            for _ in 0..5 {
                assert_eq!(wait(table, send(table, comm, &from, len)), len);
            }
            peer.process().signal(libc::SIGKILL);
            let mut under_way = Vec::new();
            let code = until("the death to be known", || {
                let (rc, request) = table.isend(comm, from.addr(), len, 1, from.mr);
                if rc != Success {
                    return Some(rc);
                }
                under_way.extend(Some(request).filter(|request| !request.is_null()));
                let (rc, done, _) =
                    under_way.first().map_or((Success, false, [0; 8]), |first| table.test(*first));
                if done {
                    under_way.remove(0);
                }
                Some(rc).filter(|rc| *rc != Success)
            });
            assert_eq!(code, RemoteError);
            warned_of_death(&peer);
            // Requests in flight fail, too.
            for request in under_way {
                assert_eq!(failure(table, request), RemoteError);
            }
            from.dereg();
            assert_eq!(table.close_send(comm), Success);
        }
        goes_on(table, ctx);
    });
}

//= faults.md: 7: the peer is killed while nothing moves: requests that wait fail
#[test]
fn a_peer_killed_while_nothing_moves() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
        let to = Buffer::new(table, here, vec![0; 1000]);
        let from = Buffer::new(table, there, pattern(1000, 2));
        let request = recv(table, here, &to, 1000);
        peer.must("send 1000 1");
        assert_eq!(wait(table, request), 1000);
        let requests: Vec<_> = (0..8).map(|_| recv(table, here, &to, 1000)).collect();
        peer.kill();
        for request in requests {
            assert_eq!(failure(table, request), RemoteError);
        }
        warned_of_death(&peer);
        let code = until("isend", || {
            let (rc, request) = table.isend(there, from.addr(), 1000, 1, from.mr);
            assert!(request.is_null(), "nobody asked for it");
            Some(rc).filter(|rc| *rc != Success)
        });
        assert_eq!(code, RemoteError);
        warned(&peer, &["isend", "was lost with sends outstanding"]);
        to.dereg();
        from.dereg();
        assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
        goes_on(table, ctx);
    });
}

/// A send that was posted to a receive of the peer, which then died: the NIC gets no answer.
//= faults.md: 8: the receiver dies after it has posted: the posted send fails
#[test]
fn a_receiver_killed_before_the_data_comes() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let comm = to_peer(table, ctx, &mut peer);
        peer.must("post 4 1000");
        let from = Buffer::new(table, comm, pattern(1000, 1));
        // The receives are there: this send meets the first.
        assert_eq!(wait(table, send(table, comm, &from, 1000)), 1000);
        peer.kill();
        let mut request = std::ptr::null_mut();
        let code = until("the death to be known", || {
            let (rc, posted) = table.isend(comm, from.addr(), 1000, 1, from.mr);
            request = posted;
            (rc != Success || !posted.is_null()).then_some(rc)
        });
        assert_eq!(code, Success);
        let code = failure(table, request);
        assert_eq!(code, RemoteError);
        warned_of_death(&peer);
        from.dereg();
        assert_eq!(table.close_send(comm), Success);
        // Nobody comes after it: what it left is ours to sweep up when we end.
    });
}

//= faults.md: 10: the peer closes with receives outstanding: they fail and say so
#[test]
fn a_peer_that_closes_with_receives_outstanding() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let here = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, here, vec![0; 1000]);
        let requests: Vec<_> = (0..3).map(|_| recv(table, here, &to, 1000)).collect();
        peer.must("send 1000 1");
        peer.must("close");
        assert_eq!(wait(table, requests[0]), 1000);
        for request in &requests[1..] {
            assert_eq!(failure(table, *request), RemoteError);
        }
        warned(&peer, &["closed the connection with receives outstanding"]);
        peer.finish();
        to.dereg();
        assert_eq!(table.close_recv(here), Success);
        goes_on(table, ctx);
    });
}

//= faults.md: 12: a peer is stopped under load: the transfer waits and loses nothing
#[test]
fn a_peer_that_is_stopped_now_and_then_loses_nothing() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
        let len = 20_000;
        let rounds = 300;
        peer.say(&format!("echo {rounds} {len}"));
        let (over, process) = (AtomicBool::new(false), peer.process());
        std::thread::scope(|scope| {
            let stops = scope.spawn(|| {
                let mut stops = 0;
                // At least five stops: some of them must happen while data is in flight.
                while !over.load(Ordering::Relaxed) || stops < 5 {
                    process.stop();
                    process.go_on();
                    stops += 1;
                }
            });
            for seed in 0..rounds {
                let from = Buffer::new(table, there, pattern(len, seed));
                let to = Buffer::new(table, here, vec![0; len]);
                let back = recv(table, here, &to, len);
                assert_eq!(wait(table, send(table, there, &from, len)), len);
                assert_eq!(wait(table, back), len);
                assert!(to.bytes == from.bytes, "message {seed} differs");
                from.dereg();
                to.dereg();
            }
            over.store(true, Ordering::Relaxed);
            stops.join().unwrap();
        });
        assert_eq!(peer.answer(), "ok");
        peer.must("close");
        peer.finish();
        assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// A connector waits for a stopped process, and continues once the process does.
//= faults.md: 13: a peer stops in the handshake: connect waits up to its timeout
#[test]
fn a_listener_that_is_stopped_in_the_handshake_goes_on() {
    with_short_retries(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let mut handle = handle_of(&peer.ask("listen"));
        peer.say("accept");
        peer.process().stop();
        for _ in 0..1000 {
            let (rc, comm) = table.connect(ctx, 0, &mut handle);
            assert_eq!((rc, comm.is_null()), (Success, true));
        }
        peer.process().go_on();
        let comm = connected(table, ctx, &mut handle);
        assert_eq!(peer.answer(), "ok");
        let from = Buffer::new(table, comm, pattern(3000, 8));
        peer.say("recv 3000 8");
        assert_eq!(wait(table, send(table, comm, &from, 3000)), 3000);
        assert_eq!(peer.answer(), "ok");
        from.dereg();
        peer.must("close");
        peer.finish();
        assert_eq!(table.close_send(comm), Success);
    });
}
