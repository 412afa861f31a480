//! `listen`, `connect` and `accept` wait for nothing and soon make no system call if nothing
//! happens. A receive that is done already makes none, and neither does an event of NCCL's profiler.
//! ptrace shows the system calls of the calling thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_proto::{Addr, Handle};
use mpib_tests::code::Success;
use mpib_tests::pair::{HOST, Pair, init, until};
use mpib_tests::process::watchdog;
use mpib_tests::profiled::{ON, Profiled, callback, record_state, stop};
use mpib_tests::table::{Ptr, newest, set_profiler, set_profiler_handles};
use mpib_tests::{here, isolated, mpib};
use nccl_net_abi as abi;

/// Numbers of system calls that do not exist, by which the traced thread marks what it is about to
/// do; the last one says that it is over.
const MARKS: i64 = 1 << 20;
const NAMES: [&str; 9] = [
    "listen",
    "first connect",
    "connect",
    "idle connect",
    "accept",
    "idle accept",
    "idle test",
    "first accept",
    "profiler event",
];
const PROFILER_EVENT: usize = 8;
const OVER: usize = NAMES.len();

/// System calls that one call may make, at most. The costliest looks at the network interfaces and
/// at each entry of two GID tables, whose kinds are in files of /sys.
const MOST: usize = 500;
/// System calls that a call may make that finds nothing for its own connection, at most: a look at
/// the sockets of all handshakes, or the next try of an address.
const IDLE_MOST: usize = 50;
/// Calls without a system call in a row after which NCCL's calls have left the sockets to the
/// thread. Fewer may be between two events.
const RESTING: usize = 200;

/// A flag that the two processes share.
fn shared_flag() -> &'static AtomicBool {
    let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of one zeroed page, which is never unmapped.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, access, how, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        AtomicBool::from_ptr(page.cast())
    }
}

/// Marks the beginning of call number `kind` in the traced thread.
fn marked<T>(kind: usize, call: impl FnOnce() -> T) -> T {
    let mark = |kind: usize| {
        // SAFETY: there is no such system call: the kernel returns ENOSYS and does nothing.
        unsafe { libc::syscall(MARKS + kind as i64) }
    };
    mark(kind);
    let result = call();
    mark(OVER);
    result
}

/// Makes a connection to itself, with each call marked, beside an attempt that is never answered.
/// `rests` is set once the idle calls make no system call any more.
fn traced(rests: &AtomicBool) {
    let table = newest();
    let ctx = init(table);
    let mut handle = [0; 128];
    let (rc, listen) = marked(0, || table.listen(ctx, 0, &mut handle));
    assert_eq!(rc, Success);
    // Nobody answers: one address accepts connections and sends nothing, one is unreachable (RFC
    // 5737).
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addrs = ["127.0.0.1", "192.0.2.77"].map(|ip| Addr::new(ip.parse().unwrap(), 24).unwrap());
    let port = silent.local_addr().unwrap().port();
    let mut nobody = Handle::new([7; 16], port, &addrs).unwrap().encode();
    let unanswered = |kind, handle: &mut [u8; 128]| {
        assert_eq!(marked(kind, || table.connect(ctx, 0, handle)), (Success, Ptr::default()));
    };
    unanswered(1, &mut nobody);
    // Creates the queue pairs for a peer.
    assert_eq!(marked(7, || table.accept(listen)), (Success, Ptr::default()));
    // Neither call makes progress, no matter how often it is repeated.
    while !rests.load(Ordering::Relaxed) {
        unanswered(3, &mut nobody);
        assert_eq!(marked(5, || table.accept(listen)), (Success, Ptr::default()));
    }
    // Changes to RTR fail and are retried: no call waits for a retry.
    softverbs::fail("soft0", softverbs::Call::ModifyRtr.fails(libc::ETIMEDOUT).times(3)).unwrap();
    let (mut kind, mut ends) = (1, [Ptr::default(); 2]);
    until("both ends", || {
        if ends[0].is_null() {
            let (rc, comm) = marked(kind, || table.connect(ctx, 0, &mut handle));
            assert_eq!(rc, Success);
            (kind, ends[0]) = (2, comm);
        }
        if ends[1].is_null() {
            let (rc, comm) = marked(4, || table.accept(listen));
            assert_eq!(rc, Success);
            ends[1] = comm;
        }
        ends.iter().all(|end| !end.is_null()).then_some(())
    });
    unanswered(3, &mut nobody);
    // Optional receives complete at once.
    let word = [0u64];
    let (rc, mr) = table.reg_mr(ends[1], word.as_ptr().addr(), 8, HOST);
    assert_eq!(rc, Success);
    for _ in 0..60 {
        let (rc, request) = table.irecv_as(ends[1], &[(word.as_ptr().addr(), 8, 1, mr)], 1);
        assert_eq!((rc, request.is_null()), (Success, false));
        assert_eq!(marked(6, || table.test(request)), (Success, true, [0; 8]));
    }
    assert_eq!(table.dereg_mr(ends[1], mr), Success);
    assert_eq!(
        (table.close_send(ends[0]), table.close_recv(ends[1]), table.close_listen(listen)),
        (Success, Success, Success)
    );
}

