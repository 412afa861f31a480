//! What the thread of the events and the comms share, and what an event does.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mpib_proto::RailSet;
use parking_lot::{Mutex, RwLock};

use crate::async_events::affected::Affected;
use crate::async_events::watch::{CommWatch, Owner, Queues};
use crate::config::Config;
use crate::device::{Nic, SCALE_ONE};
use crate::housekeeping::{Housekeeping, JobId};
use crate::split::Followers;
use crate::stats::{RailCounters, Reason, Stats};
use crate::verbs::{About, AsyncEvent, Context};
use crate::worker::Worker;

/// Comms that a line names. Of the others it gives only the number.
const NAMED: usize = 4;

/// What the thread of the events and the comms share.
#[derive(Debug)]
pub(super) struct EventState {
    comms: Mutex<Comms>,
    /// The housekeeping job of this state.
    pub(super) job: JobId,
    /// The ports of the process.
    nics: RwLock<Vec<Arc<Nic>>>,
    /// The scales of ports that the process may not have yet, other than full ones.
    scales: Mutex<HashMap<String, u16>>,
    /// `NCCL_IB_RETURN_ASYNC_EVENTS` of the latest init.
    end_comms: AtomicBool,
    /// `MPIB_STALL_MS` of the latest init, in ms.
    stall: AtomicU64,
    /// Weights that follow the speeds of ports.
    pub(super) followers: Followers,
    pub(super) stats: Arc<Stats>,
    pub(super) housekeeping: Arc<Housekeeping>,
    pub(super) reopening: Reopenings,
    pub(super) this: Weak<Self>,
    /// When a comm last lost its last rail.
    pub(super) last_without_rails: Mutex<Option<Instant>>,
    /// One thread at a time judges a port: a fault has one line in the log.
    pub(super) verdict: Mutex<()>,
}

/// The comms of the process, in the order of their beginning.
#[derive(Debug, Default)]
struct Comms {
    all: BTreeMap<JobId, Weak<CommWatch>>,
    /// Those with several rails: all that the watchdog looks at.
    with_rails: BTreeMap<JobId, Weak<CommWatch>>,
}

impl Comms {
    fn add(&mut self, comm: &Arc<CommWatch>) {
        self.all.insert(comm.job(), Arc::downgrade(comm));
        if comm.counters.is_some() {
            self.with_rails.insert(comm.job(), Arc::downgrade(comm));
        }
    }

    fn remove(&mut self, job: JobId) {
        self.all.remove(&job);
        self.with_rails.remove(&job);
    }
}

/// The work to open adapters again.
#[derive(Debug)]
pub(super) struct Reopenings {
    pub(super) worker: Worker,
    /// The dead contexts whose adapters the thread looks for.
    pub(super) tried: Mutex<Vec<usize>>,
    /// The new contexts whose events the thread of the events does not read yet.
    pub(super) opened: Mutex<Vec<Arc<Context>>>,
    /// By adapter: why it could not be opened the last time.
    pub(super) failed: Mutex<HashMap<String, String>>,
}

impl EventState {
    pub(super) fn new(stats: Arc<Stats>, housekeeping: Arc<Housekeeping>) -> Arc<Self> {
        let reopening = Reopenings {
            worker: Worker::new("mpib-reopen"),
            tried: Mutex::default(),
            opened: Mutex::default(),
            failed: Mutex::default(),
        };
        Arc::new_cyclic(|this| Self {
            reopening,
            this: this.clone(),
            verdict: Mutex::default(),
            comms: Mutex::default(),
            job: housekeeping.reserve(),
            nics: RwLock::default(),
            scales: Mutex::default(),
            end_comms: AtomicBool::new(true),
            stall: AtomicU64::new(0),
            followers: Followers::default(),
            stats,
            housekeeping,
            last_without_rails: Mutex::default(),
        })
    }

    /// Stores what an init has read.
    pub(super) fn configure(&self, config: &Config) {
        self.end_comms.store(config.return_async_events, Ordering::Relaxed);
        let stall = u64::try_from(config.stall.as_millis()).unwrap_or(u64::MAX);
        self.stall.store(stall, Ordering::Relaxed);
    }

    /// Returns `MPIB_STALL_MS`.
    pub(super) fn stall_limit(&self) -> Duration {
        Duration::from_millis(self.stall.load(Ordering::Relaxed))
    }

    /// Sets the ports of the process, and the scales that were set before the process had them.
    pub(super) fn set_nics(&self, nics: Vec<Arc<Nic>>) {
        let scales = self.scales.lock();
        for nic in &nics {
            if let Some(scale) = scales.get(nic.name()) {
                nic.meter().set_scale(*scale);
            }
        }
        *self.nics.write() = nics;
    }

    /// Returns the ports of the process.
    pub(super) fn nics(&self) -> Vec<Arc<Nic>> {
        self.nics.read().clone()
    }

    /// Sets the scale of a port. Its connections follow at their next call. Returns whether the
    /// process has the port.
    pub(super) fn set_port_scale(&self, port: &str, scale: u16) -> bool {
        match scale {
            SCALE_ONE.. => self.scales.lock().remove(port),
            _ => self.scales.lock().insert(port.to_owned(), scale),
        };
        let nics = self.nics();
        let Some(nic) = nics.iter().find(|nic| nic.name() == port) else { return false };
        if nic.meter().set_scale(scale) {
            self.followers.rescale();
            for comm in self.comms().iter().filter(|comm| comm.routes().iter().any(|r| r.is_on(nic))) {
                comm.notify();
            }
        }
        true
    }

