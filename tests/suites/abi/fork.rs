//! A program that forks, as data loaders do: what its child may do with the plugin, and that the
//! parent is not harmed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mpib_tests::code::{Code, InvalidUsage, Success};
use mpib_tests::log::{take_warning, take_warnings};
use mpib_tests::pair::{Buffer, Pair, connect, init, pattern};
use mpib_tests::process::watchdog;
use mpib_tests::table::{Ptr, TABLES, newest};
use mpib_tests::{here, isolated, mpib};

/// Runs `body` in a forked child, which leaves as programs do; whether it came through.
fn in_child(body: impl FnOnce()) -> bool {
    // SAFETY: the child uses this thread and the allocator, which glibc keeps whole across a fork;
    // nothing here holds a lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        watchdog();
        let failed = catch_unwind(AssertUnwindSafe(body)).is_err();
        // SAFETY: the end of the process, with what it has arranged for that.
        unsafe { libc::exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: our own child, which nobody else waits for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// The call failed, and one line of the log says what to do.
fn refused(call: &str, rc: Code) {
    assert_eq!(rc, InvalidUsage, "{call}");
    let parent = format!(
        "forked from process {} after NCCL was initialised there",
        std::os::unix::process::parent_id()
    );
    let parts = [&format!("{call}: "), &*parent, "initialise NCCL after the fork"];
    take_warning(&parts);
}

/// What the parent has when it forks.
struct Ends {
    ctx: Ptr,
    listen: Ptr,
    handle: [u8; 128],
    pair: Pair,
    from: Buffer,
    to: Buffer,
    /// A receive that waits for its data.
    request: Ptr,
}

/// Every call of a table, in a child.
fn all_refused(ends: &Ends) {
    let Ends { ctx, listen, handle, pair, from, to, request } = ends;
    let (table, ctx, listen) = (pair.table, *ctx, *listen);
    // The older tables have one context for the process, and do not ask for another.
    if table.version() >= 11 {
        refused("init", table.init().0);
    }
    refused("devices", table.devices().0);
    refused("getProperties", table.properties(0).0);
    refused("listen", table.listen(ctx, 0, &mut [0; 128]).0);
    refused("connect", table.connect(ctx, 0, &mut handle.clone()).0);
    refused("accept", table.accept(listen).0);
    refused("regMr", table.reg_mr(pair.send, from.addr(), 10, 1).0);
    refused("isend", table.isend(pair.send, from.addr(), 10, 1, from.mr).0);
    refused("irecv", table.irecv(pair.recv, &[(to.addr(), 10, 1, to.mr)]).0);
    refused("iflush", table.iflush(pair.recv, &[(to.addr(), 10, to.mr)]).0);
    refused("test", table.test(*request).0);
    refused("deregMr", table.dereg_mr(pair.send, from.mr));
    refused("closeSend", table.close_send(pair.send));
    refused("closeRecv", table.close_recv(pair.recv));
    refused("closeListen", table.close_listen(listen));
    if table.version() >= 11 {
        refused("finalize", table.finalize(ctx));
    }
}

//= faults.md: 63
//= faults.md: 62: a forked child calls the plugin: each call is refused by name
//= reach.md: a forked child cannot use its parent's connections
#[test]
fn a_child_of_a_process_with_connections_is_refused_and_harms_none_of_them() {
    isolated(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let pair = Pair::new(table);
            let ctx = init(table);
            let (from, to) = (pair.send_buffer(pattern(5000, 3)), pair.recv_buffer(5000));
            let request = pair.irecv(&[(to.addr(), 5000, 1, to.mr)]);
            let mut handle = [0; 128];
            let (rc, listen) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            take_warnings();
            let ends = Ends { ctx, listen, handle, pair, from, to, request };
            assert!(in_child(|| all_refused(&ends)), "v{}", table.version());
            assert!(in_child(|| all_refused(&ends)), "v{}, the second child", table.version());
            // The parent has heard nothing of all that.
            let Ends { pair, from, to, .. } = ends;
            pair.wait(pair.isend(from.addr(), 5000, 1, from.mr));
            assert_eq!(pair.wait(request)[0], 5000);
            assert!(to.bytes == from.bytes);
            from.dereg();
            to.dereg();
            pair.close();
            assert_eq!(table.close_listen(listen), Success);
            let again = connect(table, ctx, 0);
            again.message(100_000, 100_000, 4);
            again.close();
            assert_eq!(take_warnings(), [""; 0]);
        }
    });
}

/// What was only loaded is the child's to use.
//= reach.md: a forked child cannot use its parent's connections
#[test]
fn a_child_that_initialises_by_itself_works() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let works = || {
            let pair = Pair::new(table);
            pair.message(5000, 5000, 1);
            pair.close();
            assert_eq!(take_warnings(), [""; 0]);
        };
        assert!(in_child(works));
        works();
        // Too late now.
        assert!(in_child(|| refused("init", table.init().0)));
        works();
    });
}

//= reach.md: ibv_fork_init is called once, before the devices are listed
#[test]
fn fork_support_is_requested_once_and_before_devices_are_listed() {
    isolated(here!(), &[], || {
        assert_eq!(softverbs::fork_init_calls(), (0, 0));
        for table in TABLES {
            let ctx = init(table);
            assert_eq!(softverbs::fork_init_calls(), (1, 0), "v{}", table.version());
            assert_eq!(table.finalize(ctx), Success);
        }
        assert_eq!(take_warnings(), [""; 0]);
    });
}

//= reach.md: ibv_fork_init is called once, before the devices are listed
#[test]
fn a_libibverbs_that_cannot_protect_from_forks_costs_one_warning() {
    isolated(here!(), &mpib("512", &[("MPIB_STRICT", "1")]), || {
        softverbs::fail_fork_init(libc::ENOSYS);
        for (i, table) in TABLES.iter().enumerate() {
            let ctx = init(table);
            let said = take_warnings();
            assert_eq!(said.len(), usize::from(i == 0), "{said:?}");
            for part in ["ibv_fork_init failed", "ENOSYS", "forks children", "RDMAV_FORK_SAFE=1"] {
                assert!(said.iter().all(|line| line.contains(part)), "{part}: {said:?}");
            }
            let pair = connect(table, ctx, 0);
            pair.message(100_000, 100_000, 1);
            pair.close();
            assert_eq!(table.finalize(ctx), Success);
        }
        assert_eq!(take_warnings(), [""; 0]);
    });
}
