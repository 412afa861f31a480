//! Faults of adapters, ports and routes: what notices them, and the comms that learn of them.
//!
//! One thread reads the asynchronous events of all adapters, logs and counts each once, and marks
//! the comms that an event concerns; the next call on such a comm finds the mark. Between two events
//! the thread runs the jobs of [`Housekeeping`], the watchdog among them, and sleeps while they rest.

mod affected;
mod comm_flags;
mod faults;
mod reopening;
mod stalls;
mod state;
mod watch;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::background;
use crate::config::Config;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::housekeeping::{Housekeeping, job};
use crate::split::Followers;
use crate::stats::{RailCounters, Stats};
use crate::verbs::Context;
use stalls::Watchdog;
use state::EventState;
pub(crate) use watch::{CommWatch, Queues, RailPath};

/// The events of a process's adapters.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    running: Mutex<Weak<EventThread>>,
    state: Arc<EventState>,
    /// A job: it runs while this exists.
    _watchdog: Arc<Watchdog>,
}

/// The thread as contexts hold it: it ends with the last of them.
#[derive(Debug)]
pub(crate) struct EventThread {
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    housekeeping: Arc<Housekeeping>,
    thread: Option<JoinHandle<()>>,
}

impl AsyncEvents {
    pub(crate) fn new(stats: Arc<Stats>, housekeeping: Arc<Housekeeping>) -> Self {
        let state = EventState::new(stats, Arc::clone(&housekeeping));
        let watchdog = Arc::new(Watchdog::new(Arc::clone(&state)));
        housekeeping.add_companion(state.job, "watching ports", job(&state));
        housekeeping.add_companion(housekeeping.reserve(), "watching rails", job(&watchdog));
        Self { running: Mutex::default(), state, _watchdog: watchdog }
    }

    /// Returns the running thread, or starts one that reads the events of the adapters of `nics`.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub(crate) fn start(
        &self,
        config: &Config,
        nics: impl FnOnce() -> Vec<Arc<Nic>>,
    ) -> Result<Arc<EventThread>> {
        self.state.configure(config);
        let mut running = self.running.lock();
        if let Some(thread) = running.upgrade() {
            return Ok(thread);
        }
        let thread = EventThread::start(Arc::clone(&self.state), nics())
            .map_err(|e| Error::io("starting the thread of the adapters' events", e))?;
        let thread = Arc::new(thread);
        *running = Arc::downgrade(&thread);
        Ok(thread)
    }

    /// Returns the connections whose weights the events of ports renew.
    pub(crate) fn followers(&self) -> &Followers {
        &self.state.followers
    }

    /// Returns what sets the scales of ports.
    pub(crate) fn scaler(&self) -> Arc<PortScaler> {
        Arc::new(PortScaler(Arc::clone(&self.state)))
    }

    /// Begins to watch the queues of a comm, until the result is dropped. `counters`: those that show
    /// whether a rail makes progress, if the comm has them.
    pub(crate) fn watch(
        &self,
        name: String,
        rails: Vec<Queues>,
        counters: Option<RailCounters>,
    ) -> Arc<CommWatch> {
        EventState::watch(&self.state, name, rails, counters)
    }
}

/// Sets the scales of a process's ports.
#[derive(Debug)]
pub(crate) struct PortScaler(Arc<EventState>);

impl PortScaler {
    /// Sets the scale of a port, in parts per 1024: its part of the data that it would carry without.
    /// 0 drains it. `port` is a name such as `mlx5_0:1`. Returns whether the process has the port.
    pub(crate) fn set(&self, port: &str, scale: u16) -> bool {
        self.0.set_port_scale(port, scale)
    }
}

impl EventThread {
    fn start(state: Arc<EventState>, nics: Vec<Arc<Nic>>) -> std::io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (stop, housekeeping) = (Arc::<AtomicBool>::default(), Arc::clone(&state.housekeeping));
        let mut contexts: Vec<Arc<Context>> = Vec::new();
        for nic in &nics {
            if contexts.iter().all(|context| context.id() != nic.context().id()) {
                contexts.push(nic.context());
            }
        }
        state.set_nics(nics);
        let (stopped, woken) = (Arc::clone(&stop), Arc::clone(&wake));
        let waker = Arc::clone(&wake);
        let wakes = move || {
            // Fails only if the counter is full, and then the thread is awake.
            let _ = waker.write(1);
        };
        let thread =
            background::spawn("mpib-events", wakes, move || run(&stopped, &woken, contexts, &state))?;
        housekeeping.set_waker(Arc::clone(&wake));
        Ok(Self { stop, wake, housekeeping, thread: Some(thread) })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        self.housekeeping.remove_waker(&self.wake);
        self.stop.store(true, Ordering::Release);
        // The thread waits for this descriptor, and for no lock that this thread may hold.
        let stopped = self.wake.write(1);
        if let (Ok(_), Some(thread)) = (stopped, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn run(stop: &AtomicBool, wake: &EventFd, mut contexts: Vec<Arc<Context>>, state: &EventState) {
    let mut wait = Some(Duration::ZERO);
    loop {
        let ready: Vec<bool> = {
            let fds = contexts.iter().map(|context| context.async_fd());
            let mut fds: Vec<_> = std::iter::once(wake.as_fd())
                .chain(fds)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            // Rounded up: a job that is due in less than 1 ms does not make the thread spin.
            let millis = |wait: Duration| wait.as_micros().div_ceil(1000);
            let timeout = |millis| PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, wait.map(millis).map_or(PollTimeout::NONE, timeout)) {
                Ok(_) => fds.iter().map(|fd| fd.any().unwrap_or(true)).collect(),
                Err(Errno::EINTR) => continue,
                Err(e) => {
                    return tracing::warn!(target: "net", "no events of adapters are seen any more: poll: {e}");
                }
            }
        };
        if stop.load(Ordering::Acquire) || background::is_exiting() {
            return;
        }
        if ready[0] {
            // Before the jobs run: what wakes the thread meanwhile makes it look again.
            let _ = wake.read();
        }
        let mut readable = ready[1..].iter();
        contexts.retain(|context| !readable.next().is_some_and(|ready| *ready) || state.read(context));
        wait = state.housekeeping.run(Instant::now());
        let opened = state.take_opened();
        if !opened.is_empty() {
            contexts.extend(opened);
            contexts.retain(|context| state.is_in_use(context));
        }
    }
}

#[cfg(test)]
mod tests;
