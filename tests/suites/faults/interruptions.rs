//! Peers and links that are away for a while: a peer that dies while rails are probed, one that is
//! stopped for long, a link that flaps.

use mpib_tests::code::{Code, RemoteError, Success};
use mpib_tests::log::{LOG, warnings};
use mpib_tests::pair::{Buffer, Pair, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer, handle_of, recv, wait, word};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{here, isolated, mpib, with_and_without_srq};
use softverbs::{Direction, Fault, Only};

use crate::kills::{goes_on, warned};

/// The rails swallow everything while the probes are under way, and then the peer is killed: what ends
/// the handshake is its death, not the limit of the probe.
fn killed_while_rails_are_probed(test: &str, connects: bool) {
    let env = mpib("512", &[("MPIB_PROBE_TIMEOUT_MS", "300000"), ("MPIB_CONNECT_TIMEOUT_MS", "300000")]);
    isolated(test, &env, || {
        let (table, ctx) = (newest(), init(newest()));
        let mut peer = Peer::start();
        let mut handle = [0; 128];
        let mut listen = Ptr::default();
        if connects {
            handle = handle_of(&peer.ask("listen"));
            peer.say("accept");
        } else {
            let (rc, listener) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            listen = listener;
            peer.say(&format!("connect {}", word(&handle)));
        }
        for rail in ["soft0", "soft1"] {
            softverbs::inject(rail, Fault::Silence(Direction::Both)).unwrap();
        }
        let mut call = || match connects {
            true => table.connect(ctx, 0, &mut handle),
            false => table.accept(listen),
        };
        until("the probes", || {
            let (rc, comm) = call();
            assert_eq!((rc, comm.is_null()), (Success, true));
            let posted = |rail| softverbs::posted(rail, Only::WRITES).unwrap();
            (posted("soft0") > 0 && posted("soft1") > 0).then_some(())
        });
        peer.kill();
        if connects {
            let code = until("the handshake to fail", || Some(call().0).filter(|rc| *rc != Success));
            assert_eq!(code, RemoteError);
            warned(&peer, &["did its process end?"]);
        } else {
            // The next handshake may come.
            let (name, said) =
                (peer.name(), ["did its process end?", "the peer may begin another handshake"]);
            let is_it =
                |(_, line): &(_, String)| line.contains(&name) && said.iter().all(|s| line.contains(s));
            until("the handshake to end", || {
                assert_eq!(call(), (Success, Ptr::default()));
                LOG.lock().unwrap().iter().any(is_it).then_some(())
            });
        }
        for rail in ["soft0", "soft1"] {
            softverbs::heal(rail).unwrap();
        }
        if !connects {
            assert_eq!(table.close_listen(listen), Success);
        }
        goes_on(table, ctx);
    });
}

//= faults.md: 4: the peer dies while rails are probed: connect fails, and accept waits for another handshake
#[test]
fn a_listener_that_dies_while_rails_are_probed() {
    killed_while_rails_are_probed(here!(), true);
}

//= faults.md: 4
#[test]
fn a_connector_that_dies_while_rails_are_probed() {
    killed_while_rails_are_probed(here!(), false);
}

/// Returns for how long each TCP connection of this process has received nothing, in ms.
fn silences() -> Vec<u32> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let silence = |fd: i32| {
        let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
        let mut len = size_of::<libc::tcp_info>() as u32;
        // SAFETY: a number that may be no socket, and writable bytes of the type.
        let rc = unsafe {
            libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
        };
        // SAFETY: zeroed, and any bytes are valid.
        let info = unsafe { info.assume_init() };
        // Established: listeners have no peer.
        (rc == 0 && info.tcpi_state == 1).then_some(info.tcpi_last_ack_recv)
    };
    fds.filter_map(silence).collect()
}

//= faults.md: 14: the peer is stopped beyond MPIB_PEER_TIMEOUT_MS: its host answers, the connection waits
#[test]
fn a_peer_that_is_stopped_for_longer_than_the_limit_goes_on() {
    isolated(here!(), &mpib("512", &[("MPIB_PEER_TIMEOUT_MS", "1000")]), || {
        let (table, ctx) = (newest(), init(newest()));
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 5000]);
        let request = recv(table, comm, &to, 5000);
        peer.process().stop();
        // Three signs of life that the kernel of the stopped process has answered: each comes after a
        // second of silence.
        for _ in 0..3 {
            let quiet = |longest: bool| {
                let (rc, done, _) = table.test(request);
                assert_eq!((rc, done), (Success, false));
                silences().iter().all(|ms| (*ms > 900) == longest).then_some(())
            };
            until("silence", || quiet(true));
            until("a sign of life", || quiet(false));
        }
        peer.process().go_on();
        peer.say("send 5000 1");
        assert_eq!(wait(table, request), 5000);
        assert!(to.bytes == pattern(5000, 1));
        assert_eq!(peer.answer(), "ok");
        to.dereg();
        assert_eq!((table.close_recv(comm), warnings().len()), (Success, 0));
    });
}

/// Without failover: with it, rails of a port whose link is down are given up at once.
//= faults.md: 17: a link is down for less than the retry budget: the adapter repeats, no call fails
#[test]
fn a_link_that_comes_back_in_time_fails_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[("MPIB_FAILOVER", "0")]), || {
        let pair = Pair::new(newest());
        let (to, from) = (pair.recv_buffer(1 << 20), pair.send_buffer(pattern(1 << 20, 1)));
        for rail in ["soft0", "soft1"] {
            let recv = pair.irecv(&[(to.addr(), 1 << 20, 1, to.mr)]);
            softverbs::set_link(rail, false).unwrap();
            let send = pair.isend(from.addr(), 1 << 20, 1, from.mr);
            // Posted while the link is down, and not done before it is up.
            for _ in 0..1000 {
                assert_eq!((table_test(send), table_test(recv)), ((Success, false), (Success, false)));
            }
            softverbs::set_link(rail, true).unwrap();
            assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (1 << 20, 1 << 20));
            assert!(to.bytes == from.bytes);
        }
        to.dereg();
        from.dereg();
        pair.close();
    });
}

fn table_test(request: Ptr) -> (Code, bool) {
    let (rc, done, _) = newest().test(request);
    (rc, done)
}
