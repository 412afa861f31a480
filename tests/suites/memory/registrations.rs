//! NCCL's memory, registered once on each device for any number of comms: counts after each step,
//! bounds, failures, and threads that register while others move data.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use mpib_tests::code::{InvalidArgument, Success, SystemError};
use mpib_tests::log::take_warnings;
use mpib_tests::memory::{PAGE, Pages, mrs, page, registered};
use mpib_tests::pair::{HOST, Pair, connect, init, pattern};
use mpib_tests::peer::{Peer, from_peer, to_peer};
use mpib_tests::rng::Rng;
use mpib_tests::table::{Ptr, TABLES, Table, newest, table};
use mpib_tests::{TWO_RAILS, here, isolated, mpib};
use softverbs::{Call, Capability};

/// The memory that the receives of shared queues name: one registration on each adapter that has had
/// a connection.
fn for_receives() -> usize {
    softverbs::devices()[0].has(Capability::Srq).into()
}

/// A registration that must be made.
fn reg(table: &Table, comm: Ptr, addr: usize, len: usize) -> Ptr {
    let (rc, mr) = table.reg_mr(comm, addr, len, HOST);
    assert!(rc == Success && !mr.is_null(), "regMr of {len} bytes");
    mr
}

fn dereg(table: &Table, comm: Ptr, mr: Ptr) {
    assert_eq!(table.dereg_mr(comm, mr), Success, "deregMr");
}

/// One message from `from` to `to`, which begin with these bytes of the memory.
fn message(
    pair: &Pair,
    memory: &Pages,
    len: usize,
    (from, from_mr): (usize, Ptr),
    (to, to_mr): (usize, Ptr),
) {
    let data = pattern(len, (from + to) as u64);
    memory.write(from, &data);
    let recv = pair.irecv(&[(memory.addr() + to, len, 1, to_mr)]);
    let send = pair.isend(memory.addr() + from, len, 1, from_mr);
    assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (len as i32, len as i32));
    assert!(memory.read(to, len) == data, "{len} bytes differ");
}

/// Every table: both ends of each comm share an existing registration, which ends with its last
/// user.
//= memory.md: comms share a registration until the last one deregisters
#[test]
fn comms_share_a_registration_until_the_last_lets_go() {
    isolated(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            let pairs = [connect(table, ctx, 0), connect(table, ctx, 0)];
            let (memory, base) = (Pages::new(8 * PAGE), mrs());
            let mut held = Vec::new();
            for (n, comm) in pairs.iter().flat_map(Pair::comms).enumerate() {
                let (made, mr) = registered(|| reg(table, comm, memory.addr(), 8 * PAGE));
                // One on each of the two rails.
                assert_eq!((made, mrs()), (if n == 0 { 2 } else { 0 }, base + 2));
                held.push((comm, mr));
            }
            message(&pairs[0], &memory, PAGE, (0, held[0].1), (4 * PAGE, held[1].1));
            // The first comm closes first.
            for (n, (comm, mr)) in held.iter().enumerate() {
                if n == 2 {
                    message(&pairs[1], &memory, PAGE, (PAGE, held[2].1), (5 * PAGE, held[3].1));
                }
                assert_eq!(mrs(), base + 2);
                dereg(table, *comm, *mr);
            }
            assert_eq!(mrs(), base);
            for pair in pairs {
                pair.close();
            }
        }
    });
}

/// Closing a comm ends no registration: NCCL may deregister on another comm.
//= memory.md: comms share a registration until the last one deregisters
#[test]
fn a_registration_outlives_its_comm() {
    isolated(here!(), &mpib("512", &[]), || {
        let (table, ctx) = (newest(), init(newest()));
        let (first, second) = (connect(table, ctx, 0), connect(table, ctx, 0));
        let (memory, base) = (Pages::new(PAGE), mrs());
        let (a, b) =
            (reg(table, first.send, memory.addr(), PAGE), reg(table, second.send, memory.addr(), PAGE));
        dereg(table, second.send, a);
        assert_eq!(mrs(), base + 2);
        let control = mrs();
        first.close();
        assert!(mrs() < control, "its own memory is released");
        let base = mrs() - 2;
        dereg(table, second.send, b);
        assert_eq!(mrs(), base);
        second.close();
        assert_eq!(mrs(), 2 * for_receives());
    });
}

