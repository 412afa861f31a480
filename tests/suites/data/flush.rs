//! Flushes of host memory. By default there are none. With MPIB_FLUSH=1 a flush is one read on each
//! rail that has carried data, even after the peer has ended.

use mpib_tests::code::{InvalidArgument, InvalidUsage, RemoteError, Success, SystemError};
use mpib_tests::log::{take_warning, take_warnings, warnings};
use mpib_tests::pair::{Buffer, Pair, connect, init, until};
use mpib_tests::peer::{Peer, from_peer, recv, wait};
use mpib_tests::table::{Ptr, TABLES, newest};
use mpib_tests::{TWO_RAILS, here, misbehaving_peer, mpib, with_and_without_srq};

use super::flush_util::{during, force_flush, iflush, line, reads};

const ON: (&str, &str) = ("MPIB_FLUSH", "1");

//= mpib.md: by default only GPU memory is flushed
#[test]
fn by_default_a_flush_of_host_memory_is_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            let pair = connect(table, ctx, 0);
            pair.message(100_000, 100_000, 1);
            let to = pair.recv_buffer(1000);
            assert!(iflush(table, pair.recv, &[(to.addr(), 1000, to.mr)]).is_null());
            to.dereg();
            pair.close();
        }
        assert_eq!((reads(), force_flush()), ([0, 0], vec![false; 4]));
        assert!(line().contains("for GPU memory (MPIB_FLUSH is unset)"), "{}", line());
    });
}

//= mpib.md: a flush reads once on each rail that has carried data
//= configuration.md: MPIB_FLUSH
#[test]
fn a_flush_reads_once_on_each_rail_that_has_carried_data() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        for table in TABLES {
            let ctx = init(table);
            let (tried, pair) = during(|| connect(table, ctx, 0));
            assert_eq!(tried, [1, 1], "each rail's way to itself is tried");
            let to = pair.recv_buffer(1000);
            let flush = || iflush(table, pair.recv, &[(to.addr(), 1000, to.mr)]);
            let (none, request) = during(flush);
            assert!(none == [0, 0] && request.is_null(), "nothing has come");
            // Too small for a split: all on SOUT.
            pair.message(100, 100, 1);
            let (one, request) = during(|| {
                let request = flush();
                pair.wait(request);
                request
            });
            assert_eq!(one, [1, 0]);
            // The request is invalid once it has completed.
            assert_eq!(table.test(request).0, InvalidArgument);
            pair.message(100_000, 100_000, 1);
            assert_eq!(during(|| pair.wait(flush())).0, [1, 1]);
            to.dereg();
            pair.message(1000, 1000, 1);
            pair.close();
        }
        assert_eq!(force_flush(), [true; 4]);
        assert!(line().contains("RDMA read") && line().contains("MPIB_FLUSH=1"), "{}", line());
    });
}

//= mpib.md: a flush reads once on each rail that has carried data
#[test]
fn a_rail_of_the_other_class_is_not_read() {
    with_and_without_srq(here!(), &[&TWO_RAILS[..], &[ON]].concat(), || {
        let pair = Pair::new(newest());
        pair.message(100_000, 100_000, 1);
        let to = pair.recv_buffer(1000);
        let (counts, _) = during(|| pair.wait(iflush(newest(), pair.recv, &[(to.addr(), 1000, to.mr)])));
        assert_eq!(counts, [0, 1], "within an island data is on SUP");
        to.dereg();
        pair.close();
    });
}

/// There the way of an adapter to itself has a LID and no GID.
//= mpib.md: a flush reads once on each rail that has carried data
#[test]
fn infiniband_ports_read_back_as_well() {
    let ports = ("SOFTVERBS_DEVICES", "soft0:link=ib;soft1:link=ib");
    with_and_without_srq(here!(), &mpib("512", &[ON, ports]), || {
        let pair = Pair::new(newest());
        pair.message(100_000, 100_000, 1);
        let to = pair.recv_buffer(1000);
        let (counts, _) = during(|| pair.wait(iflush(newest(), pair.recv, &[(to.addr(), 1000, to.mr)])));
        assert_eq!((counts, take_warnings()), ([1, 1], Vec::new()));
        to.dereg();
        pair.close();
    });
}

/// A flush completes after the reads of both rails.
//= mpib.md: a flush reads once on each rail that has carried data
#[test]
fn a_flush_waits_for_the_slower_rail() {
    for slow in [
        "soft0:addr=10.1.0.1/16,lat=100ms;soft1:addr=10.2.0.1/16",
        "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16,lat=100ms",
    ] {
        with_and_without_srq(here!(), &mpib("512", &[ON, ("SOFTVERBS_DEVICES", slow)]), || {
            let pair = Pair::new(newest());
            pair.message(100_000, 100_000, 1);
            let to = pair.recv_buffer(1000);
            let taken = || softverbs::counters().iter().map(|d| d.total.send_cqes).collect::<Vec<_>>();
            let before = taken();
            pair.wait(iflush(newest(), pair.recv, &[(to.addr(), 1000, to.mr)]));
            let after = taken();
            assert!(before.iter().zip(&after).all(|(b, a)| a - b == 1), "{before:?} {after:?}");
            to.dereg();
            pair.close();
        });
    }
}

