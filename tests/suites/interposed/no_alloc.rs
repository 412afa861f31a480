//! The data path allocates nothing: isend, irecv, iflush and test, over thousands of messages of
//! each kind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use mpib_tests::code::Success;
use mpib_tests::pair::{Buffer, Pair, connect, init, until};
use mpib_tests::profiled::{ON, Profiled, callback, record_state, stop};
use mpib_tests::rma::{CUDA, Group, HOST, OF_SIGNALS, rma_table};
use mpib_tests::table::{Ptr, Table, newest, set_profiler, set_profiler_handles};
use mpib_tests::vdevices::{carried, newest_device, rails};
use mpib_tests::{here, isolated, mpib, two_adapters, with_and_without_srq};
use nccl_net_abi as abi;
use nccl_net_mpib_agent_iface::stats::pages_of;

/// The system's allocator, which counts the calls of an armed thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // A thread that is ending has no thread-local cells, and runs no counted call.
    let _ = ARMED.try_with(|armed| {
        if armed.get() {
            COUNT.with(|count| count.set(count.get() + 1));
        }
    });
}

// SAFETY: hands everything to the system's allocator; the counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the allocations of one call of the plugin.
fn counted<T>(call: impl FnOnce() -> T) -> T {
    ARMED.set(true);
    let result = call();
    ARMED.set(false);
    result
}

const MESSAGES: usize = 10_000;
/// Messages in flight at a time: enough to fill and wrap the queues.
const WINDOW: usize = 20;

fn wait(table: &Table, request: Ptr) {
    until("test", || {
        let (rc, done, _) = counted(|| table.test(request));
        assert_eq!(rc, Success);
        done.then_some(())
    });
}

/// As [`run_as`], without a hint.
fn run(pair: &Pair, from: &Buffer, to: &Buffer, n: usize, len: usize) -> usize {
    run_as(pair, from, to, n, len, 0)
}

/// `MESSAGES` groups of `n` sends of `len` bytes; gives how often memory was asked for or given
/// back.
fn run_as(pair: &Pair, from: &Buffer, to: &Buffer, n: usize, len: usize, hint: usize) -> usize {
    let table = newest();
    let group: Vec<_> = (0..n).map(|i| (to.addr(), len, i as i32, to.mr)).collect();
    COUNT.set(0);
    for _ in 0..MESSAGES / WINDOW {
        let mut recvs = [Ptr::default(); WINDOW];
        for recv in &mut recvs {
            let (rc, request) = counted(|| table.irecv_as(pair.recv, &group, hint));
            assert!(rc == Success && !request.is_null());
            *recv = request;
        }
        let mut sends = [Ptr::default(); WINDOW * 8];
        for (i, send) in sends[..WINDOW * n].iter_mut().enumerate() {
            *send = until("isend", || {
                let (rc, request) =
                    counted(|| table.isend(pair.send, from.addr(), len, (i % n) as i32, from.mr));
                assert_eq!(rc, Success);
                (!request.is_null()).then_some(request)
            });
        }
        sends[..WINDOW * n].iter().for_each(|s| wait(table, *s));
        recvs.iter().for_each(|r| wait(table, *r));
    }
    COUNT.get()
}

#[test]
fn the_counter_counts() {
    COUNT.set(0);
    counted(|| drop(std::hint::black_box(Vec::<u64>::with_capacity(100))));
    assert_eq!(COUNT.get(), 2);
}

//= receives.md: transfers allocate nothing
#[test]
fn transfers_allocate_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let size = 4096;
        let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
        // What the first calls set up, in the library and the thread, is not the data path's.
        pair.message(10, 10, 1);
        for (kind, n, len) in [("fast path", 1, 4096), ("groups of 8", 8, 512), ("empty", 1, 0)] {
            assert_eq!(run(&pair, &from, &to, n, len), 0, "{kind}");
        }
        // With the hint that the completion is optional.
        assert_eq!(run_as(&pair, &from, &to, 1, 4096, 1), 0, "optional receives");
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// Events that began and that ended.
static EVENTS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// A profiler that takes each event.
unsafe extern "C" fn profiler(event: *mut Ptr, kind: c_int, _: Ptr, _: i64, _: Ptr) -> abi::ncclResult_t {
    EVENTS[usize::from(kind != 0)].fetch_add(1, Ordering::Relaxed);
    if kind == 0 {
        // SAFETY: the plugin's place for an event.
        unsafe { *event = std::ptr::without_provenance_mut(1) };
    }
    abi::ncclSuccess
}