/// Four queue pairs that share each message are four stripes of one device.
//= memory.md: a striped rail registers a buffer once
#[test]
fn a_striped_rail_registers_once() {
    let device = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16");
    let qps = [("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    isolated(here!(), &[&[device], &qps[..]].concat(), || {
        let table = newest();
        let ctx = init(table);
        let (made, pair) = registered(|| connect(table, ctx, 0));
        assert_eq!(made, 2 + for_receives() as u64, "control memory, once at each end");
        let (memory, base) = (Pages::new(4 * PAGE), mrs());
        let (a, b) =
            (reg(table, pair.send, memory.addr(), 4 * PAGE), reg(table, pair.recv, memory.addr(), 4 * PAGE));
        assert_eq!(mrs(), base + 1);
        message(&pair, &memory, 2 * PAGE, (0, a), (2 * PAGE, b));
        dereg(table, pair.send, a);
        dereg(table, pair.recv, b);
        assert_eq!(mrs(), base);
        pair.close();
        assert_eq!(mrs(), for_receives());
    });
}

/// One rail: each step then makes one registration or none.
const ONE_RAIL: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16");

//= memory.md: parts reuse a registration; overlaps and neighbours do not
#[test]
fn parts_are_found_and_overlaps_and_neighbours_are_not() {
    isolated(here!(), &[ONE_RAIL], || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (memory, base) = (Pages::new(16 * PAGE), mrs());
        let at = memory.addr();
        // Begins and ends inside of a page.
        let whole = (at + 2 * PAGE + 100, 4 * PAGE);
        let mr = reg(table, pair.send, whole.0, whole.1);
        for (addr, len, more) in [
            (whole.0, whole.1, 0),
            (whole.0, 1, 0),
            (whole.0 + whole.1 - 1, 1, 0),
            (at + 3 * PAGE, PAGE, 0),
            // The very same pages.
            (at + 2 * PAGE, 4 * PAGE + page(), 0),
            // Memory that overlaps one end of it, or is beside it in the same page.
            (whole.0 - 1, 2, 1),
            (whole.0 + whole.1 - 1, 2, 1),
            (at + 2 * PAGE, 100, 1),
            (whole.0 + whole.1, 10, 1),
            (at, 8 * PAGE, 1),
            (at + 12 * PAGE, PAGE, 1),
        ] {
            let (made, part) = registered(|| reg(table, pair.recv, addr, len));
            assert_eq!((made, mrs()), (more, base + 1 + more as usize), "{len} bytes at {:#x}", addr - at);
            dereg(table, pair.recv, part);
            assert_eq!(mrs(), base + 1);
        }
        // A part keeps the whole, and what lies around the whole does not.
        let part = reg(table, pair.recv, whole.0 + PAGE, 10);
        let around = reg(table, pair.recv, at, 8 * PAGE);
        dereg(table, pair.send, mr);
        assert_eq!(mrs(), base + 2);
        let (made, again) = registered(|| reg(table, pair.send, whole.0, whole.1));
        assert_eq!(made, 0);
        for mr in [part, around, again] {
            dereg(table, pair.send, mr);
        }
        assert_eq!(mrs(), base);
        pair.close();
    });
}

