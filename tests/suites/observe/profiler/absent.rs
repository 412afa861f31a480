//! NCCL passes handles of operations with and without a profiler. If no profiler takes events, the
//! plugin reports them seldom; a profiler that begins to take events soon gets all of them.

use mpib_tests::code::Success;
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::recorder::{FIRST, Mood, first};
use mpib_tests::table::{newest, set_profiler};
use mpib_tests::{here, isolated, mpib};

/// Transfers one message by new operations. Returns how many events were begun for its two ends.
fn message(pair: &Pair, seed: u64) -> [usize; 2] {
    let (from, to) = (pair.send_buffer(vec![seed as u8; 100]), pair.recv_buffer(100));
    let received = FIRST.handles()[0];
    let recv = pair.irecv(&[(to.addr(), 100, 7, to.mr)]);
    let sent = FIRST.handles()[0];
    let send = pair.isend(from.addr(), 100, 7, from.mr);
    pair.wait(send);
    pair.wait(recv);
    assert!(to.bytes == from.bytes);
    from.dereg();
    to.dereg();
    [FIRST.over(sent, "done").len(), FIRST.over(received, "done").len()]
}

#[test]
fn operations_are_reported_seldom_until_a_profiler_takes_events_and_always_from_then_on() {
    isolated(here!(), &mpib("0", &[]), || {
        set_profiler(Some(first));
        FIRST.set(Mood::Leaves);
        let ctx = init(newest());
        let pair = connect(newest(), ctx, 0);
        let events: Vec<_> = (0..320).map(|i| message(&pair, i)).collect();
        for end in 0..2 {
            let of = |range: std::ops::Range<usize>| events[range].iter().filter(|t| t[end] > 0).count();
            assert_eq!((of(0..64), of(64..320)), (64, 256 / 32), "end {end}: {events:?}");
        }
        FIRST.set(Mood::Takes);
        let events: Vec<_> = (0..100).map(|i| message(&pair, i)).collect();
        let noticed = events.iter().position(|t| t.iter().any(|n| *n > 0)).unwrap();
        assert!(noticed < 32, "{events:?}");
        assert!(events[noticed + 1..].iter().all(|t| t.iter().all(|n| *n > 0)), "{events:?}");
        // Another connection's too, and its first.
        let other = connect(newest(), ctx, 0);
        assert!(message(&other, 1).iter().all(|n| *n > 0));
        FIRST.set(Mood::Leaves);
        let events: Vec<_> = (0..100).map(|i| message(&other, i)).collect();
        assert!(events.iter().all(|t| t.iter().all(|n| *n > 0)), "a profiler that pauses is still there");
        FIRST.set(Mood::Takes);
        other.close();
        pair.close();
        assert_eq!(newest().finalize(ctx), Success);
    });
}