#[test]
fn profiled_transfers_allocate_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        set_profiler(Some(profiler));
        let pair = Pair::new(newest());
        let (from, to) = (pair.send_buffer(vec![1; 4096]), pair.recv_buffer(4096));
        pair.message(10, 10, 1);
        set_profiler_handles(Some([std::ptr::without_provenance_mut(1); 8]));
        for (kind, n, len) in [("fast path", 1, 4096), ("groups of 8", 8, 512), ("empty", 1, 0)] {
            assert_eq!(run(&pair, &from, &to, n, len), 0, "{kind}");
        }
        // Two rails for each send that is not empty, and for each receive.
        let events = MESSAGES * ((2 + 2) + 8 * (2 + 2) + (1 + 2));
        assert_eq!(EVENTS.each_ref().map(|n| n.load(Ordering::Relaxed)), [events; 2]);
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// The plugin is NCCL's profiler, too.
#[test]
fn recorded_operations_allocate_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[ON]), || {
        set_profiler(Some(callback));
        let pair = Pair::new(newest());
        let world = Profiled::new().unwrap();
        let (from, to) = (pair.send_buffer(vec![1; 4096]), pair.recv_buffer(4096));
        pair.message(10, 10, 1);
        let mut allocations = 0;
        for sequence in 0..3 {
            COUNT.set(0);
            let operation = counted(|| world.operation(sequence));
            counted(|| stop(operation));
            let part = counted(|| world.part(operation, std::process::id()));
            let step = counted(|| world.step(part));
            counted(|| record_state(step));
            allocations += COUNT.get();
            set_profiler_handles(Some([step; 8]));
            allocations += run(&pair, &from, &to, 1, 4096);
            set_profiler_handles(None);
            COUNT.set(0);
            counted(|| stop(step));
            counted(|| stop(part));
            allocations += COUNT.get();
        }
        assert_eq!(allocations, 0);
        let recorded = pages_of(std::process::id()).unwrap()[0].communicators().remove(0);
        let bytes = recorded.operations.iter().map(|one| one.rails.iter().map(|rail| rail.bytes).sum());
        assert_eq!(bytes.collect::<Vec<u64>>(), [MESSAGES as u64 * 4096; 3]);
        from.dereg();
        to.dereg();
        world.close();
        pair.close();
    });
}

/// The smallest size that the immediate of two rails cannot encode.
#[test]
fn records_allocate_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let size = (2 << 20) + 1;
        let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
        pair.message(size, size, 1);
        assert_eq!(run(&pair, &from, &to, 1, size), 0);
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// Large messages of plain rails are measured.
//= split.md: measured transfers allocate nothing
#[test]
fn measured_transfers_allocate_nothing() {
    let devices = rails(2, 1);
    with_and_without_srq(here!(), &[("SOFTVERBS_DEVICES", devices.as_str())], || {
        let (ctx, dev) = newest_device(2);
        let pair = connect(newest(), ctx, dev);
        let size = 200_000;
        let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
        pair.message(size, size, 1);
        for (kind, n, len) in [("one message", 1, size), ("groups of 2", 2, 100_000)] {
            assert_eq!(run(&pair, &from, &to, n, len), 0, "{kind}");
        }
        assert!(carried(2).iter().all(|rail| rail.bytes > 100 << 20), "{:?}", carried(2));
        from.dereg();
        to.dereg();
        pair.close();
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= mpib.md: flushes allocate nothing
#[test]
fn flushes_allocate_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[("MPIB_FLUSH", "1")]), || {
        let (pair, table) = (Pair::new(newest()), newest());
        pair.message(1000, 1000, 1);
        let to = pair.recv_buffer(4096);
        let group: Vec<_> = (0..8).map(|_| (to.addr(), 4096, to.mr)).collect();
        // As above: what the first one sets up in the library.
        wait(table, table.iflush(pair.recv, &group[..1]).1);
        COUNT.set(0);
        for round in 0..MESSAGES / WINDOW {
            let mut flushes = [Ptr::default(); WINDOW];
            for flush in &mut flushes {
                let (rc, request) = counted(|| table.iflush(pair.recv, &group[..1 + round % 8]));
                assert!(rc == Success && !request.is_null());
                *flush = request;
            }
            flushes.iter().for_each(|f| wait(table, *f));
        }
        assert_eq!(COUNT.get(), 0);
        to.dereg();
        pair.close();
    });
}