/// A request may use only the memory that NCCL named, even if more is registered.
//= memory.md: transfers are bounded by the registered bytes; whole pages are registered
#[test]
fn the_named_buffer_bounds_a_transfer() {
    isolated(here!(), &[ONE_RAIL], || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let memory = Pages::new(4 * PAGE);
        let all = reg(table, pair.send, memory.addr(), 4 * PAGE);
        let named = memory.addr() + PAGE + 50;
        let (made, part) = registered(|| [pair.send, pair.recv].map(|comm| reg(table, comm, named, 1000)));
        assert_eq!(made, 0);
        // A send is checked once its receive has come.
        let waiting = pair.irecv(&[(named, 1000, 1, part[1])]);
        for (addr, len) in [(named - 1, 10), (named, 1001), (named + 1000, 1), (memory.addr(), 1)] {
            assert_eq!(pair.refused(addr, len, 1, part[0]), InvalidArgument, "{len} at {addr:#x}");
            assert_eq!(
                table.irecv(pair.recv, &[(addr, len, 1, part[1])]).0,
                InvalidArgument,
                "{len} at {addr:#x}"
            );
        }
        take_warnings();
        let send = pair.isend(named, 1000, 1, part[0]);
        assert_eq!((pair.wait(send)[0], pair.wait(waiting)[0]), (1000, 1000));
        message(&pair, &memory, 500, (PAGE + 50, part[0]), (PAGE + 550, part[1]));
        for mr in [all, part[0], part[1]] {
            dereg(table, pair.send, mr);
        }
        pair.close();
    });
}

/// A registration that an existing one serves may use all of its pages, because those are
/// registered.
//= memory.md: transfers are bounded by the registered bytes; whole pages are registered
#[test]
fn whole_pages_are_registered() {
    isolated(here!(), &[ONE_RAIL], || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (memory, len) = (Pages::new(4 * page()), 2 * page());
        let inner = [(pair.send, 0), (pair.recv, len)]
            .map(|(comm, at)| reg(table, comm, memory.addr() + at + 100, len - 200));
        let (made, all) = registered(|| [0, len].map(|at| reg(table, pair.recv, memory.addr() + at, len)));
        assert_eq!(made, 0);
        message(&pair, &memory, len, (0, all[0]), (len, all[1]));
        for mr in inner.into_iter().chain(all) {
            dereg(table, pair.recv, mr);
        }
        pair.close();
    });
}

//= faults.md: 40: memory cannot be registered: regMr fails, names the limit and leaves nothing
//= memory.md: a failed registration leaves nothing behind
#[test]
fn a_failure_leaves_nothing_behind_and_harms_nobody() {
    isolated(here!(), &mpib("512", &[]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (memory, base) = (Pages::new(8 * PAGE), mrs());
        let at = memory.addr() + 10;
        let others = reg(table, pair.recv, memory.addr() + 4 * PAGE, PAGE);
        // The first rail's registration fails, then the second rail's after the first succeeded.
        for rail in ["soft0", "soft1"] {
            for comm in pair.comms() {
                softverbs::fail(rail, Call::RegMr.fails(libc::ENOMEM)).unwrap();
                assert_eq!(table.reg_mr(comm, at, PAGE, HOST), (SystemError, Ptr::default()));
                assert_eq!(mrs(), base + 2, "{rail}");
                let said = take_warnings().concat();
                let range = format!("{PAGE} bytes at {at:#x}");
                for part in
                    ["regMr: ibv_reg_mr", "ENOMEM", "ocked memory", rail, "the whole pages of", &range]
                {
                    assert!(said.contains(part), "{part}: {said}");
                }
            }
        }
        for (addr, len) in [(usize::MAX, 1), (usize::MAX - 5, 100), (at, usize::MAX), (usize::MAX - 10, 1)] {
            assert_eq!(table.reg_mr(pair.send, addr, len, HOST).0, InvalidArgument, "{len} at {addr:#x}");
        }
        // Addresses where nothing is mapped, including the last page.
        let (rc, _) = table.reg_mr(pair.send, memory.addr() + 7 * PAGE, usize::MAX >> 20, HOST);
        assert_eq!((rc, mrs()), (SystemError, base + 2));
        take_warnings();
        let mr = reg(table, pair.send, at, PAGE);
        message(&pair, &memory, PAGE, (10, mr), (4 * PAGE, others));
        dereg(table, pair.send, mr);
        dereg(table, pair.recv, others);
        assert_eq!(mrs(), base);
        pair.close();
    });
}

/// Returns what v8 and later report as `regIsGlobal`.
fn reg_is_global() -> Vec<bool> {
    (8..=12).map(|version| table(version).properties(0).1.unwrap().reg_is_global.unwrap()).collect()
}