    /// Begins to watch a comm.
    pub(super) fn watch(
        this: &Arc<Self>,
        name: String,
        rails: Vec<Queues>,
        counters: Option<RailCounters>,
    ) -> Arc<CommWatch> {
        let job = this.housekeeping.reserve();
        let owner: Arc<dyn Owner> = Arc::<Self>::clone(this);
        // A set-up that has succeeded is a proof, too.
        rails.iter().for_each(|queues| this.rail_works(&queues.route));
        let watch = Arc::new(CommWatch::new(job, name, rails, counters, Arc::downgrade(&owner)));
        this.comms.lock().add(&watch);
        watch
    }

    pub(super) fn forget(&self, job: JobId) {
        self.comms.lock().remove(job);
    }

    /// Returns all comms, in the order of their beginning.
    pub(super) fn comms(&self) -> Vec<Arc<CommWatch>> {
        // The last reference to a comm must not be dropped under the lock that its drop takes.
        self.comms.lock().all.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the comms with several rails, in the order of their beginning.
    pub(super) fn comms_with_rails(&self) -> Vec<Arc<CommWatch>> {
        self.comms.lock().with_rails.values().filter_map(Weak::upgrade).collect()
    }

    /// Handles the pending events of an adapter. Returns `false` if no more will be read. A panic
    /// ends that, too: the adapter counts as lost.
    pub(super) fn read(&self, context: &Context) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.read_all(context))).unwrap_or_else(|_| {
            self.end(context, "internal error, please report it: a panic was caught");
            false
        })
    }

    fn read_all(&self, context: &Context) -> bool {
        loop {
            match context.next_event() {
                Ok(Some(event)) => {
                    let line = self.handle(context, &event);
                    // Not before: the subject must not be destroyed, and its number not given to
                    // another, while comms that use it are looked for.
                    drop(event);
                    line.into_iter().for_each(Line::log);
                    // A port may need a closer look soon.
                    self.housekeeping.wake(self.job);
                }
                Ok(None) => return true,
                Err(e) => {
                    self.end(context, &e.to_string());
                    return false;
                }
            }
        }
    }

    /// Gives up an adapter whose events cannot be read.
    fn end(&self, context: &Context, why: &str) {
        tracing::warn!(target: "net", "no events of {} are seen any more: {why}", context.name());
        self.lost(context, &format!("no events of {} any more: {why}", context.name()));
    }

    /// Counts an event. Ends the comms that it ends, and condemns the rails that it costs. Returns
    /// the line for the log.
    pub(super) fn handle(&self, context: &Context, event: &AsyncEvent) -> Option<Line> {
        if event.is_consequence() {
            return None;
        }
        self.stats.event(event);
        if matches!(event.about, About::Port(_)) {
            let now = Instant::now();
            self.nics().iter().for_each(|nic| nic.health().network_changed(now));
        }
        let place = match event.about {
            About::Port(port) => format!("{}:{port}", context.name()),
            _ => context.name().to_owned(),
        };
        let mut text = format!("{place}: {event}");
        let carries_on = |comm: &CommWatch| event.is_fatal() && comm.has_failover();
        let (failing_over, others): (Vec<_>, Vec<_>) =
            self.concerned(context, event).into_iter().partition(|(comm, _)| carries_on(comm));
        let ends = event.is_fatal() && self.end_comms.load(Ordering::Relaxed);
        let change = self.port_event(context, event);
        // Some drivers raise one of a queue pair whose peer does not answer: the cause may be the port. A
        // rail that was given up before, by its completion, has no second warning.
        let of_a_queue_pair = matches!(event.about, About::Qp(_));
        let mut affected = Affected::default();
        for (comm, rails) in &failing_over {
            match of_a_queue_pair {
                true => comm.rails_failed_alone(*rails, Reason::Event, &text),
                false => affected.condemn(comm, *rails, Reason::Event, &text),
            }
        }
        others.iter().filter(|_| ends).for_each(|(comm, _)| comm.end(&text));
        if !others.is_empty() {
            let verb = if ends { "ends" } else { "concerns" };
            text += &format!("; it {verb} {}", names(&others));
        }
        if !failing_over.is_empty() && !of_a_queue_pair {
            text += &format!("; {affected}");
        }
        text += &change.text;
        let changed = if event.is_speed() { self.followers.renew(context.id()) } else { Vec::new() };
        for (port, mbps) in changed {
            text += &format!("; {port} now has {mbps} Mb/s, and the shares of its connections follow");
        }
        let is_failure = event.is_fatal() && !(of_a_queue_pair && others.is_empty());
        Some(Line { text, warns: is_failure || event.is_link_down() || change.costs_rails })
    }

    /// Returns the comms that use the subject of an event, with their rails that do.
    fn concerned(&self, context: &Context, event: &AsyncEvent) -> Vec<(Arc<CommWatch>, RailSet)> {
        let rails = |comm: &CommWatch| comm.rails_with(|queues| queues.includes(context.id(), event.about));
        let all = self.comms().into_iter().map(|comm| (rails(&comm), comm));
        all.filter(|(rails, _)| !rails.is_empty()).map(|(rails, comm)| (comm, rails)).collect()
    }
}

/// What the log gets of an event.
#[derive(Debug)]
pub(super) struct Line {
    text: String,
    warns: bool,
}

impl Line {
    fn log(self) {
        match self.warns {
            true => tracing::warn!(target: "net", "{}", self.text),
            false => tracing::info!(target: "net", "{}", self.text),
        }
    }
}

/// Names the first comms, and counts the others.
fn names(comms: &[(Arc<CommWatch>, RailSet)]) -> String {
    let names: Vec<_> = comms.iter().take(NAMED).map(|(comm, _)| comm.name()).collect();
    let more = comms.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}
