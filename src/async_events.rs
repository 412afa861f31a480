//! Asynchronous events of adapters. One thread reads them, logs and counts each once, and marks
//! the comms that a fatal event ends; the next call on such a comm finds the mark.
//!
//! Between two events the thread runs the jobs of [`Housekeeping`].

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::failed_routes::FailedRoutes;
use crate::housekeeping::Housekeeping;
use crate::policy::Followers;
use crate::stats::Stats;
use crate::verbs::{About, AsyncEvent, Context};

/// Comms that a line names. Of the others it gives only the number.
const NAMED: usize = 4;
/// How often the thread runs the jobs when no event comes.
const TICK: Duration = Duration::from_millis(250);
/// How long an event waits for the completion that a failed queue may still deliver: the completion
/// names the request that failed, and the cause.
const GRACE: Duration = Duration::from_millis(200);

/// The events of a process's adapters.
#[derive(Debug)]
pub struct AsyncEvents {
    running: Mutex<Weak<EventThread>>,
    state: Arc<EventState>,
}

/// What the thread and the comms share.
#[derive(Debug)]
struct EventState {
    comms: Mutex<HashMap<u64, Weak<CommWatch>>>,
    /// Number of the last comm.
    last: AtomicU64,
    /// `NCCL_IB_RETURN_ASYNC_EVENTS` of the latest init.
    end_comms: AtomicBool,
    /// Weights that follow the speeds of ports.
    followers: Followers,
    stats: Arc<Stats>,
    housekeeping: Arc<Housekeeping>,
    failed_routes: Arc<FailedRoutes>,
}

/// The thread as contexts hold it: it ends with the last of them.
#[derive(Debug)]
pub struct EventThread {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What a comm uses, and the event that ended it.
#[derive(Debug)]
pub struct CommWatch {
    /// For messages.
    name: String,
    rails: Mutex<Vec<Queues>>,
    /// Why an event ended the comm, and when the event came.
    ended: OnceLock<(String, Instant)>,
    /// An event has ended the comm, or the comm has failed: calls look closer.
    marked: AtomicBool,
    /// Its key in the list of all comms.
    number: u64,
    all: Weak<EventState>,
}

/// What a comm uses on one rail.
#[derive(Debug)]
pub struct Queues {
    /// [`Context::id`]
    pub context: usize,
    /// Port number.
    pub port: u8,
    /// Numbers of its queue pairs.
    pub qps: Vec<u32>,
    /// [`Cq::id`](crate::verbs::Cq::id)
    pub cq: Option<usize>,
    /// [`Srq::id`](crate::verbs::Srq::id)
    pub srq: Option<usize>,
}

impl AsyncEvents {
    pub(crate) fn new(
        stats: Arc<Stats>,
        housekeeping: Arc<Housekeeping>,
        failed_routes: Arc<FailedRoutes>,
    ) -> Self {
        let (comms, end_comms, last) = (Mutex::default(), AtomicBool::new(true), AtomicU64::new(0));
        let followers = Followers::default();
        let state = EventState { comms, last, end_comms, followers, stats, housekeeping, failed_routes };
        Self { running: Mutex::default(), state: Arc::new(state) }
    }

    /// Returns the running thread, or starts one that reads the events of `contexts`.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn start(
        &self,
        config: &Config,
        contexts: impl FnOnce() -> Vec<Arc<Context>>,
    ) -> Result<Arc<EventThread>> {
        self.state.end_comms.store(config.return_async_events, Ordering::Relaxed);
        let mut running = self.running.lock();
        if let Some(thread) = running.upgrade() {
            return Ok(thread);
        }
        let thread = EventThread::start(Arc::clone(&self.state), contexts())
            .map_err(|e| Error::io("starting the thread of the adapters' events", e))?;
        let thread = Arc::new(thread);
        *running = Arc::downgrade(&thread);
        Ok(thread)
    }

    /// Returns the connections whose weights the events of ports renew.
    pub fn followers(&self) -> &Followers {
        &self.state.followers
    }

    /// Begins to watch the queues of a comm, until the result is dropped.
    pub fn watch(&self, name: String, rails: Vec<Queues>) -> Arc<CommWatch> {
        let number = self.state.last.fetch_add(1, Ordering::Relaxed);
        let all = Arc::downgrade(&self.state);
        let watch = Arc::new(CommWatch {
            name,
            rails: Mutex::new(rails),
            ended: OnceLock::new(),
            marked: AtomicBool::new(false),
            number,
            all,
        });
        self.state.comms.lock().insert(number, Arc::downgrade(&watch));
        watch
    }
}