/// As NCCL 2.20 to 2.23 do it, in one thread: a connection of the process with itself, connect and
/// accept in turns, takes the user's whole buffer; then each operation registers its part on the
/// connection that it uses, and deregisters it when it is done.
fn operations_on(pairs: &[Pair], memory: &Pages, table: &'static Table) {
    for round in 0..20 {
        for pair in pairs {
            let (len, from, to) = (1000 + 777 * round, 3 + 100 * round, 8 * PAGE + 5 + 90 * round);
            let (made, (from_mr, to_mr)) = registered(|| {
                let from_mr = reg(table, pair.send, memory.addr() + from, len);
                (from_mr, reg(table, pair.recv, memory.addr() + to, len))
            });
            assert_eq!(made, 0, "an operation registers nothing again");
            message(pair, memory, len, (from, from_mr), (to, to_mr));
            dereg(table, pair.send, from_mr);
            dereg(table, pair.recv, to_mr);
        }
    }
}

//= memory.md: a global registration serves every connection of the process
#[test]
fn the_life_of_a_global_registration() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = table(8);
        let ctx = init(table);
        assert_eq!(reg_is_global(), [true; 5]);
        let (memory, base) = (Pages::new(16 * PAGE), mrs());
        let own = connect(table, ctx, 0);
        let with_own = mrs();
        let (made, whole) = registered(|| reg(table, own.send, memory.addr(), 16 * PAGE));
        assert_eq!(made, 2);
        let pairs = [connect(table, ctx, 0), connect(table, ctx, 0)];
        let with_pairs = mrs();
        operations_on(&pairs, &memory, table);
        assert_eq!(mrs(), with_pairs);
        // The user lets go while an operation is under way, and NCCL closes the connection at its
        // end.
        let last = reg(table, pairs[0].send, memory.addr() + 10, 100);
        dereg(table, own.send, whole);
        assert_eq!(mrs(), with_pairs);
        dereg(table, pairs[0].send, last);
        assert_eq!(mrs(), with_pairs - 2);
        // Without the whole each operation makes its own.
        let (made, mr) = registered(|| reg(table, pairs[0].send, memory.addr() + 10, 100));
        assert_eq!(made, 2);
        dereg(table, pairs[0].send, mr);
        for pair in pairs {
            pair.close();
        }
        assert_eq!(mrs(), with_own);
        own.close();
        assert_eq!((mrs(), take_warnings()), (base + 2 * for_receives(), Vec::new()));
    });
}

/// The process's own connection is within an island; others use other rails, and find the buffer on
/// those too.
//= memory.md: a global registration serves every connection of the process
#[test]
fn a_registration_serves_the_connections_over_its_rails() {
    const HERE: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16");
    const NEAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16");
    const FAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.1.3/16;soft1:addr=10.2.1.3/16");
    // With failover it would have SOUT, too.
    isolated(here!(), &[&TWO_RAILS[..], &[HERE, ("MPIB_FAILOVER", "0")]].concat(), || {
        let (table, ctx) = (newest(), init(newest()));
        let memory = Pages::new(4 * PAGE);
        let own = connect(table, ctx, 0);
        let whole = reg(table, own.send, memory.addr(), 4 * PAGE);
        // A vanilla connection within the island has SUP alone, one between islands SOUT.
        for (other, missing) in [(NEAR, 0), (FAR, 1)] {
            let mut peer = Peer::start_with(&[other]);
            let send = to_peer(table, ctx, &mut peer);
            let recv = from_peer(table, ctx, &mut peer);
            for comm in [send, recv] {
                let (made, mr) = registered(|| reg(table, comm, memory.addr() + PAGE, 100));
                assert_eq!(made, missing, "{other:?}");
                dereg(table, comm, mr);
            }
            peer.must("close");
            assert_eq!((table.close_send(send), table.close_recv(recv)), (Success, Success));
            peer.finish();
        }
        dereg(table, own.send, whole);
        own.close();
        assert_eq!(mrs(), 2 * for_receives());
    });
}

