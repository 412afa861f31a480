//! Thousands of connections made and closed: nothing grows.

use std::time::Duration;

use mpib_tests::code::Success;
use mpib_tests::holdings::{descriptors, entries, mappings, resident, threads};
use mpib_tests::log::{LOG, warnings};
use mpib_tests::pair::{Buffer, Pair, connect, init, pattern, until};
use mpib_tests::process::watchdog_after;
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};

/// Before anything is counted: pools, caches and the allocator's arenas have found their size.
const WARM_UP: usize = 500;
const CYCLES: usize = 10_000;
/// Of mappings: the allocator's own come and go.
const MAPPINGS_BOUND: usize = 16;
/// Of resident memory, in KiB. A leak of 530 bytes a connection would be more; timers of past
/// handshakes take up to 2 MiB.
const MEMORY_BOUND: usize = 5 << 10;

/// What one process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    /// In the fabric's directory.
    files: usize,
}

/// Whether closed connections are behind the process. Their channels linger for a moment, and the
/// threads of the adapters that have destroyed their queue pairs.
fn is_settled(idle: usize) -> bool {
    descriptors() == idle && !threads().iter().any(|name| name == "mpib-verbs")
}

/// What is held with the current connections.
fn held() -> Held {
    let fabric = std::env::var("SOFTVERBS_FABRIC").unwrap();
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    Held {
        descriptors: descriptors(),
        threads: entries("/proc/self/task"),
        mappings: mappings(),
        files: entries(&format!("/dev/shm/softverbs-{uid}/{fabric}")),
    }
}

/// Resident memory in KiB, without what the allocator keeps for later.
fn kept() -> usize {
    // SAFETY: has no precondition.
    unsafe { libc::malloc_trim(0) };
    resident()
}

//= faults.md: 83: connections and contexts come and go for long: nothing is left
#[test]
fn thousands_of_connections_leave_nothing() {
    isolated(here!(), &mpib("512", &[]), || {
        watchdog_after(Duration::from_secs(900));
        let table = newest();
        let ctx = init(table);
        let data = pattern(512, 1);
        let cycle = || {
            let Pair { table, send, recv } = connect(table, ctx, 0);
            let pair = Pair { table, send, recv };
            let from = Buffer::new(table, send, data.clone());
            let to = Buffer::new(table, recv, vec![0; 512]);
            let request = pair.irecv(&[(to.addr(), 512, 1, to.mr)]);
            pair.wait(pair.isend(from.addr(), 512, 1, from.mr));
            assert_eq!(pair.wait(request)[0], 512);
            assert!(to.bytes == data);
            from.dereg();
            to.dereg();
            pair.close();
        };
        // It keeps the thread of the control connections: whether that runs is not what is counted.
        let mut handle = [0; 128];
        let (_, listen) = table.listen(ctx, 0, &mut handle);
        let idle = held().descriptors;
        let cycles = |n| {
            for _ in 0..n {
                cycle();
                // The log is the test's own memory.
                assert!(warnings().is_empty(), "{:?}", warnings());
                LOG.lock().unwrap().clear();
            }
        };
        cycles(WARM_UP);
        // No descriptor of the warm-up is kept.
        let before = until("the closed channels to be freed", || is_settled(idle).then(held));
        let memory = kept();
        cycles(CYCLES);
        let after = until("what the connections took to be given back", || is_settled(idle).then(held));
        assert_eq!((after.threads, after.files), (before.threads, before.files));
        assert!(after.mappings <= before.mappings + MAPPINGS_BOUND, "{after:?} after {before:?}");
        let grown = kept().saturating_sub(memory);
        eprintln!("{after:?}, {grown} KiB of {memory} more");
        assert!(grown < MEMORY_BOUND, "{grown} KiB more after {CYCLES} connections, {memory} before");
        assert_eq!(table.close_listen(listen), Success);
    });
}
