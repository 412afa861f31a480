//! The background thread of the process. It sleeps until a peer wakes it, a timer expires, or a
//! peer ends.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use crate::abi::border::{Errno, last_errno};
use crate::clock;
use crate::log::fault;
use crate::process::{self, Process, flap, hw_counters};
use crate::shm::peer::Peer;
use crate::wire::{landing, late, mover, placement};

const WAKE: u64 = 0;
const TIME: u64 = 1;
const PEER: u64 = 2;

/// See the module.
pub(crate) struct Service {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Expiry of `timer`, in CLOCK_MONOTONIC nanoseconds.
    next: Mutex<u64>,
    /// Whether the thread runs. Starting it may have failed.
    started: Mutex<bool>,
    /// The last observed value of `Process::polls`.
    polls: AtomicU64,
}

fn own(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Service {
    /// Creates the service of process `process`. The thread does not run yet.
    pub(crate) fn new(process: &Peer) -> Result<Self, Errno> {
        // SAFETY: takes flags only.
        let epoll = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes a clock and flags.
        let timer = own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let this = Self {
            epoll,
            timer,
            next: Mutex::new(u64::MAX),
            started: Mutex::new(false),
            polls: AtomicU64::new(0),
        };
        this.add(this.timer.as_raw_fd(), TIME)?;
        this.add(process.wake_fd(), WAKE)?;
        Ok(this)
    }

    fn add(&self, fd: i32, token: u64) -> Result<(), Errno> {
        let events = if token == PEER { libc::EPOLLIN | libc::EPOLLONESHOT } else { libc::EPOLLIN };
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: two open descriptors and a valid event.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Watches for the end of the peer.
    pub(crate) fn watch(&self, peer: &Peer) -> Result<(), Errno> {
        peer.pidfd.as_ref().map_or(Ok(()), |fd| self.add(fd.as_raw_fd(), PEER))
    }

    /// Starts the thread unless it runs.
    pub(crate) fn ensure(&self, process: &'static Process) -> Result<(), Errno> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            spawn(process)?;
            *started = true;
        }
        Ok(())
    }

    /// Wakes the thread at this time or earlier.
    pub(crate) fn wake_at(&self, time: u64) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if time >= *next {
            return;
        }
        *next = time;
        // Zero would disarm the timer.
        let time = time.max(1);
        let seconds = libc::time_t::try_from(time / 1_000_000_000).unwrap_or(libc::time_t::MAX);
        let nanos = libc::c_long::try_from(time % 1_000_000_000).unwrap_or(0);
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: seconds, tv_nsec: nanos },
        };
        let fd = self.timer.as_raw_fd();
        // SAFETY: an open timer and a valid time.
        unsafe { libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &raw const spec, std::ptr::null_mut()) };
    }

    /// Returns whether the number of polls is unchanged since the last call.
    pub(crate) fn nobody_polled(&self, polls: u64) -> bool {
        self.polls.swap(polls, Relaxed) == polls
    }

    /// Schedules the thread for large work requests: immediately if the program has not polled
    /// since the last one, otherwise after `grace` nanoseconds.
    pub(crate) fn expect_pieces(&self, polls: u64, grace: u64) {
        self.wake_at(clock::now() + if self.polls.load(Relaxed) == polls { 0 } else { grace });
    }

    fn sleep(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: `events` has room for the number given.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 8, -1) };
    }
}

/// Starts the thread with all signals blocked: signal handlers run on threads of the program only.
fn spawn(process: &'static Process) -> Result<(), Errno> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are writable; the first is filled before it is used.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let spawned = std::thread::Builder::new().name(String::from("softverbs")).spawn(move || run(process));
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned.map(drop).map_err(|e| {
        fault!("cannot start the service thread: {e}");
        Errno(e.raw_os_error().unwrap_or(libc::EAGAIN))
    })
}

fn drain(fd: i32) {
    let mut buffer = [0_u8; 256];
    // SAFETY: a writable buffer of the length given; the descriptor is non-blocking.
    while unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } == 256 {}
}

fn run(process: &'static Process) {
    loop {
        process.service.sleep();
        let pass = std::panic::AssertUnwindSafe(|| round(process));
        if std::panic::catch_unwind(pass).is_err() {
            fault!("internal error in the service thread (a panic was caught); the thread continues");
        }
    }
}

/// Does all pending work once.
fn round(process: &'static Process) {
    let service = &process.service;
    drain(process.own.wake_fd());
    drain(service.timer.as_raw_fd());
    *service.next.lock().unwrap_or_else(PoisonError::into_inner) = u64::MAX;
    crate::wire::bounce::serve(&process.own);
    for peer in process.peers() {
        if !peer.is_dead() && peer.has_ended() {
            peer.dead.store(true, Release);
        }
    }
    crate::api::events::dispatch(process);
    crate::api::cq::announce_all(process);
    for qp in process.qps.all() {
        qp.progress(process);
    }
    mover::serve(process);
    flap::serve(process);
    late::serve(process);
    landing::serve(process);
    placement::serve(process);
    hw_counters::publish(process);
}

/// Lets a polling thread retry waiting work requests and continue large ones. Cheap if there are
/// none.
pub(crate) fn help() {
    let Ok(process) = process::get() else { return };
    mover::help(process);
    if process.waiting.load(Relaxed) > 0 {
        for qp in process.qps.all() {
            qp.try_progress(process);
        }
    }
}