/// As in NCCL: a service thread registers and deregisters while the progress thread moves data on
/// the very same comms, with registrations that begin to serve and cease to serve others all the
/// time.
//= memory.md: registration and data path run in different threads
#[test]
fn one_thread_registers_while_another_moves_data() {
    isolated(here!(), &mpib("512", &[]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (memory, base) = (Pages::new(32 * PAGE), mrs());
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng::new(7);
                let (mut held, mut rounds) = (Vec::new(), 0);
                while !over.load(SeqCst) || rounds < 200 {
                    let comm = pair.comms()[rng.below(2)];
                    let (at, len) = (rng.below(16 * PAGE), 1 + rng.below(16 * PAGE));
                    held.push((comm, reg(table, comm, memory.addr() + at, len)));
                    if held.len() > 8 {
                        let (comm, mr) = held.swap_remove(rng.below(held.len()));
                        dereg(table, comm, mr);
                    }
                    rounds += 1;
                }
                held.into_iter().for_each(|(comm, mr)| dereg(table, comm, mr));
            });
            let mut rng = Rng::new(11);
            for _ in 0..150 {
                let len = 1 + rng.below(4 * PAGE);
                let (from, to) = (rng.below(12 * PAGE), 16 * PAGE + rng.below(12 * PAGE));
                let a = reg(table, pair.send, memory.addr() + from, len);
                let b = reg(table, pair.recv, memory.addr() + to, len);
                message(&pair, &memory, len, (from, a), (to, b));
                dereg(table, pair.send, a);
                dereg(table, pair.recv, b);
            }
            over.store(true, SeqCst);
        });
        assert_eq!((mrs(), take_warnings()), (base, Vec::new()));
        pair.close();
    });
}

/// Several comms, with one thread each, register one buffer. The threads begin together, to request
/// the registration at the same time.
//= memory.md: registration and data path run in different threads
#[test]
fn threads_of_several_comms_share_one_registration() {
    const THREADS: usize = 4;
    isolated(here!(), &mpib("512", &[]), || {
        let (table, ctx) = (newest(), init(newest()));
        let pairs: Vec<Pair> = (0..THREADS).map(|_| connect(table, ctx, 0)).collect();
        let (memory, base) = (Pages::new(2 * THREADS * PAGE), mrs());
        let (together, memory) = (Barrier::new(THREADS), &memory);
        thread::scope(|scope| {
            for (n, pair) in pairs.iter().enumerate() {
                let together = &together;
                scope.spawn(move || {
                    for round in 0..30 {
                        together.wait();
                        let before = softverbs::registrations_made();
                        together.wait();
                        let whole = 2 * THREADS * PAGE;
                        let [a, b] = pair.comms().map(|comm| reg(table, comm, memory.addr(), whole));
                        together.wait();
                        // The first thread has made the registration, and the others have waited.
                        assert_eq!(
                            (softverbs::registrations_made() - before, mrs()),
                            (2, base + 2),
                            "round {round}"
                        );
                        message(pair, memory, PAGE, (2 * n * PAGE, a), ((2 * n + 1) * PAGE, b));
                        dereg(table, pair.send, a);
                        dereg(table, pair.recv, b);
                        together.wait();
                        assert_eq!(mrs(), base, "round {round}");
                    }
                });
            }
        });
        assert_eq!(take_warnings(), Vec::<String>::new());
        pairs.into_iter().for_each(Pair::close);
    });
}

/// Deregistration is complete when the call returns: memory mapped later at the address is new
/// memory.
//= memory.md: memory that was freed and mapped again is registered again
#[test]
fn released_memory_is_registered_again() {
    isolated(here!(), &[ONE_RAIL], || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let fixed = Pages::new(8 * PAGE);
        let neighbour = reg(table, pair.recv, fixed.addr() + 4 * PAGE + 8, 100);
        // Its last page is the neighbour's first.
        for round in 0..3 {
            let (made, mr) = registered(|| reg(table, pair.send, fixed.addr(), 4 * PAGE + 8));
            assert_eq!(made, 1, "round {round}");
            dereg(table, pair.send, mr);
        }
        dereg(table, pair.recv, neighbour);
        assert_eq!(mrs(), 2 + for_receives(), "the comms' own");
        pair.close();
    });
}
