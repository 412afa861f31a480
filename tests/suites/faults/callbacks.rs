//! Callbacks of NCCL's, its logger and its profiler, that call the plugin or do not return.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mpib_tests::code::{Code, InvalidUsage, Success};
use mpib_tests::log::as_logger;
use mpib_tests::pair::{connect, init, pattern, until};
use mpib_tests::table::{Ptr, newest, set_profiler, set_profiler_handles, table};
use mpib_tests::{NO_PINGS, here, isolated, mpib};
use nccl_net_abi as abi;
use softverbs::{Call, fail};

use super::loggers::{block_at, blocking_logger, init_with, release, until_it_blocks};

/// What calls of the plugin from within a callback have returned.
static CODES: Mutex<Vec<Code>> = Mutex::new(Vec::new());

/// Lists devices, listens and initialises: each of these takes locks.
unsafe extern "C" fn calling_logger(
    _: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    _: *const c_char,
) {
    for version in [8, 12] {
        let table = table(version);
        let codes = [table.devices().0, table.listen(null_mut(), 0, &mut [0; 128]).0, table.init().0];
        CODES.lock().unwrap().extend(codes);
    }
}

//= profiler.md: a call of the plugin from within a callback of NCCL's is refused at once
#[test]
fn a_logger_that_calls_the_plugin_gets_an_error() {
    isolated(here!(), &mpib("512", &[]), || {
        for version in [8, 12] {
            let table = table(version);
            let ctx = init_with(table, as_logger(calling_logger));
            let codes = std::mem::take(&mut *CODES.lock().unwrap());
            assert!(!codes.is_empty(), "v{version}: init logs");
            assert!(codes.iter().all(|code| *code == InvalidUsage), "v{version}: {codes:?}");
            let pair = connect(table, ctx, 0);
            pair.message(5000, 5000, 1);
            pair.close();
            assert_eq!(table.finalize(ctx), Success);
        }
    });
}

/// The receiving comm that [`calling_profiler`] uses.
static COMM: AtomicUsize = AtomicUsize::new(0);

/// Posts a receive on the comm whose `irecv` has called it, and closes the comm.
unsafe extern "C" fn calling_profiler(
    event: *mut *mut c_void,
    _: c_int,
    _: *mut c_void,
    _: i64,
    _: *mut c_void,
) -> abi::ncclResult_t {
    let (table, comm) = (newest(), with_exposed_provenance_mut(COMM.load(Ordering::Relaxed)));
    let codes = [table.irecv(comm, &[(0, 0, 1, null_mut())]).0, table.close_recv(comm)];
    CODES.lock().unwrap().extend(codes);
    // SAFETY: the place of the event, which the plugin never looks behind.
    unsafe { *event = event.cast() };
    abi::ncclSuccess
}

//= profiler.md: a call of the plugin from within a callback of NCCL's is refused at once
#[test]
fn a_profiler_that_calls_the_plugin_gets_an_error() {
    isolated(here!(), &mpib("512", &[]), || {
        set_profiler(Some(calling_profiler));
        let table = newest();
        let ctx = init(table);
        let pair = connect(table, ctx, 0);
        let [_, recv] = pair.comms();
        COMM.store(recv.expose_provenance(), Ordering::Relaxed);
        let mut operation = 0_u64;
        let (from, to) = (pair.send_buffer(pattern(5000, 1)), pair.recv_buffer(5000));
        set_profiler_handles(Some([(&raw mut operation).cast(); 8]));
        let receive = pair.irecv(&[(to.addr(), 5000, 1, to.mr)]);
        set_profiler_handles(None);
        let codes = std::mem::take(&mut *CODES.lock().unwrap());
        assert!(!codes.is_empty(), "an event began");
        assert!(codes.iter().all(|code| *code == InvalidUsage), "{codes:?}");
        let send = pair.isend(from.addr(), 5000, 1, from.mr);
        assert_eq!((pair.wait(send)[0], pair.wait(receive)[0]), (5000, 5000));
        from.dereg();
        to.dereg();
        pair.close();
        assert_eq!(table.finalize(ctx), Success);
    });
}

/// Calls `call` in a thread, and `others` when the logger is stuck in the call at a line with `text`.
fn while_stuck(text: &'static str, call: impl FnOnce() + Send, others: impl FnOnce()) {
    block_at(text);
    std::thread::scope(|scope| {
        scope.spawn(call);
        until_it_blocks();
        others();
        release();
    });
}

//= faults.md: 85
#[test]
fn a_logger_that_is_stuck_in_init_holds_up_no_other_call() {
    isolated(here!(), &mpib("512", &[]), || {
        // A table without contexts: all its calls use that of the process.
        let table = table(8);
        let call = || _ = init_with(table, as_logger(blocking_logger));
        while_stuck("table v8", call, || {
            let pair = connect(table, null_mut(), 0);
            pair.message(5000, 5000, 1);
            pair.close();
            assert_eq!(table.init().0, Success);
        });
    });
}

//= faults.md: 85
#[test]
fn a_logger_that_is_stuck_in_isend_leaves_the_connection_to_others() {
    isolated(here!(), &mpib("512", &[NO_PINGS]), || {
        let table = newest();
        let ctx = init_with(table, as_logger(blocking_logger));
        let pair = connect(table, ctx, 0);
        let (from, to) = (pair.send_buffer(pattern(5000, 1)), pair.recv_buffer(10_000));
        let receives = [0, 5000].map(|at| pair.irecv(&[(to.addr() + at, 5000, 1, to.mr)]));
        let (address, mr) = (from.addr(), from.mr.expose_provenance());
        let comm = pair.comms()[0].expose_provenance();
        let isend = || {
            let (comm, mr): (Ptr, Ptr) = (with_exposed_provenance_mut(comm), with_exposed_provenance_mut(mr));
            let posted = until("a receive", || {
                let (code, request) = table.isend(comm, address, 5000, 1, mr);
                assert_eq!(code, Success);
                (!request.is_null()).then_some(request)
            });
            posted.expose_provenance()
        };
        let (first, second) = (isend(), Mutex::new(0));
        fail("soft0", Call::PostSend.fails(libc::EIO)).unwrap();
        while_stuck(
            "ibv_post_send",
            || *second.lock().unwrap() = isend(),
            || {
                // The comm's lock is free.
                pair.wait(with_exposed_provenance_mut(first));
            },
        );
        pair.wait(with_exposed_provenance_mut(*second.lock().unwrap()));
        receives.into_iter().for_each(|request| _ = pair.wait(request));
        from.dereg();
        to.dereg();
        pair.close();
        assert_eq!(table.finalize(ctx), Success);
    });
}
