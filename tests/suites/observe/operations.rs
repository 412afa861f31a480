//! NCCL's operations in the statistics page: its profiler table, called as NCCL does, joined with the
//! messages that the network table sends.

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::profiled::{ON, Profiled, callback, stop};
use mpib_tests::table::{Ptr, set_profiler, set_profiler_handles, table};
use mpib_tests::{here, isolated, mpib};
use nccl_net_mpib_agent_iface::stats::{Communicator, STATS_OPERATIONS, StatsPage, pages_of};

const MIB: usize = 1 << 20;

/// Sends a message for a step of a part.
fn message(world: &Profiled, pair: &Pair, part: Ptr, bytes: usize) {
    let step = world.step(part);
    set_profiler_handles(Some([step; 8]));
    pair.message(bytes, bytes, 1);
    set_profiler_handles(None);
    stop(step);
}

/// Reads what the page of this process has.
fn page() -> (StatsPage, Vec<Communicator>) {
    let page = pages_of(std::process::id()).unwrap().remove(0);
    let communicators = page.communicators();
    (page, communicators)
}

#[test]
fn an_operation_has_what_its_messages_have_sent_on_each_rail() {
    isolated(here!(), &mpib("256", &[ON]), || {
        set_profiler(Some(callback));
        let ctx = init(table(12));
        let world = Profiled::new().unwrap();
        let pair = connect(table(12), ctx, 0);
        let quiet = world.operation(1);
        let operation = world.operation(2);
        // Its kernel is launched.
        stop(operation);
        let parts = [0; 2].map(|_| world.part(operation, std::process::id()));
        assert!(world.part(operation, 1).is_null(), "an operation of another process");
        message(&world, &pair, parts[0], MIB);
        stop(parts[0]);
        let running = page().1[0].operations[1].clone();
        assert!(running.is_running && running.took().is_none(), "{running:?}");
        message(&world, &pair, parts[1], MIB);
        stop(parts[1]);
        pair.message(MIB, MIB, 1);

        let (page, communicators) = page();
        let [communicator] = &communicators[..] else { panic!("{communicators:?}") };
        let Communicator { id, rank, ranks, begun, dropped, .. } = *communicator;
        assert_eq!((id, rank, ranks, begun, dropped), (0xc0ffee, 3, 8, 2, 0));
        assert_eq!(communicator.name, "world");
        let [first, done] = &communicator.operations[..] else { panic!("{communicator:?}") };
        assert_eq!((first.sequence, first.begun, first.took()), (1, None, None));
        assert_eq!((done.sequence, done.bytes, done.channels), (2, 4 << 20, 2));
        assert_eq!([&done.name, &done.algorithm, &done.protocol], ["AllReduce", "RING", "SIMPLE"]);
        assert!(done.took().is_some_and(|took| took > 0), "{done:?}");
        let ports = page.ports();
        let rails: Vec<_> = done.rails.iter().map(|r| (ports[r.port].name.as_str(), r.bytes)).collect();
        assert_eq!(rails, [("soft0:1", 3 << 19), ("soft1:1", 1 << 19)]);
        assert!(done.rails.iter().all(|rail| rail.in_flight > 0), "{done:?}");
        assert!(!quiet.is_null());
        world.close();
        assert_eq!(page.communicators(), []);
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn an_operation_that_was_overwritten_counts_nothing() {
    isolated(here!(), &mpib("256", &[ON]), || {
        set_profiler(Some(callback));
        let ctx = init(table(12));
        let world = Profiled::new().unwrap();
        let pair = connect(table(12), ctx, 0);
        let old = world.operation(1);
        (2..=STATS_OPERATIONS as u64 + 1).for_each(|n| assert!(!world.operation(n).is_null()));
        assert!(world.part(old, std::process::id()).is_null());
        // The place of one that is under way is not taken.
        let busy = world.operation(500);
        let part = world.part(busy, std::process::id());
        let left = (0..STATS_OPERATIONS as u64).filter(|n| world.operation(501 + n).is_null());
        assert_eq!(left.count(), 1);
        message(&world, &pair, part, MIB);
        stop(part);
        let communicators = page().1;
        assert_eq!((communicators[0].begun, communicators[0].dropped), (STATS_OPERATIONS as u64 * 2 + 2, 1));
        let sent: Vec<_> = communicators[0].operations.iter().filter(|o| !o.rails.is_empty()).collect();
        assert_eq!(sent.iter().map(|o| o.sequence).collect::<Vec<_>>(), [500]);
        // It is the slowest one of those that are overwritten from here on.
        (0..STATS_OPERATIONS as u64).for_each(|n| assert!(!world.operation(1000 + n).is_null()));
        let slowest = page().1.remove(0).slowest;
        assert_eq!(slowest.iter().map(|o| o.sequence).collect::<Vec<_>>(), [500]);
        assert_eq!(slowest[0].rails, sent[0].rails);
        world.close();
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

#[test]
fn without_the_variable_nothing_is_reported() {
    isolated(here!(), &mpib("256", &[]), || {
        let ctx = init(table(12));
        assert_eq!(Profiled::new().map(drop), Err(0));
        assert_eq!(page().1, []);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
