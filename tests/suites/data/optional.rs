//! Receives with NCCL's hint that their completion is optional, as for LL and LL128: done at once.

use std::time::{Duration, Instant};

use mpib_tests::code::{InvalidArgument, Success};
use mpib_tests::log::{take_warnings, warnings};
use mpib_tests::pair::{Pair, assert_no_rnr, connect, init, pattern, until};
use mpib_tests::recorder::{FIRST, first};
use mpib_tests::table::{TABLES, newest, set_profiler, set_profiler_handles};
use mpib_tests::{SHORT, has_srq, here, isolated, mpib, two_adapters, with_and_without_srq};

use super::optional_util::{OPTIONAL, SLOTS, here, optional, shown, taken, tested};

/// How long a close waits.
const LAST: Duration = Duration::from_millis(200);

//= receives.md: optional receives are done before their data is sent
#[test]
fn optional_receives_are_done_before_their_data_is_sent() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        for table in TABLES.iter().filter(|t| t.version() >= 9) {
            let pair = Pair::new(table);
            // One part, both rails, and a size that only the record holds.
            for (seed, len) in [0, 8, 5000, 100_000, (2 << 20) + 1].into_iter().enumerate() {
                let from = pair.send_buffer(pattern(len.max(1), seed as u64));
                let to = pair.recv_buffer(len + 64);
                let request = optional(table, pair.recv, &to, 0, len + 64);
                taken(table, request);
                // Taken is taken: the request says so, until it is another receive's.
                assert_eq!(table.test(request).0, InvalidArgument, "a request that was taken");
                assert!(take_warnings().pop().unwrap().contains("already done"));
                let send = pair.isend(from.addr(), len, 1, from.mr);
                assert_eq!(pair.wait(send)[0], len as i32);
                until("the data", || here(&to, 0, &from.bytes[..len]));
                from.dereg();
                to.dereg();
            }
            pair.message(3000, 3000, 1);
            pair.close();
        }
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// Tables before v9 have no hint: the value of `*request` has no meaning there, nor for a group.
//= receives.md: receives without the hint, and groups, wait for their data
#[test]
fn without_the_hint_of_a_single_receive_data_is_waited_for() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let waits = |pair: &Pair, n: usize| {
            let (from, to) = (pair.send_buffer(pattern(100, 5)), pair.recv_buffer(800));
            let group: Vec<_> = (0..n).map(|i| (to.addr() + 100 * i, 100, i as i32, to.mr)).collect();
            let (rc, request) = pair.table.irecv_as(pair.recv, &group, OPTIONAL);
            assert_eq!((rc, request.is_null()), (Success, false));
            (0..100).for_each(|_| assert!(!tested(pair.table, request).0, "done without data"));
            let sends: Vec<_> = (0..n).map(|i| pair.isend(from.addr(), 90 + i, i as i32, from.mr)).collect();
            let sizes = pair.wait(request);
            assert!(sizes[..n].iter().enumerate().all(|(i, size)| *size == 90 + i as i32), "{sizes:?}");
            sends.into_iter().for_each(|send| assert!(pair.wait(send)[0] >= 90));
            from.dereg();
            to.dereg();
        };
        for table in TABLES {
            let pair = Pair::new(table);
            let sizes = if table.version() < 9 { 1..=3 } else { 2..=8 };
            sizes.for_each(|n| waits(&pair, n));
            // Other numbers mean nothing either.
            let to = pair.recv_buffer(8);
            let (rc, request) = table.irecv_as(pair.recv, &[(to.addr(), 8, 1, to.mr)], 2);
            assert_eq!((rc, tested(table, request).0), (Success, false));
            pair.close();
        }
    });
}

//= receives.md: test returns the size if the data came first
#[test]
fn a_size_is_returned_if_the_data_came_before_the_test() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let pair = Pair::new(table);
        for len in [0, 7, 4000, (2 << 20) + 1] {
            let (from, to) = (pair.send_buffer(pattern(len.max(1), 3)), pair.recv_buffer(len + 16));
            let request = optional(table, pair.recv, &to, 0, len + 16);
            assert_eq!(pair.wait(pair.isend(from.addr(), len, 1, from.mr))[0], len as i32);
            // An ordinary one after it: its arrival is taken by a look that takes the other's, too.
            pair.message(100, 100, 9);
            assert_eq!(tested(table, request), (true, len as i32));
            from.dereg();
            to.dereg();
        }
        pair.close();
    });
}

