//! NCCL's profiler and failures: each event that began ends once, before the call returns the
//! failure, and no event follows.

use mpib_proto::ImmLayout;
use mpib_tests::code::{InvalidUsage, RemoteError, Success};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, Misbehaviour};
use mpib_tests::pair::{Buffer, Pair, connect, failure, init, until};
use mpib_tests::peer::{Peer, accepted, from_peer, recv, send, to_peer, wait};
use mpib_tests::recorder::{FIRST, Mood, first};
use mpib_tests::table::{Ptr, Table, set_profiler, set_profiler_handles};
use mpib_tests::{SHORT, here, isolated, mpib};

const LEN: usize = 1 << 20;

/// Runs `body` with each table that brings a callback, on two rails.
fn profiled(test: &str, body: impl Fn(&'static Table, Ptr)) {
    profiled_with(test, &[], body);
}

fn profiled_with(test: &str, more: &[(&str, &str)], body: impl Fn(&'static Table, Ptr)) {
    isolated(test, &mpib("512", &[&SHORT[..], more].concat()), || {
        set_profiler(Some(first));
        for version in [10, 11, 12] {
            let table = mpib_tests::table::table(version);
            let ctx = init(table);
            body(table, ctx);
            set_profiler_handles(None);
            assert_eq!(table.finalize(ctx), Success);
        }
    });
}

/// How many events are under way.
fn under_way() -> usize {
    FIRST.record().events.iter().filter(|e| e.stops == 0).count()
}

/// A call has just returned the failure: no event may follow.
fn over(why: &'static str) -> usize {
    FIRST.all_over(why);
    FIRST.calls()
}

/// Groups of receives, with handles, that nobody sends to: two events for each of their receives.
fn receives(table: &Table, comm: Ptr, to: &Buffer) -> Vec<Ptr> {
    let groups = [1, 8, 3].map(|n| {
        FIRST.handles();
        let group: Vec<_> = (0..n).map(|tag| (to.addr(), 100, tag, to.mr)).collect();
        let (rc, request) = table.irecv(comm, &group);
        assert_eq!((rc, request.is_null()), (Success, false), "irecv");
        request
    });
    groups.into()
}

#[test]
fn receives_of_a_peer_that_is_killed() {
    profiled(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; LEN]);
        let requests = receives(table, comm, &to);
        assert_eq!(under_way(), 24);
        peer.kill();
        assert_eq!(failure(table, requests[1]), RemoteError);
        let calls = over("test failed");
        requests.into_iter().for_each(|request| assert_eq!(failure(table, request), RemoteError));
        to.dereg();
        assert_eq!((table.close_recv(comm), FIRST.calls()), (Success, calls));
    });
}

/// Sends that are posted to receives of a peer that has died.
#[test]
fn sends_to_a_peer_that_is_killed() {
    profiled(here!(), |table, ctx| {
        let mut peer = Peer::start();
        let comm = to_peer(table, ctx, &mut peer);
        let from = Buffer::new(table, comm, vec![7; LEN]);
        peer.must(&format!("post 8 {LEN}"));
        // The receives are there.
        wait(table, send(table, comm, &from, LEN));
        peer.kill();
        let sends = [0; 3].map(|_| {
            FIRST.handles();
            let (rc, request) = table.isend(comm, from.addr(), LEN, 1, from.mr);
            assert_eq!((rc, request.is_null()), (Success, false), "isend");
            request
        });
        assert_eq!(under_way(), 6);
        assert_eq!(failure(table, sends[0]), RemoteError);
        let calls = over("test failed");
        sends.into_iter().for_each(|request| assert_eq!(failure(table, request), RemoteError));
        from.dereg();
        assert_eq!((table.close_send(comm), FIRST.calls()), (Success, calls));
    });
}

