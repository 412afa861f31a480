//! Who serves the sockets: NCCL's calls while handshakes make progress, else a background thread.
//!
//! A call of `connect` or `accept` that finds nothing for its connection serves the ready sockets of
//! all handshakes of the process ([`Reactor::drive`]). No handshake therefore waits for a time slice of
//! the thread. The thread checks every [`QUIET`] whether the sockets are served. If no socket was
//! ready for that long, the thread serves them from then on, and calls that wait make no system
//! call. The first event gives them back to the calls. Established connections belong to the
//! thread.

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use mpib_proto::{Handle, HostId};
use parking_lot::{Mutex, MutexGuard};

use super::bounds::HandshakeLimit;
use super::interfaces::{Interface, Interfaces};
use super::link::Call;
use super::redial::SharedListener;
use super::sockets::{FrameCounts, HANDSHAKES, Sockets, WAKER};
use super::targets::{self, KnownAddresses};
use crate::background;
use crate::error::{Error, Result};
use crate::warned::Warned;

/// How long the sockets of handshakes may be quiet before the thread serves them.
const QUIET: Duration = Duration::from_millis(10);
/// How long the thread outlives its last user: the next one finds it running.
const KEEP: Duration = Duration::from_secs(1);

/// The control connections of a process, and the thread that serves them.
#[derive(Debug)]
pub struct Control {
    running: Mutex<Running>,
    interfaces: Interfaces,
    /// This host.
    pub(super) host: HostId,
    pub(super) known: Arc<KnownAddresses>,
    pub(super) warned: Arc<Warned>,
    counts: Arc<dyn FrameCounts>,
    pub(crate) handshakes: Arc<HandshakeLimit>,
    /// The listener for re-dials.
    pub(super) redials: SharedListener,
}

#[derive(Debug, Default)]
struct Running {
    users: Weak<Reactor>,
    /// The thread's state outlives the last user.
    shared: Weak<Shared>,
}

impl Control {
    /// Tries another address of the host first: a handshake over this one broke.
    pub(crate) fn prefer_next(&self, handle: &Handle, broke: IpAddr) {
        self.known.prefer_next(handle.addrs(), broke);
    }

    pub(crate) fn new(warned: Arc<Warned>, counts: Arc<dyn FrameCounts>) -> Self {
        let (running, interfaces) = (Mutex::default(), Interfaces::default());
        Self {
            running,
            interfaces,
            host: targets::here(),
            known: Arc::default(),
            warned,
            counts,
            handshakes: HandshakeLimit::of_process(),
            redials: SharedListener::default(),
        }
    }

    /// Returns the addresses of all interfaces that are up and running, loopback included.
    pub fn interfaces(&self) -> Result<Arc<[Interface]>> {
        self.interfaces.now()
    }

    /// Returns the running thread, or starts one.
    pub(super) fn reactor(&self) -> Result<Arc<Reactor>> {
        let mut running = self.running.lock();
        // A thread that has ended has reported that to its users; new users get a new one.
        if let Some(reactor) = running.users.upgrade().filter(|r| r.alive().is_ok()) {
            return Ok(reactor);
        }
        let kept = running.shared.upgrade().filter(|shared| shared.keep());
        let shared = match kept {
            Some(shared) => shared,
            None => Shared::start(&self.counts)
                .map_err(|e| Error::io("starting the thread of the control connections", e))?,
        };
        let reactor = Arc::new(Reactor { shared: Arc::clone(&shared) });
        *running = Running { users: Arc::downgrade(&reactor), shared: Arc::downgrade(&shared) };
        Ok(reactor)
    }
}

/// The thread as its users hold it. It ends some time after the last one is dropped.
#[derive(Debug)]
pub(super) struct Reactor {
    shared: Arc<Shared>,
}

/// What the thread and its users share.
#[derive(Debug)]
struct Shared {
    serving: Mutex<Serving>,
    /// Whether NCCL's calls serve the handshakes: a copy of the field of `Serving` that is read
    /// without the lock.
    driven: AtomicBool,
    dead: AtomicBool,
}

/// The sockets, and who serves them.
#[derive(Debug)]
struct Serving {
    sockets: Sockets,
    waker: Waker,
    driven: bool,
    /// Whether a socket of a handshake was ready since the last check.
    active: bool,
    next_check: Instant,
    /// When the thread wakes without an event.
    sleeps_until: Option<Instant>,
    users: usize,
    /// Since when the thread has no user.
    unused_since: Option<Instant>,
}