/// NCCL's thread polls all connections that it makes, of a thousand peers, in turn.
#[test]
fn a_connect_that_waits_allocates_nothing() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        // Nobody accepts; until all that happens without that has happened, memory may be needed.
        let mut quiet = 0;
        until("connect", || {
            COUNT.set(0);
            let (rc, comm) = counted(|| table.connect(ctx, 0, &mut handle));
            assert_eq!((rc, comm.is_null()), (Success, true));
            quiet = if COUNT.get() == 0 { quiet + 1 } else { 0 };
            (quiet == 100).then_some(())
        });
        assert_eq!((table.close_listen(listen), table.finalize(ctx)), (Success, Success));
    });
}

/// Rounds of [`one_sided_transfers_allocate_nothing`], and puts of each.
const ROUNDS: usize = 200;
/// The first rounds, which do not count.
const WARM: usize = 40;
const PUTS: usize = 16;

//= receives.md: transfers allocate nothing
#[test]
fn one_sided_transfers_allocate_nothing() {
    let devices = two_adapters("dmabuf=on");
    isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", &devices)]), || {
        for kind in [HOST, CUDA] {
            let group = Group::new(rma_table(16), 2, 1);
            let (window, signals) = (group.window(kind, 4096, 0), group.window(kind, 1, OF_SIGNALS));
            let mut counts = 0;
            // The first rounds make the connections, and each list as long as it will be.
            for round in 0..=ROUNDS {
                COUNT.set(0);
                let mut requests = [Ptr::default(); PUTS];
                for (put, request) in requests.iter_mut().enumerate() {
                    let (src, dst, to) = (window.at(0, 0), window.at(0, 8192), put % 2);
                    let size = [8, 961, 8192, 0][put / 4];
                    let signal = (signals.at(0, 0), 1);
                    *request = counted(|| group.put_signal((0, 0), src, size, dst, to, signal)).1;
                }
                let mut done = [false; PUTS];
                let mut gets = [counted(|| group.get(0, 1, window.at(0, 0), 8192, window.at(0, 0))).1];
                until("puts and a get", || {
                    counted(|| group.progress());
                    for (request, done) in requests.iter().zip(&mut done).filter(|(_, done)| !**done) {
                        *done = counted(|| group.test((0, *request))) == Ok(true);
                    }
                    gets.iter_mut().filter(|get| !get.is_null()).for_each(|get| {
                        if counted(|| group.test((0, *get))) == Ok(true) {
                            *get = Ptr::default();
                        }
                    });
                    let signalled =
                        [0, 1].iter().all(|rank| signals.word(*rank, 0) == (PUTS / 2 * (round + 1)) as u64);
                    (signalled && gets[0].is_null() && done.iter().all(|done| *done)).then_some(())
                });
                counts += if round < WARM { 0 } else { COUNT.get() };
            }
            assert_eq!(counts, 0, "kind {kind}");
            [window, signals].into_iter().for_each(|window| group.deregister(window));
            group.close();
        }
    });
}
