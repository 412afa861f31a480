//! Limits of the process and of the adapters: each call of the plugin meets them, fails by name, and
//! works when they are lifted.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;

use mpib_tests::code::Success;
use mpib_tests::log::{assert_warned, take_warnings, warnings};
use mpib_tests::pair::{both_fail, connect, init, try_connect, until};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{here, isolated, mpib};
use nccl_net_mpib_agent_iface::stats::STATS_SIZE;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use softverbs::Call;

/// What a process makes in order to have a connection, and what it has so far.
struct Steps {
    table: &'static Table,
    ctx: Ptr,
    listen: Ptr,
    handle: [u8; 128],
    send: Ptr,
    recv: Ptr,
}

impl Steps {
    /// Goes as far as a limit lets it. Returns the call that failed first, if any.
    fn go(&mut self) -> Option<&'static str> {
        let table = self.table;
        let (rc, ctx) = table.init();
        if rc != Success {
            return Some("init");
        }
        self.ctx = ctx;
        let (rc, listen) = table.listen(ctx, 0, &mut self.handle);
        if rc != Success {
            return Some("listen");
        }
        self.listen = listen;
        until("connect and accept, or an error", || {
            if self.send.is_null() {
                let (rc, comm) = table.connect(ctx, 0, &mut self.handle);
                if rc != Success {
                    return Some(Some("connect"));
                }
                self.send = comm;
            }
            if self.recv.is_null() {
                let (rc, comm) = table.accept(listen);
                if rc != Success {
                    return Some(Some("accept"));
                }
                self.recv = comm;
            }
            (!self.send.is_null() && !self.recv.is_null()).then_some(None)
        })
    }

    fn new() -> Self {
        let (table, none) = (newest(), null_mut());
        Self { table, ctx: none, listen: none, handle: [0; 128], send: none, recv: none }
    }

    /// Closes what there is, as NCCL does after an error.
    fn end(self) {
        let table = self.table;
        if !self.send.is_null() {
            assert_eq!(table.close_send(self.send), Success);
        }
        if !self.recv.is_null() {
            assert_eq!(table.close_recv(self.recv), Success);
        }
        if !self.listen.is_null() {
            assert_eq!(table.close_listen(self.listen), Success);
        }
        if !self.ctx.is_null() {
            assert_eq!(table.finalize(self.ctx), Success);
        }
    }
}

/// On a busy machine the short time of a handshake may pass first: then it is tried again.
fn works() {
    let ctx = init(newest());
    let pair = until("a connection within its time", || try_connect(newest(), ctx, 0).ok());
    pair.message(5000, 5000, 1);
    pair.close();
    assert_eq!(newest().finalize(ctx), Success);
}

/// The number of the first free descriptor.
fn first_free() -> u64 {
    fs::File::open("/dev/null").unwrap().as_raw_fd() as u64
}

//= faults.md: 37: no descriptor is left for init, listen, connect or accept: it fails by name
#[test]
fn a_call_without_descriptors_fails_and_works_later() {
    let env = mpib("512", &[("MPIB_CONNECT_TIMEOUT_MS", "300")]);
    isolated(here!(), &env, || {
        // The software devices join their fabric once.
        works();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let mut failed = Vec::new();
        for more in 0.. {
            assert!(more < 200, "{failed:?}");
            // A handshake that fails by its time alone says nothing.
            let call = until("a call that the limit lets through, or fails", || {
                let limit = first_free() + more;
                setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
                let mut steps = Steps::new();
                let call = steps.go();
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
                let warned = warnings();
                steps.end();
                take_warnings();
                // By its name, or at the other end, which a listener without descriptors never answers.
                let names = |line: &String| {
                    ["EMFILE", "Too many open files", "ulimit -n"].iter().any(|part| line.contains(part))
                };
                let timed_out = |line: &String| line.contains("MPIB_CONNECT_TIMEOUT_MS");
                let Some(call) = call else { return Some(None) };
                if warned.iter().any(names) {
                    return Some(Some(call));
                }
                assert!(warned.iter().any(timed_out), "{call} with {more} descriptors: {warned:#?}");
                None
            });
            let Some(call) = call else { break };
            failed.push(call);
        }
        failed.dedup();
        assert!(failed.starts_with(&["init"]) && failed.contains(&"listen"), "{failed:?}");
        works();
    });
}

//= scale.md: init raises the limit on open files
#[test]
fn init_raises_the_limit_on_open_files_once() {
    isolated(here!(), &mpib("512", &[]), || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let wanted = hard.min(65_536);
        setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
        works();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (wanted, hard));
        // The program may have another opinion.
        setrlimit(Resource::RLIMIT_NOFILE, 512, hard).unwrap();
        works();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (512, hard));
    });
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
        for (call, named) in [
            (Call::CreateCq, "ibv_create_cq"),
            (Call::CreateSrq, "ibv_create_srq"),
            (Call::CreateQp, "ibv_create_qp"),
        ] {
            take_warnings();
            let mut handle = [0; 128];
            let (rc, listen) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            for device in ["soft0", "soft1"] {
                softverbs::fail(device, call.fails(libc::ENOMEM).times(u32::MAX)).unwrap();
            }
            let _codes = both_fail(table, ctx, &mut handle, listen);
            for device in ["soft0", "soft1"] {
                softverbs::fail(device, call.fails(0).times(0)).unwrap();
            }
            let warned = warnings();
            // The end that fails, and the other one that is given the reason.
            let named = warned.iter().filter(|line| line.contains(named) && line.contains("ENOMEM"));
            assert!(named.count() >= 2, "{call:?}: {warned:#?}");
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