#[test]
fn a_link_that_goes_down() {
    profiled_with(here!(), &[("MPIB_FAILOVER", "0")], |table, ctx| {
        let pair = connect(table, ctx, 0);
        let (to, from) = (pair.recv_buffer(LEN), pair.send_buffer(vec![7; LEN]));
        softverbs::set_link("soft1", false).unwrap();
        FIRST.handles();
        let received = recv(table, pair.recv, &to, LEN);
        FIRST.handles();
        let sent = send(table, pair.send, &from, LEN);
        assert_eq!(under_way(), 4);
        let _ = failure(table, sent);
        let sends: Vec<_> =
            FIRST.record().events.iter().filter(|e| e.len > 0 && e.stops != 1).cloned().collect();
        assert!(sends.is_empty(), "{sends:?}");
        let _ = failure(table, received);
        let calls = over("both ends failed");
        softverbs::set_link("soft1", true).unwrap();
        to.dereg();
        from.dereg();
        pair.close();
        assert_eq!(FIRST.calls(), calls);
    });
}

/// The transfer goes on without the rail, and nothing is reported of what is sent again.
#[test]
fn a_rail_that_dies() {
    profiled(here!(), |table, ctx| {
        let pair = connect(table, ctx, 0);
        let (to, from) = (pair.recv_buffer(LEN), pair.send_buffer(vec![7; LEN]));
        softverbs::set_link("soft1", false).unwrap();
        for _ in 0..3 {
            FIRST.handles();
            let received = recv(table, pair.recv, &to, LEN);
            FIRST.handles();
            let sent = send(table, pair.send, &from, LEN);
            let mut waiting = vec![sent, received];
            until("both requests", || {
                waiting.retain(|request| {
                    let (rc, done, _) = table.test(*request);
                    assert_eq!(rc, Success);
                    !done
                });
                waiting.is_empty().then_some(())
            });
            FIRST.all_over("both requests are done");
        }
        assert!(to.bytes.iter().all(|byte| *byte == 7));
        softverbs::set_link("soft1", true).unwrap();
        to.dereg();
        from.dereg();
        pair.close();
    });
}

/// The one that fails is `isend`, while an earlier group is under way and another waits for the
/// rest of its sends.
#[test]
fn a_send_that_does_not_fit() {
    profiled(here!(), |table, ctx| {
        let pair = connect(table, ctx, 0);
        let (to, from) = (pair.recv_buffer(LEN), pair.send_buffer(vec![7; LEN]));
        let received = receives(table, pair.recv, &to);
        FIRST.handles();
        let whole = pair.isend(from.addr(), 100, 0, from.mr);
        // Not posted before the group is whole.
        let waiting: Vec<_> = (0..7)
            .map(|tag| {
                FIRST.handles();
                pair.isend(from.addr(), 100, tag, from.mr)
            })
            .collect();
        assert_eq!(under_way(), 24 + 1, "all receives, and the send that is posted");
        let calls = FIRST.calls();
        FIRST.handles();
        assert_eq!(table.isend(pair.send, from.addr(), 101, 7, from.mr).0, InvalidUsage);
        assert_eq!((FIRST.calls(), under_way()), (calls + 1, 24), "one end, and no start");
        waiting.into_iter().chain([whole]).for_each(|request| assert_ne!(table.test(request).0, Success));
        // The first got its message before.
        assert_eq!(pair.wait(received[0])[0], 100);
        received[1..].iter().for_each(|request| assert_eq!(failure(table, *request), RemoteError));
        let calls = over("both ends failed");
        to.dereg();
        from.dereg();
        pair.close();
        assert_eq!(FIRST.calls(), calls);
    });
}