/// A system call of a marked call: its number, its arguments, and whether a socket that it is about
/// may make it wait.
type Seen = (i64, [u64; 6], bool);

/// Returns whether the last calls were idle ones that made no system call.
fn is_resting(calls: &[(usize, Vec<Seen>)]) -> bool {
    let idle = |(kind, seen): &&(usize, Vec<Seen>)| NAMES[*kind].starts_with("idle") && seen.is_empty();
    calls.iter().rev().take_while(idle).count() >= RESTING
}

/// What the traced process did in its marked calls. Sets `rests` once its idle calls make no system
/// call.
fn trace(child: i32, rests: &AtomicBool) -> Vec<(usize, Vec<Seen>)> {
    let mut calls: Vec<(usize, Vec<Seen>)> = Vec::new();
    let (mut status, mut within, mut local) = (0, false, BTreeSet::new());
    // SAFETY: plain use of ptrace and waitpid on our own child, which has stopped itself.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSTOPPED(status), "ptrace is not permitted here");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options), 0);
    }
    let mut signal = 0;
    let mut entry = (0, [0; 6]);
    loop {
        // SAFETY: as above; the struct is the kernel's own, and it writes no more than its size.
        let info = unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, child, 0, signal), 0);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "the traced process");
                return calls;
            }
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, child, size_of_val(&info), &raw mut info);
            info
        };
        assert!(libc::WIFSTOPPED(status), "the traced process ended by signal {}", libc::WTERMSIG(status));
        let stop = libc::WSTOPSIG(status);
        signal = if stop == libc::SIGTRAP | 0x80 { 0 } else { stop };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                // SAFETY: the kernel says that it has filled this member in.
                let of = unsafe { info.u.entry };
                entry = (of.nr as i64, of.args);
                match usize::try_from(entry.0 - MARKS) {
                    Ok(OVER) => {
                        within = false;
                        rests.fetch_or(is_resting(&calls), Ordering::Relaxed);
                    }
                    Ok(kind) => {
                        calls.push((kind, Vec::new()));
                        within = true;
                    }
                    Err(_) if within => {
                        let waits = waits_on_socket(child, entry, &local);
                        calls.last_mut().unwrap().1.push((entry.0, entry.1, waits));
                    }
                    Err(_) => {}
                }
            }
            // SAFETY: as above.
            libc::PTRACE_SYSCALL_INFO_EXIT => match (entry, unsafe { info.u.exit.sval }) {
                // The kernel itself answers on these, before it takes the question as sent.
                ((libc::SYS_socket, args), fd) if args[0] == libc::AF_NETLINK as u64 => {
                    local.insert(fd as u64);
                }
                ((libc::SYS_close, args), _) => {
                    local.remove(&args[0]);
                }
                _ => {}
            },
            _ => {}
        }
    }
}

/// Whether it may wait for another end of a socket: that is one that may make it wait, and not the
/// kernel's own.
fn waits_on_socket(child: i32, (nr, args): (i64, [u64; 6]), local: &BTreeSet<u64>) -> bool {
    const ABOUT_SOCKETS: [i64; 13] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_connect,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
    ];
    let fd = args[0];
    let link = std::fs::read_link(format!("/proc/{child}/fd/{fd}"));
    let is_socket = link.is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
    if !ABOUT_SOCKETS.contains(&nr) || !is_socket || local.contains(&fd) {
        return false;
    }
    let info = std::fs::read_to_string(format!("/proc/{child}/fdinfo/{fd}")).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    i32::from_str_radix(flags, 8).unwrap() & libc::O_NONBLOCK == 0
}

