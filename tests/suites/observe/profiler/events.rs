//! NCCL's profiler: the events of sends and receives, through the tables that bring its callback.

use std::ffi::c_int;
use std::ptr::null_mut;

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Pair, connect, init, pattern, until};
use mpib_tests::recorder::{FIRST, Mood, SECOND, first, second};
use mpib_tests::table::{Ptr, TABLES, Table, set_profiler, set_profiler_handles, table};
use mpib_tests::vdevices::{VERSIONS, rails, speeds};
use mpib_tests::{BY_SPEED, SPLIT_ALL, here, isolated, mpib};

use super::util::{MOST, Rails, Rig, SOFT, judge};

const MIB: usize = 1 << 20;
const ALONE: &[usize] = &[0, 1, 127, 128, 255, 256, 4096, 8192, 8193, 65_537, MIB, 2 * MIB + 1, MOST];
const GROUPS: &[&[usize]] = &[
    &[0; 8],
    &[1; 8],
    &[100, 0, 4096, 65_537, 0, 128, 256, 300_000],
    &[0, 0, 0, 0, 0, 0, 0, 9],
    &[MIB, MIB],
    &[0, 1, 2],
];

fn all_of(rig: &mut Rig, rails: &Rails) {
    ALONE.iter().for_each(|len| judge(rig, rails, &[*len]));
    GROUPS.iter().for_each(|lens| judge(rig, rails, lens));
    // Enough messages to use every queue pair and every request.
    (0..300).for_each(|_| judge(rig, rails, &[1000]));
}