/// An immediate twice.
#[test]
fn a_peer_that_breaks_the_protocol() {
    profiled(here!(), |table, ctx| {
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        let liar =
            std::thread::spawn(move || MisbehavingPeer::connect(&handle, &Misbehaviour::default()).unwrap());
        let comm = accepted(table, listen);
        let liar = liar.join().unwrap();
        let to = Buffer::new(table, comm, vec![0; LEN]);
        FIRST.handles();
        let request = recv(table, comm, &to, LEN);
        let layout = ImmLayout::new(2).unwrap();
        let imm = layout.encode(1, 0b11, layout.size(1000));
        liar.signal(1, imm);
        until("rail 1's event to end", || {
            assert_eq!((table.test(request).0, table.test(request).1), (Success, false));
            (under_way() == 1).then_some(())
        });
        assert_eq!(FIRST.record().events.last().map(|e| (e.device, e.stops)), Some((1, 1)));
        liar.signal(1, imm);
        assert_eq!(failure(table, request), RemoteError);
        let calls = over("test failed");
        to.dereg();
        assert_eq!(
            (table.close_recv(comm), table.close_listen(listen), FIRST.calls()),
            (Success, Success, calls)
        );
    });
}

#[test]
fn a_peer_that_closes() {
    profiled(here!(), |table, ctx| {
        let Pair { send, recv: comm, .. } = connect(table, ctx, 0);
        let to = Buffer::new(table, comm, vec![0; LEN]);
        let requests = receives(table, comm, &to);
        assert_eq!(table.close_send(send), Success);
        assert_eq!((under_way(), failure(table, requests[0])), (24, RemoteError));
        let calls = over("test failed");
        to.dereg();
        assert_eq!((table.close_recv(comm), FIRST.calls()), (Success, calls));
    });
}

#[test]
fn comms_that_are_closed_with_requests_under_way() {
    profiled(here!(), |table, ctx| {
        for sender_first in [true, false] {
            let pair = connect(table, ctx, 0);
            let (to, from) = (pair.recv_buffer(LEN), pair.send_buffer(vec![7; LEN]));
            let posted = |_| {
                FIRST.handles();
                recv(table, pair.recv, &to, LEN)
            };
            let _recvs: Vec<_> = (0..20).map(posted).collect();
            let carried = || softverbs::counters().iter().map(|device| device.total.bytes).sum::<u64>();
            let before = carried();
            let posted = |_| {
                FIRST.handles();
                send(table, pair.send, &from, LEN)
            };
            let _sends: Vec<_> = (0..10).map(posted).collect();
            set_profiler_handles(None);
            // A write that finds its memory deregistered would end its connection.
            until("the data", || (carried() - before >= 10 * LEN as u64).then_some(()));
            // Nobody has looked at what completed.
            assert_eq!(under_way(), 2 * 30);
            to.dereg();
            from.dereg();
            let close_send = || {
                assert_eq!(table.close_send(pair.send), Success);
            };
            let close_recv = || assert_eq!(table.close_recv(pair.recv), Success);
            if sender_first {
                close_send();
                assert_eq!(under_way(), 2 * 20);
                close_recv();
            } else {
                close_recv();
                assert_eq!(under_way(), 2 * 10);
                close_send();
            }
            over("both ends are closed");
        }
    });
}

/// A profiler that takes some of the events only: those it took end, the others do not.
#[test]
fn what_was_not_taken_does_not_end_at_a_failure_either() {
    profiled(here!(), |table, ctx| {
        let Pair { send, recv: comm, .. } = connect(table, ctx, 0);
        let to = Buffer::new(table, comm, vec![0; LEN]);
        let before = FIRST.record().events.len();
        for mood in [Mood::Takes, Mood::Leaves, Mood::Fails, Mood::Takes] {
            FIRST.set(mood);
            FIRST.handles();
            recv(table, comm, &to, LEN);
        }
        FIRST.set(Mood::Takes);
        to.dereg();
        assert_eq!((table.close_send(send), table.close_recv(comm)), (Success, Success));
        // Of an operation that it leaves alone it is asked once.
        let stops: Vec<_> = FIRST.record().events[before..].iter().map(|e| e.stops).collect();
        assert_eq!(stops, [1, 1, 0, 0, 1, 1]);
        FIRST.checked();
    });
}