impl EventThread {
    fn start(state: Arc<EventState>, contexts: Vec<Arc<Context>>) -> std::io::Result<Self> {
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("mpib-events".into())
            .spawn(move || run(&stopped, contexts, &state))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        // The thread waits for this descriptor, and for no lock that this thread may hold.
        let stopped = self.stop.write(1);
        if let (Ok(_), Some(thread)) = (stopped, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn run(stop: &EventFd, mut contexts: Vec<Arc<Context>>, state: &EventState) {
    let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::MAX);
    loop {
        let ready: Vec<bool> = {
            let fds = contexts.iter().map(|context| context.async_fd());
            let mut fds: Vec<_> = std::iter::once(stop.as_fd())
                .chain(fds)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            match poll(&mut fds, tick) {
                Ok(_) => fds.iter().map(|fd| fd.any().unwrap_or(true)).collect(),
                Err(Errno::EINTR) => continue,
                Err(e) => {
                    return tracing::warn!(target: "net", "no events of adapters are seen any more: poll: {e}");
                }
            }
        };
        if ready[0] {
            return;
        }
        state.housekeeping.run();
        let mut ready = ready[1..].iter();
        contexts.retain(|context| !ready.next().is_some_and(|ready| *ready) || state.read(context));
    }
}

impl EventState {
    /// Handles the pending events of an adapter. Returns `false` if no more will come.
    fn read(&self, context: &Context) -> bool {
        loop {
            match context.next_event() {
                Ok(Some(event)) => self.handle(context, &event),
                Ok(None) => return true,
                Err(e) => {
                    tracing::warn!(target: "net", "no events of {} are seen any more: {e}", context.name());
                    return false;
                }
            }
        }
    }

    /// Counts and logs an event, and marks the comms that it ends.
    fn handle(&self, context: &Context, event: &AsyncEvent) {
        if event.is_consequence() {
            return;
        }
        self.stats.event(event);
        if matches!(event.about, About::Port(_)) {
            self.failed_routes.clear();
        }
        let place = match event.about {
            About::Port(port) => format!("{}:{port}", context.name()),
            _ => context.name().to_owned(),
        };
        let mut text = format!("{place}: {event}");
        let concerned = self.concerned(context, event);
        let ends = event.is_fatal() && self.end_comms.load(Ordering::Relaxed);
        for comm in concerned.iter().filter(|_| ends) {
            // The first event stays.
            let why = format!("{} is over, since an adapter reported: {text}", comm.name);
            let _ = comm.ended.set((why, Instant::now()));
            comm.mark();
        }
        if !concerned.is_empty() {
            let names: Vec<_> = concerned.iter().take(NAMED).map(|c| c.name.as_str()).collect();
            let more = concerned.len() - names.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let verb = if ends { "ends" } else { "concerns" };
            text += &format!("; it {verb} {}{more}", names.join(", "));
        }
        let changed = if event.is_speed() { self.followers.renew(context.id()) } else { Vec::new() };
        for (port, mbps) in changed {
            text += &format!("; {port} now has {mbps} Mb/s, and the shares of its connections follow");
        }
        if event.is_fatal() || event.is_link_down() {
            tracing::warn!(target: "net", "{text}");
        } else {
            tracing::info!(target: "net", "{text}");
        }
    }

    /// Returns the comms that use the subject of an event.
    fn concerned(&self, context: &Context, event: &AsyncEvent) -> Vec<Arc<CommWatch>> {
        let uses = |comm: &CommWatch| comm.rails.lock().iter().any(|q| q.includes(context.id(), event.about));
        // The last reference to a comm must not be dropped under the lock that its drop takes.
        let all: Vec<_> = self.comms.lock().values().filter_map(Weak::upgrade).collect();
        let mut concerned: Vec<_> = all.into_iter().filter(|comm| uses(comm)).collect();
        concerned.sort_by_key(|comm| comm.number);
        concerned
    }
}

impl Drop for CommWatch {
    fn drop(&mut self) {
        if let Some(all) = self.all.upgrade() {
            all.comms.lock().remove(&self.number);
        }
    }
}

impl CommWatch {
    /// Returns whether an event has ended the comm, or will when its grace period is over, or the
    /// comm has failed: one load.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Acquire)
    }

    /// Replaces the queues that the comm uses.
    pub fn set_rails(&self, rails: Vec<Queues>) {
        *self.rails.lock() = rails;
    }

    /// Marks the comm: calls look closer.
    pub fn mark(&self) {
        self.marked.store(true, Ordering::Release);
    }

    /// Clears the mark. What set it is looked at afterwards: a mark that comes meanwhile stays. A
    /// comm that an event has ended stays marked.
    pub fn unmark(&self) {
        self.marked.store(false, Ordering::SeqCst);
        if self.ended.get().is_some() {
            self.mark();
        }
    }

    /// Returns why an event ended the comm, once the grace period is over.
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().filter(|(_, since)| since.elapsed() >= GRACE).map(|(why, _)| why.as_str())
    }
}

impl Queues {
    fn includes(&self, context: usize, about: About) -> bool {
        self.context == context
            && match about {
                About::Device => true,
                About::Port(port) => self.port == port,
                About::Qp(qpn) => self.qps.contains(&qpn),
                About::Cq(id) => self.cq == Some(id),
                About::Srq(id) => self.srq == Some(id),
            }
    }
}
