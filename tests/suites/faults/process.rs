//! What the process of the plugin does to it: signals, programs that it executes, children, its end.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fs;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mpib_tests::agent::Place;
use mpib_tests::code::{InvalidUsage, RemoteError, Success};
use mpib_tests::log::{LOG, take_warnings, warnings};
use mpib_tests::pair::{Buffer, Pair, connect, failure, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer, recv, to_peer, wait};
use mpib_tests::process::watchdog;
use mpib_tests::table::newest;
use mpib_tests::{TWO_RAILS, here, isolated, mpib, set};

/// The threads of the plugin: names, and the signals that each blocks.
fn threads() -> Vec<(String, u64)> {
    let thread = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field =
            |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
        let (name, blocked) = (field("Name:")?, field("SigBlk:")?);
        name.starts_with("mpib-").then(|| (name, u64::from_str_radix(&blocked, 16).unwrap()))
    };
    fs::read_dir("/proc/self/task").unwrap().filter_map(|task| thread(task.ok()?)).collect()
}

/// Connects with hints and an agent: all threads run that last.
fn with_hints(place: &Place) -> Pair {
    set("MPIB_AGENT_SOCKET", Some(place.socket()));
    set("MPIB_HINTS", Some(place.file()));
    Pair::new(newest())
}

//= faults.md: 71: a signal comes to the process: threads of the plugin never take it
#[test]
fn threads_take_no_signal_of_the_application() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::create();
        let mut agent = place.agent();
        let pair = with_hints(&place);
        agent.event("registered");
        let blocks = |blocked: u64, signal: &c_int| blocked >> (signal - 1) & 1 == 1;
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
        // The C library blocks all signals while a thread begins or ends.
        let all = until("the threads, none of which blocks signals of its own faults", || {
            let all = threads();
            let runs = |name: &str| all.iter().any(|thread| thread.0 == name);
            let all_run = ["mpib-bootstrap", "mpib-events", "mpib-hints"].into_iter().all(runs);
            let own = |thread: &(String, u64)| faults.iter().any(|fault| blocks(thread.1, fault));
            (all_run && !all.iter().any(own)).then_some(all)
        });
        let signals = [
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGALRM,
            libc::SIGPROF,
            libc::SIGVTALRM,
            libc::SIGCHLD,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGWINCH,
            libc::SIGPIPE,
            libc::SIGIO,
            libc::SIGRTMIN(),
            libc::SIGRTMAX(),
        ];
        for (name, blocked) in &all {
            assert!(signals.iter().all(|signal| blocks(*blocked, signal)), "{name}: {blocked:#x}");
        }
        // The thread that calls the plugin keeps its mask.
        let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: reads the mask into a writable set.
        let term = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), libc::SIGTERM)
        };
        assert_eq!(term, 0);
        pair.close();
    });
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts a thread without pause until `over`. No call is restarted by the kernel.
fn interrupt(thread: libc::pthread_t, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        // SAFETY: the thread waits for this one to end.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        // The thread must come to do something between two signals.
        std::thread::sleep(Duration::from_micros(200));
    }
}

//= faults.md: 48: signals interrupt system calls without end: every call of NCCL succeeds
#[test]
fn calls_that_signals_interrupt_succeed() {
    isolated(here!(), &mpib("512", &[]), || {
        // SAFETY: the handler only counts; without SA_RESTART calls end with EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()), 0);
        }
        let over = AtomicBool::new(false);
        // SAFETY: always succeeds.
        let this = unsafe { libc::pthread_self() };
        let mut peer = Peer::start();
        std::thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || interrupt(this, over));
            until("signals", || (HANDLED.load(Ordering::Relaxed) > 0).then_some(()));
            let (table, ctx) = (newest(), init(newest()));
            for seed in 0..20 {
                let pair = connect(table, ctx, 0);
                pair.message(100_000, 100_000, seed);
                pair.close();
            }
            let comm = from_peer(table, ctx, &mut peer);
            let to = Buffer::new(table, comm, vec![0; 5000]);
            for seed in 0..20 {
                let request = recv(table, comm, &to, 5000);
                peer.say(&format!("send 5000 {seed}"));
                assert_eq!(wait(table, request), 5000);
                assert!(to.bytes == pattern(5000, seed));
                assert_eq!(peer.answer(), "ok");
            }
            to.dereg();
            assert_eq!((table.close_recv(comm), table.finalize(ctx)), (Success, Success));
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(warnings(), [""; 0]);
    });
}

