//! Limits of the process and of the adapters: each call of the plugin meets them, fails by name, and
//! works when they are lifted.

use std::fs;
use std::os::unix::fs::MetadataExt;

use mpib_tests::code::Success;
use mpib_tests::log::{assert_warned, take_warnings, warnings};
use mpib_tests::pair::{both_fail, connect, init};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};
use nccl_net_mpib_agent_iface::stats::STATS_SIZE;
use softverbs::Object;

fn works() {
    let ctx = init(newest());
    let pair = connect(newest(), ctx, 0);
    pair.message(5000, 5000, 1);
    pair.close();
    assert_eq!(newest().finalize(ctx), Success);
}

/// Lets the kernel refuse new threads to this thread and those that it starts, for good, as it does
/// at the limit of a user or a control group.
fn refuse_threads() {
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k: i64, jt: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf: 0,
        k: k as u32,
    };
    let mut filter = [
        // The number of the system call, the first field of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump(libc::SYS_clone3, 2),
        jump(libc::SYS_clone, 1),
        statement(libc::BPF_RET | libc::BPF_K, ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, REFUSE),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of these statements, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Runs `body` in a thread that can start no thread.
fn without_threads<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_threads();
            body()
        });
        thread.join().unwrap()
    })
}

//= faults.md: 41: no thread can be started for init or listen: it fails by name
#[test]
fn a_call_without_threads_fails_and_works_later() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        assert_ne!(without_threads(|| table.init().0), Success);
        let refused = "Resource temporarily unavailable";
        assert_warned(&["init: starting the thread of the adapters' events", refused]);
        take_warnings();
        let ctx = init(table).expose_provenance();
        let ctx = || std::ptr::with_exposed_provenance_mut(ctx);
        assert_ne!(without_threads(|| table.listen(ctx(), 0, &mut [0; 128]).0), Success);
        assert_warned(&["listen: starting the thread of the control connections", refused]);
        take_warnings();
        let pair = connect(table, ctx(), 0);
        pair.message(5000, 5000, 1);
        pair.close();
        assert_eq!((table.finalize(ctx()), take_warnings().len()), (Success, 0));
    });
}

//= faults.md: 42: the adapter or a control group has no object left: both ends fail by name
#[test]
fn an_object_that_cannot_be_made_fails_both_ends() {
    isolated(here!(), &mpib("512", &[]), || {
        let (table, ctx) = (newest(), init(newest()));
        works();
        for (object, call) in
            [(Object::Cq, "ibv_create_cq"), (Object::Srq, "ibv_create_srq"), (Object::Qp, "ibv_create_qp")]
        {
            take_warnings();
            let mut handle = [0; 128];
            let (rc, listen) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            softverbs::fail_creation(object, libc::ENOMEM, u32::MAX);
            let _codes = both_fail(table, ctx, &mut handle, listen);
            softverbs::fail_creation(object, libc::ENOMEM, 0);
            let warned = warnings();
            // The end that fails, and the other one that is given the reason.
            let named = warned.iter().filter(|line| line.contains(call) && line.contains("ENOMEM"));
            assert!(named.count() >= 2, "{call}: {warned:#?}");
            assert_eq!(table.close_listen(listen), Success);
            works();
        }
    });
}

//= faults.md: 44: memory is short after init: the statistics page has all of its memory already
#[test]
fn the_statistics_page_has_its_memory_from_the_beginning() {
    isolated(here!(), &mpib("512", &[]), || {
        let ctx = init(newest());
        let fds = fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path());
        let is_page = |fd: &std::path::PathBuf| {
            fs::read_link(fd)
                .is_ok_and(|link| link.to_str().is_some_and(|link| link.starts_with("/memfd:mpib-stats")))
        };
        let pages: Vec<_> = fds.filter(is_page).collect();
        let [page] = &pages[..] else { panic!("{pages:?}") };
        // Blocks of 512 bytes; a file that only has a length has none.
        assert!(fs::metadata(page).unwrap().blocks() * 512 >= STATS_SIZE as u64);
        assert_eq!(newest().finalize(ctx), Success);
    });
}
