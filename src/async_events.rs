//! Asynchronous events of adapters. One thread of the process takes each of them, tells it once in words, counts it, and marks the
//! connections that it ends; whoever uses such a connection next finds the mark.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::stats;
use crate::verbs::{About, AsyncEvent, Context};

/// Connections that a line names; of more only the number is told.
const NAMED: usize = 4;
/// How often the thread does its chore where no event comes.
const TICK: Duration = Duration::from_millis(250);
/// How long the completion that a failed queue may still give goes before the event: it says which request failed, and why.
const GRACE: Duration = Duration::from_millis(200);

/// The thread as contexts hold it: it ends with the last of them.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What a connection uses, and what became of it.
#[derive(Debug)]
pub struct Watched {
    /// For messages.
    name: String,
    rails: Vec<Queues>,
    /// Why it is over, once it is, and since when.
    over: OnceLock<(String, Instant)>,
}

/// What a connection uses on one rail.
#[derive(Debug)]
pub struct Queues {
    /// [`Context::id`]
    pub context: usize,
    /// Port number.
    pub port: u8,
    /// Numbers of its queue pairs.
    pub qps: Vec<u32>,
    /// [`Cq::id`](crate::verbs::Cq::id)
    pub cq: usize,
    /// [`Srq::id`](crate::verbs::Srq::id)
    pub srq: Option<usize>,
}

static RUNNING: Mutex<Weak<Watch>> = Mutex::new(Weak::new());
static CONNECTIONS: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());
/// `NCCL_IB_RETURN_ASYNC_EVENTS` of the latest init.
static RETURNED: AtomicBool = AtomicBool::new(true);

impl Watch {
    /// The running thread, or a new one, which calls `chore` now and then. To be called when the devices are open.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn get(config: &Config, chore: fn()) -> Result<Arc<Self>> {
        RETURNED.store(config.return_async_events, Ordering::Relaxed);
        let mut running = RUNNING.lock();
        if let Some(watch) = running.upgrade() {
            return Ok(watch);
        }
        let failed = |e: std::io::Error| Error::io("starting the thread of the adapters' events", e);
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = Arc::new(stop.map_err(|e| failed(e.into()))?);
        let (told, contexts) = (Arc::clone(&stop), contexts());
        let thread = thread::Builder::new()
            .name("mpib-events".into())
            .spawn(move || run(&told, contexts, chore))
            .map_err(failed)?;
        let watch = Arc::new(Self { stop, thread: Some(thread) });
        *running = Arc::downgrade(&watch);
        Ok(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It waits for this descriptor, and for no lock that we may hold.
        let told = self.stop.write(1);
        if let (Ok(_), Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// The open adapters, each once.
fn contexts() -> Vec<Arc<Context>> {
    let mut found: Vec<Arc<Context>> = Vec::new();
    for nic in device::all().into_iter().flat_map(|device| &device.rails) {
        if found.iter().all(|context| context.id() != nic.pd().context().id()) {
            found.push(Arc::clone(nic.pd().context()));
        }
    }
    found
}

fn run(stop: &EventFd, mut contexts: Vec<Arc<Context>>, chore: fn()) {
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
        chore();
        let mut ready = ready[1..].iter();
        contexts.retain(|context| !ready.next().is_some_and(|ready| *ready) || take(context));
    }
}

/// Takes what is there. `false` where no more will come.
fn take(context: &Context) -> bool {
    loop {
        match context.next_event() {
            Ok(Some(event)) => handle(context, &event),
            Ok(None) => return true,
            Err(e) => {
                tracing::warn!(target: "net", "no events of {} are seen any more: {e}", context.name());
                return false;
            }
        }
    }
}

/// Tells, counts, marks.
fn handle(context: &Context, event: &AsyncEvent) {
    if event.is_consequence() {
        return;
    }
    stats::event(event);
    let place = match event.about {
        About::Port(port) => format!("{}:{port}", context.name()),
        _ => context.name().to_owned(),
    };
    let mut text = format!("{place}: {event}");
    let mut connections = CONNECTIONS.lock();
    connections.retain(|connection| connection.strong_count() > 0);
    let concerned: Vec<_> = connections
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|connection| connection.rails.iter().any(|q| q.concerned(context.id(), event.about)))
        .collect();
    drop(connections);
    let ends = event.is_fatal() && RETURNED.load(Ordering::Relaxed);
    for connection in concerned.iter().filter(|_| ends) {
        // The first reason stays.
        let why = format!("{} is over, since an adapter reported: {text}", connection.name);
        let _ = connection.over.set((why, Instant::now()));
    }
    if !concerned.is_empty() {
        let names: Vec<_> = concerned.iter().take(NAMED).map(|c| c.name.as_str()).collect();
        let more = concerned.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let verb = if ends { "ends" } else { "concerns" };
        text += &format!("; it {verb} {}{more}", names.join(", "));
    }
    if event.is_fatal() || event.is_link_down() {
        tracing::warn!(target: "net", "{text}");
    } else {
        tracing::info!(target: "net", "{text}");
    }
}

impl Watched {
    /// From now on, until it is dropped, events of these queues are its own.
    pub fn new(name: String, rails: Vec<Queues>) -> Arc<Self> {
        let watched = Arc::new(Self { name, rails, over: OnceLock::new() });
        let mut connections = CONNECTIONS.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&watched));
        watched
    }

    /// Whether an event has ended it, now or soon: one load.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.over.get().is_some()
    }

    /// Why it is over, where an event has ended it.
    pub fn over(&self) -> Option<&str> {
        self.over.get().filter(|(_, since)| since.elapsed() >= GRACE).map(|(why, _)| why.as_str())
    }
}

impl Queues {
    fn concerned(&self, context: usize, about: About) -> bool {
        self.context == context
            && match about {
                About::Device => true,
                About::Port(port) => self.port == port,
                About::Qp(qpn) => self.qps.contains(&qpn),
                About::Cq(id) => self.cq == id,
                About::Srq(id) => self.srq == Some(id),
            }
    }
}