/// NCCL's own event of such a receive is over before its data comes: none of ours is below it.
//= receives.md: optional receives have no profiler events
#[test]
fn optional_receives_have_no_events_of_the_profiler() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        set_profiler(Some(first));
        for table in TABLES.iter().filter(|t| t.version() >= 10) {
            let pair = Pair::new(table);
            let (from, to) = (pair.send_buffer(pattern(1000, 1)), pair.recv_buffer(1000));
            for hint in [OPTIONAL, 0] {
                let handles = FIRST.handles();
                let (rc, request) = table.irecv_as(pair.recv, &[(to.addr(), 1000, 1, to.mr)], hint);
                assert_eq!((rc, request.is_null()), (Success, false));
                set_profiler_handles(None);
                if hint == OPTIONAL {
                    taken(table, request);
                    let events = FIRST.over(handles[0], "an optional receive was done");
                    assert!(events.is_empty(), "{events:?}");
                }
                pair.wait(pair.isend(from.addr(), 1000, 1, from.mr));
                if hint == 0 {
                    pair.wait(request);
                    assert_eq!(FIRST.over(handles[0], "a receive was done").len(), 2, "one for each rail");
                }
            }
            from.dereg();
            to.dereg();
            pair.close();
            FIRST.checked();
        }
    });
}

/// NCCL asks for every receive at once; the sender is late. Each slot is used again only when its
/// data has come, and the sender never finds a queue without a receive. `most`: receives ahead of
/// the sender.
fn come_round(most: usize) {
    let table = newest();
    let pair = Pair::new(table);
    let (len, rounds) = (512, 5 * SLOTS);
    let from = pair.send_buffer(pattern(rounds * len, 1));
    let to = pair.recv_buffer(rounds * len);
    let group = |n: usize| [(to.addr() + n * len, len, 1, to.mr)];
    let (mut posted, mut sent, mut ahead) = (0, 0, 0);
    while sent < rounds {
        // As many receives as there are slots.
        while posted < rounds {
            let (rc, request) = table.irecv_as(pair.recv, &group(posted), OPTIONAL);
            assert_eq!(rc, Success);
            if request.is_null() {
                break;
            }
            taken(table, request);
            posted += 1;
        }
        ahead = ahead.max(posted - sent);
        assert!(posted - sent <= most, "{posted} receives, {sent} sends");
        let n = posted.min(sent + 1 + sent % 7);
        for i in sent..n {
            let send = pair.isend(from.addr() + i * len, len, 1, from.mr);
            assert_eq!(pair.wait(send)[0], len as i32);
            until("the data", || here(&to, i * len, &from.bytes[i * len..(i + 1) * len]));
        }
        sent = n;
    }
    assert_eq!(ahead, most);
    assert_no_rnr();
    from.dereg();
    to.dereg();
    pair.close();
}

//= receives.md: slots and receive queues hold with a late sender
#[test]
fn all_slots_come_round_with_a_late_sender() {
    with_and_without_srq(here!(), &mpib("0", &[]), || come_round(SLOTS));
}

//= receives.md: slots and receive queues hold with a late sender
#[test]
fn all_slots_come_round_on_both_rails() {
    with_and_without_srq(here!(), &mpib("512", &[]), || come_round(SLOTS));
}

/// Of two receives one is for the slot under way, and one more than there are slots.
//= receives.md: slots and receive queues hold with a late sender
#[test]
fn slots_wait_for_the_receives_of_small_queues() {
    let devices = two_adapters("max_srq_wr=3");
    isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", &devices)]), || {
        if has_srq() {
            come_round(2);
        }
    });
}

/// The queues of the queue pairs are shorter than the slots that use them.
//= receives.md: slots and receive queues hold with a late sender
#[test]
fn slots_wait_for_the_receives_of_small_queues_of_queue_pairs() {
    let devices = two_adapters("without=srq,max_qp_wr=16");
    isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", &devices)]), || come_round(16));
}