//= faults.md: 49: the peer has closed a socket that is written to: SIGPIPE kills nobody
#[test]
fn no_write_to_a_closed_socket_raises_a_signal() {
    isolated(here!(), &mpib("512", &[("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "1")]), || {
        // SAFETY: back to the default, which kills. Rust's runtime ignores the signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (table, ctx) = (newest(), init(newest()));
        let mut peer = Peer::start();
        let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
        let to = Buffer::new(table, here, vec![0; 1000]);
        let request = recv(table, here, &to, 1000);
        let from = Buffer::new(table, there, pattern(1000, 1));
        peer.must("post 1 1000");
        peer.kill();
        // Each end reports its failure to the dead peer, and then closes.
        let sent = table.isend(there, from.addr(), 1000, 1, from.mr);
        if sent.0 == Success && !sent.1.is_null() {
            assert_eq!(failure(table, sent.1), RemoteError);
        }
        assert_eq!(failure(table, request), RemoteError);
        to.dereg();
        from.dereg();
        assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
        assert_eq!(table.finalize(ctx), Success);
    });
}

/// The open descriptors, without the one that reads the list.
fn descriptors() -> BTreeSet<i32> {
    let all: Vec<i32> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fd.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    // SAFETY: fails for a descriptor that is closed, and changes nothing.
    all.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

//= faults.md: 65: the process executes another program: that program inherits no descriptor
#[test]
fn no_descriptor_survives_exec() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::create();
        let mut agent = place.agent();
        let before = descriptors();
        let pair = with_hints(&place);
        agent.event("registered");
        let mut handle = [0; 128];
        let ctx = init(newest());
        let (rc, listen) = newest().listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        let ours: Vec<i32> = descriptors().difference(&before).copied().collect();
        assert!(ours.len() > 10, "adapters, sockets, the page, the agent: {ours:?}");
        for fd in ours {
            // SAFETY: changes nothing, also if the number is no descriptor.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            let link = fs::read_link(format!("/proc/self/fd/{fd}"));
            assert!(flags < 0 || flags & libc::FD_CLOEXEC != 0, "{fd} is {link:?}");
        }
        pair.close();
        assert_eq!(newest().close_listen(listen), Success);
    });
}

/// Makes a child as programs do that do not call `fork`. Returns the status with which it ended.
fn cloned(body: impl FnOnce() -> bool) -> c_int {
    // SAFETY: like fork, without the handlers. The child uses this thread and the allocator, which
    // no other thread of this process uses now, and ends by `_exit`.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    assert!(child >= 0);
    if child == 0 {
        watchdog();
        let good = body();
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, which nobody else waits for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

//= faults.md: 64: a child is made by the system call clone: its calls are refused as in any child
#[test]
fn a_child_without_fork_handlers_is_refused() {
    isolated(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let from = pair.send_buffer(pattern(1000, 1));
        let (table, send) = (pair.table, pair.send);
        // SAFETY: a number that may be no socket, and writable bytes.
        let is_connected = |fd: &i32| unsafe {
            let (mut addr, mut len) = ([0u8; 128], 128);
            libc::getpeername(*fd, addr.as_mut_ptr().cast(), &raw mut len) == 0
                && [libc::AF_INET, libc::AF_INET6].contains(&i32::from(addr[0]))
        };
        let connected = || descriptors().iter().filter(|fd| is_connected(fd)).count();
        assert!(connected() > 0);
        let refused = || {
            let (rc, _) = table.devices();
            let line = LOG.lock().unwrap().last().cloned();
            let named = line.is_some_and(|line| line.1.contains("forked from process"));
            let on_data_path = table.isend(send, from.addr(), 1000, 1, from.mr).0;
            // And it holds no connection of its parent open.
            let open = connected();
            named && [rc, on_data_path] == [InvalidUsage; 2] && open == 0
        };
        assert_eq!(cloned(refused), 0);
        pair.message(1000, 1000, 2);
        from.dereg();
        pair.close();
        assert_eq!(take_warnings(), [""; 0]);
    });
}

/// Runs first of the handlers of `exit` that this test registers, after those of the plugin.
extern "C" fn after_the_plugin() {
    let lines = LOG.lock().unwrap().len();
    // Its threads have ended, or the kernel is about to remove them.
    until("the threads to end", || threads().is_empty().then_some(()));
    // A call that fails logs nothing: what the logger uses may be destroyed.
    assert_ne!(newest().properties(99).0, Success);
    let silent = LOG.lock().unwrap().len() == lines;
    // SAFETY: ends the process.
    unsafe { libc::_exit(if silent { 7 } else { 8 }) };
}

//= faults.md: 70: the process exits with comms alive: its threads end first, nothing is logged later
#[test]
fn threads_end_before_the_process() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::create();
        let mut agent = place.agent();
        // SAFETY: the child uses this thread and the allocator, which glibc keeps whole across a
        // fork. Nothing here holds a lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            watchdog();
            // SAFETY: the handler takes nothing and unwinds never: a panic in it aborts.
            assert_eq!(unsafe { libc::atexit(after_the_plugin) }, 0);
            let pair = with_hints(&place);
            pair.message(5000, 5000, 1);
            until("the threads", || (threads().len() >= 3).then_some(()));
            // SAFETY: the end of the process, with what it has arranged for that.
            unsafe { libc::exit(0) };
        }
        agent.event("registered");
        let mut status = 0;
        // SAFETY: a child of this process, which nobody else waits for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    });
}