/// The queue pair for flushes counts.
#[test]
fn fewer_connections_fit_with_flushes() {
    let env = mpib("512", &[("MPIB_SOUT_QP", "2"), ("MPIB_SUP_QP", "3"), ON]);
    with_and_without_srq(here!(), &env, || {
        init(newest());
        let device = nccl_net_mpib::simulation::process::Process::global().devices.get(0).unwrap();
        let each = device.rails[1].limits().max_qp / 4;
        assert_eq!(newest().properties(0).1.unwrap().max_comms, each as i32);
    });
}

//= mpib.md: groups, empty buffers, and mixed memory are flushed
#[test]
fn groups_and_empty_buffers() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        let (to, from) = (pair.recv_buffer(4096), pair.send_buffer(vec![0; 4096]));
        let some = (to.addr(), 4096, to.mr);
        let empty = (to.addr() + 4096, 0, to.mr);
        let blank = (to.addr(), 0, Ptr::default());
        for group in [&[empty][..], &[blank], &[blank, empty, blank], &[empty; 8]] {
            let (none, request) = during(|| iflush(table, pair.recv, group));
            assert!(none == [0, 0] && request.is_null());
        }
        for group in [&[some][..], &[some, empty], &[blank, some, empty], &[some; 8], &[empty, some]] {
            let (counts, _) = during(|| pair.wait(iflush(table, pair.recv, group)));
            assert_eq!(counts, [1, 1], "one read on a rail for any group");
        }
        // One byte is enough.
        pair.wait(iflush(table, pair.recv, &[(to.addr(), 1, to.mr)]));
        // Invalid arguments are refused without an effect on the connection.
        for wrong in
            [(to.addr() + 4096, 10, to.mr), (to.addr() - 1, 10, to.mr), (to.addr(), 1, Ptr::default())]
        {
            for group in [&[wrong][..], &[some, wrong], &[wrong, blank]] {
                let (none, (rc, request)) = during(|| table.iflush(pair.recv, group));
                assert_eq!((none, rc, request.is_null()), ([0, 0], InvalidArgument, true));
            }
        }
        pair.wait(iflush(table, pair.recv, &[some]));
        pair.message(1000, 1000, 1);
        to.dereg();
        from.dereg();
        pair.close();
    });
}

/// NCCL leaves receives out of a group's buffers, and not out of its sizes: a size may be that of
/// another buffer.
//= receives.md: a flush needs no size
//= adapters.md: A14: iflush needs no size
#[test]
fn a_size_that_does_not_belong_to_its_buffer_is_no_error() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        let (to, other) = (pair.recv_buffer(4096), pair.recv_buffer(64));
        let last = to.addr() + 4095;
        for group in [
            &[(to.addr(), 1 << 30, to.mr)][..],
            &[(last, 4096, to.mr)],
            &[(last, usize::MAX >> 33, to.mr)],
            &[(other.addr(), 4096, other.mr), (to.addr(), 64, to.mr)],
            &[(to.addr(), 0, to.mr), (other.addr(), 1 << 20, other.mr)],
        ] {
            let (counts, _) = during(|| pair.wait(iflush(table, pair.recv, group)));
            assert_eq!(counts, [1, 1]);
        }
        pair.message(1000, 1000, 1);
        assert_eq!(take_warnings(), Vec::<String>::new());
        to.dereg();
        other.dereg();
        pair.close();
    });
}

/// A flush cannot be put off: as many as there are receives fit, and one more is an error that
/// harms nothing.
//= receives.md: 64 flushes may be in flight
#[test]
fn as_many_flushes_as_receives_may_be_under_way() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        let to = pair.recv_buffer(4096);
        let group = [(to.addr(), 4096, to.mr); 8];
        for round in 0..3 {
            let (counts, mut flushes) =
                during(|| (0..64).map(|i| iflush(table, pair.recv, &group[..1 + i % 8])).collect::<Vec<_>>());
            assert!(flushes.iter().all(|f| !f.is_null()));
            assert_eq!(counts, [64, 64]);
            let (rc, request) = table.iflush(pair.recv, &group);
            assert_eq!((rc, request.is_null()), (InvalidUsage, true));
            take_warning(&["64 flushes are under way"]);
            // Data goes on beside them.
            pair.message(50_000, 50_000, round);
            // In any order.
            if round == 1 {
                flushes.reverse();
            }
            flushes.iter().for_each(|f| {
                pair.wait(*f);
            });
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
        to.dereg();
        pair.close();
    });
}

/// A flush takes longer than the wait for a peer that has exited.
const SLOW: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,lat=600ms;soft1:addr=10.2.0.1/16,lat=600ms");