/// Everything, over the newest table, on a device made of the first `fused` adapters.
fn on(test: &str, env: &[(&str, &str)], fused: usize, rails: &Rails, qps: usize) {
    isolated(test, &[env, &[SPLIT_ALL]].concat(), || {
        set_profiler(Some(first));
        let ctx = init(table(12));
        let dev = if fused > 1 { VERSIONS[3].fuse(&(0..fused as c_int).collect::<Vec<_>>()) } else { 0 };
        let mut rig = Rig::new(connect(table(12), ctx, dev));
        all_of(&mut rig, rails);
        assert_eq!(rig.joined.len(), qps, "queue pairs that carried data: {:?}", rig.joined);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn each_table_with_a_callback_reports_both_rails() {
    isolated(here!(), &mpib("512", &[]), || {
        set_profiler(Some(first));
        for version in [10, 11, 12] {
            let ctx = init(table(version));
            let mut rig = Rig::new(connect(table(version), ctx, 0));
            all_of(&mut rig, &SOFT);
            rig.close();
            assert_eq!(table(version).finalize(ctx), Success);
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// The sender sends all on SOUT; the receiver cannot know that.
#[test]
fn receives_end_on_the_rail_that_carries_nothing() {
    on(here!(), &mpib("0", &[]), 1, &Rails { weights: &[1, 0], ..SOFT }, 2);
}

#[test]
fn a_rail_that_may_not_carry_data_has_no_events() {
    on(here!(), &mpib_tests::TWO_RAILS, 1, &Rails { weights: &[0, 1], carriers: &[1], ..SOFT }, 4);
}

#[test]
fn several_queue_pairs_of_a_rail_alternate() {
    on(here!(), &mpib("512", &[("MPIB_SOUT_QP", "2"), ("MPIB_SUP_QP", "3")]), 1, &SOFT, 5);
}

#[test]
fn four_fused_rails_have_an_event_each() {
    let (devices, speed) = (rails(4, 1), speeds(&[400_000, 300_000, 200_000, 100_000]));
    let env = [("SOFTVERBS_DEVICES", devices.as_str()), ("MPIB_RAIL_SPEED", &speed), BY_SPEED];
    let rails = Rails {
        names: &["r0", "r1", "r2", "r3"],
        devices: &[0, 1, 2, 3],
        weights: &[4, 3, 2, 1],
        carriers: &[0, 1, 2, 3],
        ..SOFT
    };
    on(here!(), &env, 4, &rails, 4);
}

/// A stripe is a queue pair that carries a part of each message.
#[test]
fn stripes_have_an_event_each() {
    let devices = rails(2, 1);
    let env = [
        ("SOFTVERBS_DEVICES", devices.as_str()),
        ("NCCL_IB_QPS_PER_CONNECTION", "3"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        BY_SPEED,
    ];
    let rails = Rails {
        names: &["r0", "r1"],
        devices: &[0, 0, 0, 1, 1, 1],
        weights: &[1; 6],
        carriers: &[0, 1, 2, 3, 4, 5],
        ..SOFT
    };
    on(here!(), &env, 2, &rails, 6);
}

#[test]
fn a_message_with_a_separate_immediate_is_a_write() {
    on(here!(), &mpib("512", &[("NCCL_IB_ADAPTIVE_ROUTING", "1")]), 1, &Rails { apart: 8192, ..SOFT }, 6);
}

/// A rail's event ends when the rail is done, not when the message is.
#[test]
fn events_of_a_message_end_one_after_the_other() {
    isolated(here!(), &mpib("512", &[("MPIB_FAILOVER", "0")]), || {
        set_profiler(Some(first));
        let pair = connect(table(12), init(table(12)), 0);
        let (from, to) = (pair.send_buffer(pattern(MIB, 1)), pair.recv_buffer(MIB));
        softverbs::set_link("soft1", false).unwrap();
        let received = FIRST.handles()[0];
        let recv = pair.irecv(&[(to.addr(), MIB, 1, to.mr)]);
        let sent = FIRST.handles()[0];
        let send = pair.isend(from.addr(), MIB, 1, from.mr);
        let ends = |handle| FIRST.of(handle).iter().map(|e| e.stops).collect::<Vec<_>>();
        for (request, handle) in [(send, sent), (recv, received)] {
            assert_eq!(ends(handle), [0, 0]);
            until("the first rail", || {
                let (rc, done, _) = table(12).test(request);
                assert_eq!((rc, done), (Success, false));
                (ends(handle) != [0, 0]).then_some(())
            });
            assert_eq!(ends(handle), [1, 0]);
        }
        softverbs::set_link("soft1", true).unwrap();
        for (request, handle) in [(send, sent), (recv, received)] {
            pair.wait(request);
            FIRST.over(handle, "it was done");
        }
        assert!(to.bytes == from.bytes);
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// As NCCL's bootstrap, which has no operation to show.
#[test]
fn without_handles_nothing_is_called() {
    isolated(here!(), &mpib("512", &[]), || {
        set_profiler(Some(first));
        for table in TABLES {
            let ctx = init(table);
            let pair = connect(table, ctx, 0);
            for handles in [None, Some([null_mut(); 8])] {
                set_profiler_handles(handles);
                pair.message(5000, 5000, 1);
                pair.message(2 * MIB + 1, MOST, 2);
            }
            pair.close();
            assert_eq!((FIRST.calls(), table.finalize(ctx)), (0, Success), "v{}", table.version());
        }
    });
}

/// These tables have no place for a callback, though another table's init brought one to the
/// process.
#[test]
fn up_to_v9_nothing_is_called() {
    isolated(here!(), &mpib("512", &[]), || {
        set_profiler(Some(first));
        init(table(10));
        FIRST.handles();
        for table in TABLES.iter().filter(|t| t.version() < 10) {
            let ctx = init(table);
            let pair = connect(table, ctx, 0);
            pair.message(5000, 5000, 1);
            pair.close();
            assert_eq!(FIRST.calls(), 0, "v{}", table.version());
        }
        // What they brought does not take v10 its callback.
        let mut rig = Rig::new(connect(table(10), null_mut(), 0));
        judge(&mut rig, &SOFT, &[5000]);
        rig.close();
    });
}

/// Handles, but no callback.
#[test]
fn without_a_callback_data_goes_on() {
    isolated(here!(), &mpib("512", &[]), || {
        for version in [10, 11, 12] {
            let ctx = init(table(version));
            FIRST.handles();
            let pair = connect(table(version), ctx, 0);
            [0, 5000, 2 * MIB + 1].iter().for_each(|len| pair.message(*len, MOST, 1));
            pair.close();
            assert_eq!(table(version).finalize(ctx), Success);
        }
    });
}

/// Of the next exchanges the profiler takes nothing: data goes on, and nothing ends that has not
/// begun.
fn in_mood(test: &str, mood: Mood) {
    isolated(test, &mpib("512", &[]), || {
        set_profiler(Some(first));
        let mut rig = Rig::new(connect(table(12), init(table(12)), 0));
        FIRST.set(mood);
        for lens in [&[5000][..], &[0], &[1, 2, 0, 100_000]] {
            rig.exchange(lens);
        }
        let calls = FIRST.calls();
        assert!(calls > 10 && FIRST.record().events.len() == calls, "{calls} calls, all of them starts");
        // It may take the next ones: an event mask can change.
        FIRST.set(Mood::Takes);
        judge(&mut rig, &SOFT, &[5000]);
        rig.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn what_the_profiler_does_not_take_has_no_end() {
    in_mood(here!(), Mood::Leaves);
}

#[test]
fn a_profiler_that_fails_stops_no_data() {
    in_mood(here!(), Mood::Fails);
}

/// One message; which profilers got events.
fn calls_during(pair: &Pair) -> [usize; 2] {
    let before = [FIRST.calls(), SECOND.calls()];
    FIRST.handles();
    pair.message(5000, 5000, 1);
    set_profiler_handles(None);
    [FIRST.calls() - before[0], SECOND.calls() - before[1]]
}

#[test]
fn each_communicator_has_its_own_profiler() {
    isolated(here!(), &mpib("512", &[]), || {
        let made = |table: &'static Table, callback| -> (Ptr, Pair) {
            set_profiler(callback);
            let ctx = init(table);
            (ctx, connect(table, ctx, 0))
        };
        // Two sends' events and two receives', each begun and ended.
        for version in [11, 12] {
            let a = made(table(version), Some(first));
            let b = made(table(version), Some(second));
            let c = made(table(version), None);
            assert_eq!([&a, &b, &c].map(|(_, pair)| calls_during(pair)), [[8, 0], [0, 8], [0, 0]]);
            // Events of a later connection of the context go to the same callback.
            let again = connect(table(version), a.0, 0);
            assert_eq!(calls_during(&again), [8, 0]);
            again.close();
            for (ctx, pair) in [a, b, c] {
                pair.close();
                assert_eq!(table(version).finalize(ctx), Success);
            }
        }
        // The process has one context, and each init passes a callback. A new connection uses the
        // latest one, because an earlier one may belong to a library that was unloaded.
        let a = made(table(10), Some(first));
        let b = made(table(10), Some(second));
        assert_eq!([calls_during(&a.1), calls_during(&b.1)], [[8, 0], [0, 8]]);
        let c = made(table(10), None);
        assert_eq!(calls_during(&c.1), [0, 0]);
        [a, b, c].into_iter().for_each(|(_, pair)| pair.close());
    });
}
