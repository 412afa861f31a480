//! The threads of the plugin. They take no signal that is meant for the application, they report a
//! panic, and they end before the process does.
//!
//! `exit` runs the destructors of libraries while other threads go on. A thread that then calls
//! NCCL's logger or libibverbs uses what is destroyed already. A handler of `atexit` therefore ends
//! the threads first; it runs before the destructors of libraries that were loaded before it was
//! registered.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long the end of the process waits for the threads: one of them may be in a call that blocks.
const PATIENCE: Duration = Duration::from_secs(1);

/// Wakes a thread that waits, from another thread.
type Wake = dyn Fn() + Send + Sync;

/// The threads that run, by number.
static RUNNING: Mutex<Vec<(u64, Arc<Wake>)>> = Mutex::new(Vec::new());
/// Notified when a thread ends.
static ENDED: Condvar = Condvar::new();
static EXITING: AtomicBool = AtomicBool::new(false);
static EXITED: AtomicBool = AtomicBool::new(false);
/// The process whose threads they are. A forked child has none of them.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread. It must end soon after [`is_exiting`] returns `true`; `wake` wakes it then.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn spawn(
    name: &'static str,
    wake: impl Fn() + Send + Sync + 'static,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    end_at_exit();
    let running = Running::new(Arc::new(wake));
    // A new thread has the mask of the one that starts it.
    let _blocked = BlockedSignals::new();
    thread::Builder::new().name(name.into()).spawn(move || {
        let _running = running;
        OURS.set(true);
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            tracing::warn!(target: "net", "internal error, please report it: the thread {name} has ended by a panic");
        }
    })
}

/// Returns whether the calling thread was started by [`spawn`].
pub(crate) fn is_ours() -> bool {
    OURS.get()
}

/// Returns whether the process ends, and the threads must.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Returns whether the process ends, and the threads have ended.
pub(crate) fn has_exited() -> bool {
    EXITED.load(Ordering::Acquire)
}

/// An entry in the list of running threads.
struct Running(u64);

impl Running {
    fn new(wake: Arc<Wake>) -> Self {
        let mut running = RUNNING.lock();
        let number = running.last().map_or(0, |last| last.0 + 1);
        running.push((number, wake));
        Self(number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        let entry = running.iter().position(|one| one.0 == self.0).map(|at| running.remove(at));
        ENDED.notify_all();
        drop(running);
        // What wakes the thread may own something whose drop takes locks.
        drop(entry);
    }
}

/// Registers [`on_exit`], once.
fn end_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler takes nothing, unwinds never, and is in a file that is never unloaded.
        // Without memory for it, threads run on as the process ends.
        let _ = unsafe { libc::atexit(on_exit) };
    });
}

extern "C" fn on_exit() {
    // The threads of a parent do not exist here, and its locks may be locked for ever.
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    EXITING.store(true, Ordering::Release);
    let until = Instant::now() + PATIENCE;
    let threads: Vec<_> = RUNNING.lock().iter().map(|(_, wake)| Arc::clone(wake)).collect();
    threads.iter().for_each(|wake| wake());
    let mut running = RUNNING.lock();
    while !running.is_empty() && !ENDED.wait_until(&mut running, until).timed_out() {}
    EXITED.store(true, Ordering::Release);
}

/// The signals of the calling thread are blocked while this exists, except those that a fault of the
/// thread itself raises.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are writable; `all` is initialised by the first call, and `before` by
        // the last one, which fails only for an unknown way of changing the mask.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in
                [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
            {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