/// Begins and ends events of operations, and of what their messages do.
fn traced_events() {
    set_profiler(Some(traced_callback));
    let table = newest();
    let pair = Pair::new(table);
    let world = Profiled::new().unwrap();
    let event = |begin: &dyn Fn() -> Ptr| {
        let event = marked(PROFILER_EVENT, begin);
        assert!(!event.is_null());
        event
    };
    let end = |event: Ptr| marked(PROFILER_EVENT, || stop(event));
    let process = std::process::id();
    for sequence in 0..20 {
        let operation = event(&|| world.operation(sequence));
        end(operation);
        let part = event(&|| world.part(operation, process));
        let step = event(&|| world.step(part));
        marked(PROFILER_EVENT, || record_state(step));
        set_profiler_handles(Some([step; 8]));
        pair.message(100_000, 100_000, sequence);
        set_profiler_handles(None);
        end(step);
        end(part);
    }
    world.close();
    pair.close();
}

/// NCCL's callback, with each call marked.
///
/// # Safety
/// As NCCL's.
unsafe extern "C" fn traced_callback(
    event: *mut Ptr,
    kind: c_int,
    handle: Ptr,
    id: i64,
    data: *mut c_void,
) -> abi::ncclResult_t {
    // SAFETY: the caller's promise.
    marked(PROFILER_EVENT, || unsafe { callback(event, kind, handle, id, data) })
}

/// Why a system call may wait for something that another process or the network does, or a clock;
/// `None` if it cannot.
fn waits((nr, args, on_socket): &Seen) -> Option<&'static str> {
    // poll and similar calls return at once if their timeout is 0.
    let zero = |at: usize| args[at] as i32 == 0;
    match *nr {
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep | libc::SYS_rt_sigtimedwait => Some("it sleeps"),
        libc::SYS_wait4 | libc::SYS_waitid => Some("it waits for a process"),
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_futex_waitv => {
            Some("it waits for descriptors or a lock")
        }
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if !zero(3) => Some("it waits for events"),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait if !zero(3) => Some("it waits for events"),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll if !zero(2) => Some("it waits for descriptors"),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause | libc::SYS_select => Some("it waits for a signal or descriptors"),
        _ if *on_socket => Some("it waits for the other end of a socket"),
        _ => None,
    }
}

/// Runs this in a process of its kind, and returns what that did in its marked calls.
fn of_traced_process(traced: impl FnOnce(&AtomicBool)) -> Vec<(usize, Vec<Seen>)> {
    let rests = shared_flag();
    // SAFETY: this process has one thread but libtest's, which waits; the child uses the allocator,
    // which glibc keeps whole.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        watchdog();
        // SAFETY: asks the parent to trace this thread, and stops for it to take over.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(1);
            }
            libc::raise(libc::SIGSTOP);
        }
        let failed = std::panic::catch_unwind(AssertUnwindSafe(|| traced(rests))).is_err();
        // SAFETY: the end of the process, with what it has arranged for that.
        unsafe { libc::exit(i32::from(failed)) };
    }
    trace(child, rests)
}

/// A futex call is a lock that another thread holds for a moment, or wakes threads. As long as the
/// calls are few, none of them is a wait for a peer.
//= protocol.md: listen, connect and accept make no blocking system call
#[test]
fn listen_connect_and_accept_wait_for_nothing() {
    isolated(here!(), &mpib("512", &[]), || {
        let mut most: BTreeMap<&str, usize> = BTreeMap::new();
        for (kind, seen) in of_traced_process(traced) {
            let numbers: Vec<i64> = seen.iter().map(|s| s.0).collect();
            for call in &seen {
                let why = waits(call);
                assert_eq!(why, None, "system call {} of {}: {numbers:?}", call.0, NAMES[kind]);
            }
            let n = most.entry(NAMES[kind]).or_default();
            *n = (*n).max(seen.len());
            let limit = match NAMES[kind] {
                "idle test" => 0,
                name if name.starts_with("idle") => IDLE_MOST,
                _ => MOST,
            };
            assert!(seen.len() <= limit, "{} makes {} system calls: {numbers:?}", NAMES[kind], seen.len());
        }
        assert_eq!(most.len(), PROFILER_EVENT, "{most:?}");
    });
}

/// Reading the clock is none where the kernel offers that.
#[test]
fn events_of_the_profiler_make_no_system_call() {
    isolated(here!(), &mpib("512", &[ON]), || {
        let calls = of_traced_process(|_| traced_events());
        // Each message begins an event of its send and one of its receive on each of two rails.
        // Housekeeping may end them.
        assert!(calls.len() >= 20 * (7 + 4), "{} calls", calls.len());
        for (kind, seen) in calls {
            let numbers: Vec<i64> =
                seen.iter().map(|s| s.0).filter(|n| *n != libc::SYS_clock_gettime).collect();
            assert_eq!((kind, &numbers[..]), (PROFILER_EVENT, &[][..]));
        }
    });
}