impl Reactor {
    /// Passes the sockets to `f`, which begins or ends a handshake or a connection.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Sockets) -> T) -> Result<T> {
        let mut locked = self.shared.lock();
        let serving = &mut locked.serving;
        self.alive()?;
        let result = f(&mut serving.sockets);
        serving.wake_for_timers()?;
        Ok(result)
    }

    /// As [`with`](Self::with), for new sockets of a handshake: NCCL's calls serve them.
    pub(super) fn begin<T>(&self, f: impl FnOnce(&mut Sockets) -> T) -> Result<T> {
        let mut locked = self.shared.lock();
        let serving = &mut locked.serving;
        self.alive()?;
        let result = f(&mut serving.sockets);
        serving.drive(&self.shared)?;
        Ok(result)
    }

    /// Serves the sockets of all handshakes that are ready, if NCCL's calls serve them now and no
    /// other call is at it. Waits for nothing.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn drive(&self) -> Result<()> {
        if self.shared.driven.load(Ordering::Acquire)
            && let Some(mut locked) = self.shared.try_lock()
        {
            locked.serving.serve();
            locked.serving.wake_for_timers()?;
        }
        self.alive()
    }

    /// Returns an error if the thread has ended. Only a bug in this plugin can end it.
    pub(super) fn alive(&self) -> Result<()> {
        if self.shared.dead.load(Ordering::Acquire) {
            return Err(Error::Internal("the thread of the control connections has ended".into()));
        }
        Ok(())
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // The thread is not joined: lingering channels may take seconds, and the plugin's file is
        // never unmapped.
        let now = Instant::now();
        let mut locked = self.shared.lock();
        let serving = &mut locked.serving;
        serving.users -= 1;
        if serving.users > 0 {
            return;
        }
        serving.unused_since = Some(now);
        // Fails only if the descriptor is closed, and then the thread has ended.
        let _ = serving.wake_by(now + KEEP);
    }
}

impl Shared {
    fn start(counts: &Arc<dyn FrameCounts>) -> io::Result<Arc<Self>> {
        let poll = Poll::new()?;
        let now = Instant::now();
        let serving = Serving {
            sockets: Sockets::new(poll.registry().try_clone()?, Arc::clone(counts))?,
            waker: Waker::new(poll.registry(), WAKER)?,
            driven: true,
            active: true,
            next_check: now + QUIET,
            sleeps_until: Some(now),
            users: 1,
            unused_since: None,
        };
        let shared = Arc::new(Self {
            serving: Mutex::new(serving),
            driven: AtomicBool::new(true),
            dead: AtomicBool::new(false),
        });
        let thread = Arc::clone(&shared);
        let woken = Arc::downgrade(&shared);
        background::spawn("mpib-bootstrap", move || wake(&woken), move || run(poll, &thread))?;
        Ok(shared)
    }

    fn lock(&self) -> Locked<'_> {
        Locked { serving: self.serving.lock(), dead: &self.dead, panicking: thread::panicking() }
    }

    fn try_lock(&self) -> Option<Locked<'_>> {
        let serving = self.serving.try_lock()?;
        Some(Locked { serving, dead: &self.dead, panicking: thread::panicking() })
    }

    /// Adds a user; returns `false` if the thread has ended.
    fn keep(&self) -> bool {
        let mut locked = self.lock();
        if self.dead.load(Ordering::Acquire) {
            return false;
        }
        let serving = &mut locked.serving;
        serving.users += 1;
        serving.unused_since = None;
        true
    }
}

/// The lock of the sockets. A panic under it may have lost a socket: all connections fail then, and
/// none waits forever.
struct Locked<'a> {
    serving: MutexGuard<'a, Serving>,
    dead: &'a AtomicBool,
    /// Whether the thread was panicking before: it drops a channel then.
    panicking: bool,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.panicking {
            self.dead.store(true, Ordering::Release);
            self.serving.sockets.fail_all();
        }
    }
}

impl Serving {
    /// Serves the ready sockets of handshakes.
    fn serve(&mut self) {
        self.active |= self.sockets.serve_handshakes();
    }

    /// Makes NCCL's calls serve the handshakes.
    fn drive(&mut self, shared: &Shared) -> Result<()> {
        self.active = true;
        if !self.driven {
            self.sockets.watch_handshakes(false).map_err(failed)?;
            self.driven = true;
            shared.driven.store(true, Ordering::Release);
            self.next_check = Instant::now() + QUIET;
        }
        self.wake_by(self.next_check)
    }