/// Optional receives are in flight until their data has arrived. Messages and bytes count from then
/// on, even without a call at the receiver.
//= receives.md: an optional receive counts as in flight until its data is seen
#[test]
fn outstanding_data_is_in_flight_until_it_is_polled() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let pair = Pair::new(table);
        let (from, to) = (pair.send_buffer(pattern(1000, 1)), pair.recv_buffer(1000));
        for _ in 0..3 {
            taken(table, optional(table, pair.recv, &to, 0, 1000));
        }
        let now = shown();
        assert_eq!(
            (now.totals.requests, now.in_flight(), now.totals.messages, now.totals.bytes),
            (3, 3, 0, 0)
        );
        for len in [1000, 0, 10] {
            pair.wait(pair.isend(from.addr(), len, 1, from.mr));
        }
        // Without a call at the receiver, the thread `mpib-events` polls the arrivals.
        until("the arrivals to be taken", || (shown().in_flight() == 0).then_some(()));
        let now = shown();
        assert_eq!(
            (now.totals.requests, now.totals.messages, now.totals.bytes, now.totals.errors),
            (3, 3, 1010, 0)
        );
        from.dereg();
        to.dereg();
        pair.close();
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// A receiver that closes while data is in flight waits for the data, and the sender's write
/// succeeds. One rail is so slow that its part has not arrived when the close begins.
//= receives.md: closeRecv waits for outstanding immediates, with a limit
#[test]
fn a_close_waits_for_outstanding_arrivals() {
    let devices = "soft0:addr=192.168.200.1/24;soft1:addr=192.168.201.1/24,rate=0.01GB";
    let env = [&SHORT[..], &[("SOFTVERBS_DEVICES", devices)]].concat();
    with_and_without_srq(here!(), &mpib("512", &env), || {
        let table = newest();
        let ctx = init(table);
        let len = 512 << 10;
        until("a close that had the time", || {
            let pair = connect(table, ctx, 0);
            let (from, to) = (pair.send_buffer(pattern(len, 4)), pair.recv_buffer(len));
            taken(table, optional(table, pair.recv, &to, 0, len));
            let request = pair.isend(from.addr(), len, 1, from.mr);
            let late = here(&to, 0, &from.bytes).is_none();
            let Pair { send, recv, .. } = pair;
            let before = Instant::now();
            assert_eq!(table.close_recv(recv), Success);
            let patient = before.elapsed() >= LAST;
            let (rc, size) = until("the send", || {
                let (rc, done, sizes) = table.test(request);
                (rc != Success || done).then_some((rc, sizes[0] as usize))
            });
            assert!(
                (rc, size) == (Success, len) || patient,
                "test gives {rc}, {size} bytes: close has not waited"
            );
            from.dereg();
            // Its comm is closed, and writes may have come until a moment ago.
            std::mem::forget(to);
            assert_eq!(table.close_send(send), Success);
            // On a busy machine the data may arrive before the close, or after its limit.
            (rc == Success && late).then_some(())
        });
    });
}

/// Close does not wait forever for data that is never sent, with or without a living peer.
//= receives.md: closeRecv waits for outstanding immediates, with a limit
#[test]
fn a_close_ends_without_the_data() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        for is_closed in [false, true] {
            let pair = connect(table, ctx, 0);
            let to = pair.recv_buffer(100);
            taken(table, optional(table, pair.recv, &to, 0, 100));
            let untaken = optional(table, pair.recv, &to, 0, 100);
            assert!(!untaken.is_null());
            to.dereg();
            let Pair { send, recv, .. } = pair;
            if is_closed {
                assert_eq!(table.close_send(send), Success);
            }
            assert_eq!(table.close_recv(recv), Success);
            if !is_closed {
                assert_eq!(table.close_send(send), Success);
            }
        }
        assert_eq!(table.finalize(ctx), Success);
        // No receiver remains: all queue pairs are destroyed.
        assert_eq!(softverbs::objects().unwrap().qps, 0);
    });
}