//= mpib.md: a connection closes with flushes in flight
#[test]
fn closing_with_flushes_under_way() {
    with_and_without_srq(here!(), &mpib("512", &[ON, SLOW]), || {
        let (table, ctx) = (newest(), init(newest()));
        let pair = connect(table, ctx, 0);
        pair.message(100_000, 100_000, 1);
        let to = pair.recv_buffer(4096);
        for _ in 0..64 {
            let request = iflush(table, pair.recv, &[(to.addr(), 4096, to.mr)]);
            assert!(!request.is_null() && !table.test(request).1);
        }
        to.dereg();
        pair.close();
        let again = connect(table, ctx, 0);
        again.message(1000, 1000, 1);
        again.close();
        assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
    });
}

/// Receives from a peer, which then ends as `leave` defines. A flush after that still completes.
fn without_the_peer(test: &str, leave: fn(&mut Peer)) {
    with_and_without_srq(test, &mpib("512", &[ON, SLOW]), || {
        let (table, ctx) = (newest(), init(newest()));
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 100_000]);
        let request = recv(table, comm, &to, 100_000);
        peer.must("send 100000 1");
        assert_eq!(wait(table, request), 100_000);
        leave(&mut peer);
        let (counts, _) = during(|| wait(table, iflush(table, comm, &[(to.addr(), 100_000, to.mr)])));
        assert_eq!(counts, [1, 1]);
        assert_eq!(take_warnings(), Vec::<String>::new());
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}

//= receives.md: a flush does not need the peer; the peer may write and not read
#[test]
fn a_flush_after_the_peer_was_killed() {
    without_the_peer(here!(), Peer::kill);
}

//= receives.md: a flush does not need the peer; the peer may write and not read
#[test]
fn a_flush_after_the_peer_has_closed() {
    without_the_peer(here!(), |peer| peer.must("close"));
}

/// A peer that breaks the protocol fails the connection. The flush then returns an error and does
/// not hang.
//= receives.md: a flush does not need the peer; the peer may write and not read
#[test]
fn a_flush_on_a_connection_that_the_peer_has_ruined() {
    with_and_without_srq(here!(), &mpib("512", &[ON, SLOW]), || {
        let (table, ctx) = (newest(), init(newest()));
        let (comm, liar) = misbehaving_peer::receiver(ctx);
        let to = Buffer::new(table, comm, vec![0; 1000]);
        let request = recv(table, comm, &to, 1000);
        // The message is empty and therefore on SOUT. The first receive has slot 1.
        let layout = mpib_proto::ImmLayout::new(2).unwrap();
        liar.signal(0, layout.encode(1, 1, layout.size(0)));
        assert_eq!(wait(table, request), 0);
        // The completion is in the queue until the plugin polls.
        liar.signal(0, layout.encode(60, 1, layout.size(0)));
        let flush = iflush(table, comm, &[(to.addr(), 1000, to.mr)]);
        assert!(!flush.is_null());
        let code = until("a failure", || {
            let (rc, done, _) = table.test(flush);
            assert!(!done || rc == Success);
            (rc != Success || done).then_some(rc)
        });
        assert_eq!(code, RemoteError, "the peer's fault");
        assert!(warnings().pop().unwrap().contains("slot 60, where no receive waits"));
        assert_eq!(table.iflush(comm, &[(to.addr(), 1000, to.mr)]).0, RemoteError);
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}

/// The read fails, as if GPU memory was freed too soon. The connection fails and logs the reason.
//= faults.md: 87: memory is deregistered or a flush fails meanwhile: the request fails by name
//= mpib.md: a flush that fails is one error that names rail and reason
#[test]
fn a_flush_read_that_fails_is_reported() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        let (to, from) = (pair.recv_buffer(4096), pair.send_buffer(vec![0; 10]));
        let group = [(to.addr(), 4096, to.mr)];
        pair.wait(iflush(table, pair.recv, &group));
        softverbs::revoke_mrs_at(to.addr());
        let request = iflush(table, pair.recv, &group);
        let code = until("a failure", || {
            let (rc, done, _) = table.test(request);
            assert!(!done);
            (rc != Success).then_some(rc)
        });
        assert_eq!(code, SystemError);
        // The test ignores the adapter's asynchronous reports, whose time is not defined.
        let reported = || -> Vec<String> {
            take_warnings().into_iter().filter(|line| !line.contains("IBV_EVENT_")).collect()
        };
        let said = reported();
        for part in [
            "test: flush read to this adapter (loopback) failed on rail ",
            "(soft",
            "IBV_WC_REM_ACCESS_ERR",
            "was the peer's buffer freed",
        ] {
            assert!(said.last().unwrap().contains(part), "{part}: {said:?}");
        }
        // Logged once; the sender fails as well.
        assert_eq!(table.test(request).0, SystemError);
        assert_eq!(table.iflush(pair.recv, &group).0, SystemError);
        assert_eq!(table.irecv(pair.recv, &[(to.addr(), 10, 1, to.mr)]).0, SystemError);
        assert_eq!(reported(), Vec::<String>::new());
        until("the sender to learn of it", || {
            let (rc, request) = table.isend(pair.send, from.addr(), 10, 1, from.mr);
            assert!(request.is_null());
            (rc != Success).then_some(())
        });
        assert!(take_warnings().concat().contains("flush read"));
        from.dereg();
        to.dereg();
        pair.close();
    });
}