    /// Makes the thread wake up at `at`, or earlier.
    fn wake_by(&mut self, at: Instant) -> Result<()> {
        if self.sleeps_until.is_none_or(|until| at < until) {
            self.waker.wake().map_err(failed)?;
            self.sleeps_until = Some(at);
        }
        Ok(())
    }

    fn wake_for_timers(&mut self) -> Result<()> {
        // The thread makes the calls that notify the owners.
        let now = self.sockets.has_news().then(Instant::now);
        now.into_iter().chain(self.sockets.next_timer()).min().map_or(Ok(()), |at| self.wake_by(at))
    }

    /// Does the thread's part. Returns how long it may sleep: `None` if it is to end.
    fn check(&mut self, shared: &Shared) -> io::Result<Option<Option<Duration>>> {
        let now = Instant::now();
        self.sockets.run_timers(now);
        if !self.driven {
            self.active = false;
            self.serve();
            if self.active {
                self.sockets.watch_handshakes(false)?;
                self.next_check = now + QUIET;
            }
        } else if now >= self.next_check {
            if !self.active {
                self.serve();
            }
            if !self.active {
                self.sockets.watch_handshakes(true)?;
            }
            self.next_check = now + QUIET;
        } else {
            return Ok(Some(self.sleep(now)));
        }
        self.driven = std::mem::take(&mut self.active);
        shared.driven.store(self.driven, Ordering::Release);
        let unused = self.unused_since.is_some_and(|since| now >= since + KEEP);
        if unused && self.sockets.is_empty() {
            // Under the lock: a new user finds the thread either alive, and keeps it, or ended.
            shared.dead.store(true, Ordering::Release);
            return Ok(None);
        }
        Ok(Some(self.sleep(now)))
    }

    /// Returns how long the thread may sleep.
    fn sleep(&mut self, now: Instant) -> Option<Duration> {
        let check = self.driven.then_some(self.next_check);
        let again = (!self.driven && self.sockets.is_behind()).then_some(now);
        let unused = self.unused_since.filter(|_| self.sockets.is_empty()).map(|since| since + KEEP);
        let until = [check, again, unused, self.sockets.next_timer()].into_iter().flatten().min();
        self.sleeps_until = until;
        until.map(|at| at.saturating_duration_since(now))
    }
}

fn failed(e: io::Error) -> Error {
    Error::io("serving the control connections", e)
}

/// Marks the end of the thread.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut locked = self.0.lock();
        let serving = &mut locked.serving;
        self.0.dead.store(true, Ordering::Release);
        serving.sockets.fail_all();
        let calls = serving.sockets.take_calls();
        drop(locked);
        // A second panic while the first one unwinds would abort the process.
        let _ = catch_unwind(AssertUnwindSafe(|| notify(calls)));
    }
}

fn notify(calls: Vec<Call>) {
    calls.into_iter().for_each(|(hook, event)| hook.on_event(event));
}

/// Wakes the thread as the process ends, unless it is awake.
fn wake(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade()
        && let Some(locked) = shared.try_lock()
    {
        // Fails only if the descriptor is closed, and then the thread has ended.
        let _ = locked.serving.waker.wake();
    }
}

fn run(mut poll: Poll, shared: &Shared) {
    let end = End(shared);
    let mut events = Events::with_capacity(256);
    let mut timeout = Some(QUIET);
    loop {
        if background::is_exiting() {
            // The connections stay open: calls of NCCL may go on until the process ends.
            return std::mem::forget(end);
        }
        let checked = match poll.poll(&mut events, timeout) {
            Ok(()) => {
                let mut locked = shared.lock();
                let serving = &mut locked.serving;
                // Awake: nothing has to wake the thread now.
                serving.sleeps_until = Some(Instant::now());
                let tokens = events.iter().map(|event| event.token());
                let established = tokens.filter(|token| !matches!(*token, WAKER | HANDSHAKES));
                established.for_each(|token: Token| serving.sockets.step(token));
                let checked = serving.check(shared);
                let calls = serving.sockets.take_calls();
                drop(locked);
                notify(calls);
                checked
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => Err(e),
        };
        match checked {
            Ok(Some(sleep)) => timeout = sleep,
            Ok(None) => return,
            Err(e) => {
                return tracing::warn!(target: "net", "the thread of the control connections ends: {e}");
            }
        }
    }
}

#[cfg(test)]
#[path = "reactor_tests.rs"]
mod tests;
