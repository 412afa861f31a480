//! Groups from their first put to their end: which connections they make, late windows, wrong calls,
//! ranks that die.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use mpib_tests::code::{InvalidArgument, InvalidUsage, RemoteError, Success, known};
use mpib_tests::log::{assert_warned, c_logger, has_logged, take_warning, take_warnings};
use mpib_tests::pair::{LIMIT, Polling, init, until};
use mpib_tests::peer::{Peer, answer, commands, handle_of, word};
use mpib_tests::process::Role;
use mpib_tests::rma::{CUDA, Group, HOST, NOWHERE, OF_SIGNALS, Window, rma_table, rma_tables};
use mpib_tests::stats::Reader;
use mpib_tests::table::{newest, table};
use mpib_tests::{NO_PINGS, here, isolated, isolated_with, mpib};
use softverbs::{Call, objects};

use super::traffic::LATE;

fn queue_pairs() -> usize {
    objects().unwrap().qps
}

/// A group of many ranks costs queue pairs for the ranks alone that it puts to.
#[test]
fn ranks_connect_at_their_first_put() {
    isolated(here!(), &mpib("512", &[]), || {
        let group = Group::new(rma_table(16), 32, 4);
        let window = group.window(HOST, 64, 0);
        (0..300).for_each(|_| group.progress());
        assert_eq!(queue_pairs(), 0, "without a put");
        let mut after = Vec::new();
        for to in [1, 2] {
            for _ in 0..3 {
                group.wait([group.put(0, window.at(0, 0), 64, window.at(0, 64), to)]);
            }
            after.push(queue_pairs());
        }
        assert!(after[0] > 0 && after[1] == 2 * after[0], "{after:?}");
        group.deregister(window);
        group.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

//= stats.md: connections of one-sided traffic are shown as those of windows
#[test]
fn the_page_has_connections_of_windows() {
    isolated(here!(), &mpib("512", &[]), || {
        let mut reader = Reader::start();
        let group = Group::new(rma_table(16), 2, 1);
        let window = group.window(HOST, 64, 0);
        group.wait([group.put(0, window.at(0, 0), 64, window.at(0, 64), 1)]);
        let seen = reader.here().connections;
        let kinds: Vec<_> = seen.iter().map(|c| (c.text("direction"), c.text("traffic"))).collect();
        let both =
            [("send", "window"), ("recv", "window")].map(|kind| kinds.iter().filter(|k| **k == kind).count());
        assert_eq!((both, kinds.len()), ([2, 2], 4), "commands and data, both ends: {seen:?}");
        // Its receivers have receives posted. Housekeeping has passed several times in a second.
        let begun = Instant::now();
        group.until("a second", || (begun.elapsed() >= Duration::from_secs(1)).then_some(()));
        let waits: Vec<_> = reader.here().connections.iter().map(|c| c.text("wait").to_owned()).collect();
        assert_eq!(waits, ["none"; 4], "nothing is asked of them");
        group.deregister(window);
        group.close();
    });
}

/// NCCL has up to 256 requests outstanding for each peer and context, and each call returns one.
#[test]
fn so_many_puts_as_nccl_begins_have_a_request() {
    isolated(here!(), &mpib("512", &[]), || {
        const EACH: usize = 256;
        let group = Group::new(rma_table(16), 2, 4);
        let (window, signals) = (group.window(HOST, 4096, 0), group.window(HOST, 1, OF_SIGNALS));
        let mut requests = Vec::new();
        for put in 0..EACH {
            for context in 0..4 {
                for to in 0..2 {
                    let (src, dst) = (window.at(0, 0), window.at(0, 8 * put));
                    let signal = (signals.at(0, 0), 1);
                    requests.push(group.put_signal((0, context), src, 8 + put, dst, to, signal));
                }
            }
        }
        group.wait(requests);
        let all = 4 * EACH as u64;
        group.until("signals", || (0..2).all(|rank| signals.word(rank, 0) == all).then_some(()));
        [window, signals].into_iter().for_each(|window| group.deregister(window));
        group.close();
    });
}

/// A put may reach a rank that registers the window later.
#[test]
fn a_put_waits_for_the_window() {
    isolated(here!(), &mpib("512", &[LATE]), || {
        for kind in [HOST, CUDA] {
            let group = Group::new(rma_table(16), 2, 1);
            let (first, signals) = (group.window(kind, 8, 0), group.window(kind, 2, OF_SIGNALS));
            let mut late = group.part_of_a_window();
            group.register(&mut late, 0, kind, 64 * 1024, 0);
            late.write(0, 0, &[7; 300_000]);
            let mut requests = Vec::new();
            for size in [8, 961, 300_000] {
                let signal = (signals.at(0, 0), 1);
                requests.push(group.put_signal((0, 0), late.at(0, 0), size, late.at(0, 8), 1, signal));
            }
            (0..2000).for_each(|_| group.progress());
            assert_eq!(signals.word(1, 0), 0, "a signal without its window");
            group.register(&mut late, 1, kind, 64 * 1024, 0);
            group.wait(requests);
            group.until("signals", || (signals.word(1, 0) == 3).then_some(()));
            assert!(late.read(1, 8, 300_000) == [7; 300_000]);
            [first, signals, late].into_iter().for_each(|window| group.deregister(window));
            group.close();
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// A small put is complete for its origin before the target has handled it: it may come too late.
#[test]
fn a_put_into_a_window_that_has_ended_is_dropped() {
    isolated(here!(), &mpib("512", &[]), || {
        let group = Group::new(rma_table(16), 2, 1);
        let (window, signals) = (group.window(HOST, 8, 0), group.window(HOST, 1, OF_SIGNALS));
        group.wait([group.put_signal((0, 0), NOWHERE, 0, NOWHERE, 1, (signals.at(0, 0), 1))]);
        group.until("the first signal", || (signals.word(1, 0) == 1).then_some(()));
        group.stop(1);
        group.wait([group.put(0, window.at(0, 0), 8, window.at(0, 8), 1)]);
        group.deregister(window);
        group.resume(1);
        group.wait([group.put_signal((0, 0), NOWHERE, 0, NOWHERE, 1, (signals.at(0, 0), 1))]);
        group.until("the second signal", || (signals.word(1, 0) == 2).then_some(()));
        group.deregister(signals);
        group.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// A signal on the GPU is seen before the adapter's flush behind it has ended. The window may end then,
/// and signals of other windows go on.
#[test]
fn a_window_ends_as_soon_as_its_signal_is_seen() {
    isolated(here!(), &mpib("512", &[LATE]), || {
        let group = Group::new(rma_table(16), 2, 1);
        for round in 0..20 {
            let signals = group.window(CUDA, 1, OF_SIGNALS);
            let polling = Polling::start();
            let request = group.put_signal((0, 0), NOWHERE, 0, NOWHERE, 1, (signals.at(0, 0), 1));
            while signals.word(1, 0) == 0 {
                group.progress();
                assert!(polling.pause() < LIMIT, "no signal in window {round}");
            }
            group.deregister(signals);
            group.wait([request]);
        }
        group.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// What NCCL would never ask for. Each answer is an error, and the group goes on.
#[test]
fn wrong_calls_are_refused() {
    isolated(here!(), &mpib("512", &[]), || {
        let net = init(newest());
        for rma in rma_tables() {
            let group = Group::new(rma, 2, 2);
            let window = group.window(HOST, 8, 0);
            let (ctx, mut request) = (group.ranks[0].ctx, null_mut());
            let (place, at) = (window.at(0, 0), |offset| window.at(0, offset));
            let mut put = |context, src, size, dst, rank| {
                let rc = rma.iput(ctx, context, src, size, dst, rank, &raw mut request);
                assert!(request.is_null());
                known(rc)
            };
            for (what, said, rc) in [
                ("a rank", "expected one of this group", put(0, place, 8, place, 2)),
                ("a context", "expected one below 2", put(2, place, 8, place, 1)),
                ("a source", "not inside of window", put(0, at(60), 8, place, 1)),
                ("no source", "is NULL", put(0, NOWHERE, 8, place, 1)),
            ] {
                assert_eq!(rc, InvalidArgument, "{what}");
                assert_warned(&[said]);
            }
            let mut signal = |place, value, operation| {
                let signal = (place, value, operation);
                known(rma.iput_signal(ctx, 0, NOWHERE, 0, NOWHERE, 1, signal, true, &raw mut request))
            };
            assert_eq!(signal(at(4), 1, 2), InvalidArgument, "a word that is not aligned");
            assert_eq!(signal(at(64), 1, 2), InvalidArgument, "a word behind the window");
            assert_eq!(signal(place, 1, 3), InvalidArgument, "an operation");
            for (size, dst) in [(8, at(60)), (64, at(8))] {
                let rc = rma.iput(ctx, 0, place, size, dst, 0, &raw mut request);
                assert_eq!(known(rc), InvalidArgument, "a place behind the rank's own window");
            }
            let done = group.put(0, place, 8, at(8), 1);
            group.wait([done]);
            assert_eq!(group.test(done), Err(InvalidArgument), "a request that is done");
            assert_warned(&["the request was done before"]);
            assert_eq!(known(rma.destroy_context(null_mut())), Success);
            assert_eq!(known(rma.progress(net)), InvalidArgument, "a context of the network table");
            assert_eq!(rma.has_error(ctx), (Success, false));
            take_warnings();
            group.wait([group.put(0, place, 8, at(8), 1)]);
            group.deregister(window);
            group.close();
        }
        assert_eq!(newest().finalize(net), Success);
        assert_eq!(table(12).name(), "MPIB");
        take_warnings();
    });
}

/// A command that names what the target's window does not have ends the connection, and says so.
#[test]
fn a_put_behind_the_end_of_the_targets_window_is_refused() {
    isolated(here!(), &mpib("512", &[]), || {
        let group = Group::new(rma_table(16), 2, 1);
        let mut window = group.part_of_a_window();
        group.register(&mut window, 0, HOST, 64, 0);
        group.register(&mut window, 1, HOST, 8, 0);
        let request = group.put(0, window.at(0, 0), 64, window.at(0, 8), 1);
        until("the refusal", || {
            (0..2).any(|rank| known(group.table.progress(group.ranks[rank].ctx)) != Success).then_some(())
        });
        assert_warned(&["one-sided traffic with rank 0 has failed", "64 bytes at offset 8", "64 bytes"]);
        assert_eq!(group.table.has_error(group.ranks[1].ctx), (Success, true));
        let _ = request;
    });
}

/// NCCL then takes its own code.
//= configuration.md: MPIB_RMA
#[test]
fn a_setting_leaves_one_sided_traffic_to_nccl() {
    isolated(here!(), &mpib("512", &[("MPIB_RMA", "0")]), || {
        let net = init(newest());
        for rma in rma_tables() {
            let mut ctx = null_mut();
            assert_eq!(known(rma.init(&raw mut ctx, 7, c_logger())), InvalidUsage);
            assert!(ctx.is_null());
        }
        until("the line", || has_logged("MPIB_RMA=0: one-sided traffic is left").then_some(()));
        assert_eq!((take_warnings(), newest().finalize(net)), (Vec::new(), Success));
    });
}

/// Nothing else can write a signal to its GPU. The connections without the queue pair for that live.
#[test]
fn a_signal_for_a_gpu_that_no_adapter_reaches_is_an_error() {
    isolated(here!(), &mpib("512", &[LATE]), || {
        for device in ["soft0", "soft1"] {
            softverbs::fail(device, Call::ModifyLoopback.fails(libc::ENETUNREACH)).unwrap();
        }
        let group = Group::new(rma_table(16), 2, 1);
        let signals = group.window(CUDA, 1, OF_SIGNALS);
        group.put_signal((0, 0), NOWHERE, 0, NOWHERE, 1, (signals.at(0, 0), 1));
        let progress = |rank: usize| known(group.table.progress(group.ranks[rank].ctx));
        until("an error of the target", || (progress(0) == Success && progress(1) != Success).then_some(()));
        let why = "cannot write to a GPU of this host, since the adapter does not reach itself: ";
        assert!(take_warnings().iter().any(|line| line.contains(why)), "no line with the reason");
        group.deregister(signals);
        group.close();
    });
}

/// Joins a group of two processes as the first rank, with a window. Starts the other one.
fn first_rank() -> (Group, Window, Peer) {
    let mut group = Group::listen(rma_table(16));
    let mut peer = Peer::start_as(Role::Second, &[]);
    let theirs = handle_of(&peer.answer());
    peer.say(&word(&group.handle));
    let group = group.join(0, vec![theirs]);
    let window = group.window(HOST, 64, 0);
    assert_eq!(peer.answer(), "joined");
    (group, window, peer)
}

/// The same as the second rank. What the first one says comes in lines.
fn second_rank() -> (Group, Window, impl Iterator<Item = String>) {
    let mut lines = commands();
    let mut group = Group::listen(rma_table(16));
    answer(&word(&group.handle));
    let other = handle_of(&lines.next().unwrap());
    let group = group.join(1, vec![other]);
    let window = group.window(HOST, 64, 0);
    answer("joined");
    (group, window, lines)
}

/// Receives for commands that a rank has posted.
const COMMANDS: usize = 64;

/// The other rank's process dies while a put waits for a receive of it, and nothing is under way: no
/// completion shows the end.
#[test]
fn a_rank_that_dies_while_a_put_waits_fails_its_peers() {
    let env = mpib("512", &[NO_PINGS]);
    let second = || {
        let (group, window, lines) = second_rank();
        group.until("the first put", || (window.word(0, 0) == 7).then_some(()));
        // Receives for the messages that have come are posted again.
        (0..100).for_each(|_| group.progress());
        answer("idle");
        lines.for_each(drop);
    };
    isolated_with(here!(), &env, second, || {
        let (group, window, mut peer) = first_rank();
        let put = || group.put(0, window.at(0, 8), 8, window.at(0, 0), 1);
        window.write(0, 8, &7_u64.to_ne_bytes());
        group.wait([put()]);
        assert_eq!(peer.answer(), "idle");
        (0..COMMANDS).for_each(|_| group.wait([put()]));
        let waiting = put();
        peer.kill();
        let failed = until("a failure", || group.test(waiting).err());
        assert_eq!(failed, RemoteError);
        take_warning(&["one-sided traffic with rank 1 has failed", &peer.name(), "with sends outstanding"]);
        group.deregister(window);
        group.close();
    });
}

/// The other rank's process dies: requests and progress fail, and the log says why.
#[test]
fn a_rank_that_dies_fails_its_peers() {
    let env = mpib("512", &[NO_PINGS]);
    let second = || {
        let (group, window, _lines) = second_rank();
        loop {
            group.progress();
            let _ = &window;
        }
    };
    isolated_with(here!(), &env, second, || {
        let (group, window, mut peer) = first_rank();
        group.wait([group.put(0, window.at(0, 0), 64, window.at(0, 64), 1)]);
        peer.kill();
        let (ctx, place) = (group.ranks[0].ctx, window.at(0, 0));
        let put = || {
            let mut request = null_mut();
            let code = known(group.table.iput(ctx, 0, place, 8, place, 1, &raw mut request));
            if code == Success { Ok((0, request)) } else { Err(code) }
        };
        let mut request = put();
        let failed = until("a failure", || {
            let _ = group.table.progress(ctx);
            // What comes just after the end of the process may still be placed.
            match request.and_then(|request| group.test(request)) {
                Ok(true) => request = put(),
                Ok(false) => {}
                Err(code) => return Some(code),
            }
            None
        });
        assert_eq!(failed, RemoteError);
        assert_ne!(known(group.table.progress(ctx)), Success);
        assert_eq!(group.table.has_error(ctx), (Success, true));
        take_warning(&["one-sided traffic with rank 1 has failed", &peer.name()]);
        assert!(put().is_err());
        group.deregister(window);
        group.close();
    });
}
