//! Work that must not wait for NCCL's next call: a list of named jobs.
//!
//! The thread of the adapters' events runs each job at the job's own interval, and at once after
//! `Housekeeping::wake`. A job may rest until it is woken or started. While all jobs rest the thread
//! sleeps: a process of idle connections costs nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use parking_lot::{Condvar, Mutex};

use crate::error::{Fast, Result};

/// How long NCCL has left a comm alone, by something that each of its operations changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idleness<T>(Option<(T, Instant)>);

impl<T: PartialEq + Copy> Idleness<T> {
    /// Nothing is known yet.
    pub(crate) const UNKNOWN: Self = Self(None);

    /// Returns how long `now` has been the same at each call.
    pub(crate) fn time(&mut self, now: T) -> Duration {
        match self.0 {
            Some((before, since)) if before == now => since.elapsed(),
            _ => {
                self.0 = Some((now, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// When a comm's job runs next, as its last run has left the comm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// NCCL may have something to do soon: the comm is in use.
    Tick,
    /// There is news that is left to NCCL's next call, in case none comes.
    Soon,
    /// The comm waits for nothing.
    Rest,
}

/// The pace of a job, as its runs set it.
#[derive(Debug)]
pub(crate) struct PaceCell(AtomicU8);

impl PaceCell {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(Pace::Tick as u8))
    }

    pub(crate) fn set(&self, pace: Pace) {
        self.0.store(pace as u8, Ordering::Relaxed);
    }

    /// Returns the time until the job's next run; `None` if it rests.
    pub(crate) fn interval(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            soon if soon == Pace::Soon as u8 => Some(SOON),
            rest if rest == Pace::Rest as u8 => None,
            _ => Some(TICK),
        }
    }
}

/// How often a job runs unless it has another interval.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How long a comm that NCCL has left alone still has its looks. What shows that nothing more is to
/// come takes time: acknowledgements, and copies of messages over a rail.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// The interval of a job that leaves something to NCCL's next call, in case none comes.
const SOON: Duration = Duration::from_millis(10);

/// The shortest interval: the thread never spins.
const SHORTEST: Duration = Duration::from_millis(1);

/// Something to do now and then.
pub(crate) trait Job: Send + Sync {
    /// Does what is due, without waiting. An error is logged once, under the job's name.
    fn run(&self) -> Result<()>;

    /// Returns the time until the next run, as the last run has left the job. At least 1 ms and at
    /// most [`TICK`] count. `None`: the job rests until it is woken or started.
    fn interval(&self) -> Option<Duration> {
        Some(TICK)
    }
}

/// Returns an object as a job.
pub(crate) fn job<J: Job + 'static>(object: &Arc<J>) -> Weak<dyn Job> {
    let job: Arc<dyn Job> = Arc::<J>::clone(object);
    Arc::downgrade(&job)
}

/// Logs the error of a comm's job. The job calls this while it holds the comm: NCCL's next call on
/// the comm returns the error, and the reason must be in the log by then.
pub(crate) fn log_failure(name: &'static str, result: &Fast<()>) {
    if let Err(e) = result {
        e.report(name);
    }
}

/// The name of a job in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobId(u64);

/// The jobs of a process.
#[derive(Default)]
pub(crate) struct Housekeeping {
    jobs: Mutex<Jobs>,
    /// A run of a job has ended.
    ended: Condvar,
    /// Number of the last job.
    last: AtomicU64,
    /// Wakes the thread that runs the jobs; `None` while there is no thread.
    waker: Mutex<Option<Arc<EventFd>>>,
}

/// A process may have thousands of jobs, one for each connection: no call looks at all of them.
#[derive(Default)]
struct Jobs {
    entries: HashMap<JobId, Entry>,
    /// When each job is due that waits.
    due: BTreeSet<(Instant, JobId)>,
    running: Option<JobId>,
    /// The jobs that run while another one does.
    companions: Vec<JobId>,
    /// How many other jobs do not rest.
    awake: usize,
    /// The thread sleeps without a limit: no job is due.
    sleeps: bool,
}

struct Entry {
    name: &'static str,
    job: Weak<dyn Job>,
    is_companion: bool,
    /// It has no next run before it is woken or started.
    rests: bool,
    /// `None` while it rests, and from the time when it is due until its run has ended.
    due: Option<Instant>,
    /// Woken while it runs.
    again: bool,
}

impl Jobs {
    fn add(&mut self, id: JobId, name: &'static str, job: Weak<dyn Job>, is_companion: bool) {
        self.entries.insert(id, Entry { name, job, is_companion, rests: true, due: None, again: false });
        if is_companion {
            self.companions.push(id);
        }
        self.schedule(id, Instant::now());
    }

    /// Makes a job due at `at`. It does not rest any more.
    fn schedule(&mut self, id: JobId, at: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(due) = entry.due.replace(at) {
            self.due.remove(&(due, id));
        }
        self.due.insert((at, id));
        let (was_resting, is_companion) = (std::mem::take(&mut entry.rests), entry.is_companion);
        if was_resting && !is_companion {
            self.awake += 1;
            if self.awake == 1 {
                self.start_companions(at);
            }
        }
    }

    fn start_companions(&mut self, at: Instant) {
        for place in 0..self.companions.len() {
            self.start(self.companions[place], at);
        }
    }

    /// Makes a job that rests due at `at`.
    fn start(&mut self, id: JobId, at: Instant) {
        match self.entries.get_mut(&id) {
            // Its run that goes on decides whether it rests.
            Some(entry) if self.running == Some(id) => entry.again = true,
            Some(entry) if entry.rests => self.schedule(id, at),
            _ => {}
        }
    }

    /// Takes the jobs that are due at `now`, in their order.
    fn take_due(&mut self, now: Instant) -> Vec<JobId> {
        let mut taken = Vec::new();
        self.sleeps = false;
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.due = None;
                taken.push(id);
            }
        }
        taken
    }

    fn remove(&mut self, id: JobId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        if let Some(due) = entry.due {
            self.due.remove(&(due, id));
        }
        self.companions.retain(|companion| *companion != id);
        self.awake -= usize::from(!entry.is_companion && !entry.rests);
    }

    /// Begins a run. Returns `None` for a job that was removed or dropped.
    fn begin(&mut self, id: JobId) -> Option<(&'static str, Arc<dyn Job>)> {
        let entry = self.entries.get_mut(&id)?;
        entry.again = false;
        let (name, job) = (entry.name, entry.job.upgrade());
        match job {
            Some(_) => self.running = Some(id),
            None => self.remove(id),
        }
        Some((name, job?))
    }

    /// Ends a run. The job is due again after `interval`, or rests.
    fn end(&mut self, id: JobId, interval: Option<Duration>) {
        self.running = None;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let interval = match interval {
            _ if entry.again => Some(Duration::ZERO),
            None if entry.is_companion && self.awake > 0 => Some(TICK),
            interval => interval.map(|interval| interval.clamp(SHORTEST, TICK)),
        };
        match interval {
            Some(interval) => self.schedule(id, Instant::now() + interval),
            None => {
                entry.rests = true;
                self.awake -= usize::from(!entry.is_companion);
            }
        }
    }

    /// Returns the time until the next job is due; `None` if all rest. The thread then sleeps.
    fn next(&mut self) -> Option<Duration> {
        let next = self.due.first().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        self.sleeps = next.is_none();
        next
    }
}

impl Housekeeping {
    /// Returns the name of a job that is added later.
    pub(crate) fn reserve(&self) -> JobId {
        JobId(self.last.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a job, which is due at once. It runs until [`remove`](Self::remove) or until it is
    /// dropped.
    pub(crate) fn add(&self, id: JobId, name: &'static str, job: Weak<dyn Job>) {
        self.change(|jobs| jobs.add(id, name, job, false));
    }

    /// Adds a job that does not rest while another one is awake.
    pub(crate) fn add_companion(&self, id: JobId, name: &'static str, job: Weak<dyn Job>) {
        self.change(|jobs| jobs.add(id, name, job, true));
    }

    /// Makes a job that rests run again, in [`TICK`]. Costs a system call if all jobs have rested.
    pub(crate) fn start(&self, id: JobId) {
        self.change(|jobs| jobs.start(id, Instant::now() + TICK));
    }

    /// Makes jobs due. A thread that does not sleep sees them in time.
    fn change(&self, change: impl FnOnce(&mut Jobs)) {
        let mut jobs = self.jobs.lock();
        change(&mut jobs);
        let sleeps = std::mem::take(&mut jobs.sleeps);
        drop(jobs);
        if sleeps {
            self.wake_thread();
        }
    }

    /// Removes a job. It neither runs nor will run when this returns. Not to be called by the job.
    pub(crate) fn remove(&self, id: JobId) {
        let mut jobs = self.jobs.lock();
        jobs.remove(id);
        while jobs.running == Some(id) {
            self.ended.wait(&mut jobs);
        }
    }

    /// Makes the thread run a job now, regardless of its interval. Any thread may call this, a job
    /// too. It costs one system call. A job that is not added yet runs once it is.
    pub(crate) fn wake(&self, id: JobId) {
        let mut jobs = self.jobs.lock();
        let Some(entry) = jobs.entries.get_mut(&id) else { return };
        entry.again = true;
        if entry.due.is_some() || entry.rests {
            jobs.schedule(id, Instant::now());
        }
        drop(jobs);
        self.wake_thread();
    }

    /// Makes the thread look at what it serves besides the jobs.
    pub(crate) fn wake_thread(&self) {
        if let Some(waker) = &*self.waker.lock() {
            // Fails only if the counter is full, and then the thread is awake.
            let _ = waker.write(1);
        }
    }

    /// Sets the descriptor that wakes the thread.
    pub(crate) fn set_waker(&self, waker: Arc<EventFd>) {
        *self.waker.lock() = Some(waker);
    }

    /// Removes the descriptor of a thread that ends, unless the next thread has set its descriptor.
    pub(crate) fn remove_waker(&self, waker: &Arc<EventFd>) {
        self.waker.lock().take_if(|set| Arc::ptr_eq(set, waker));
    }

    /// Runs each job that is due at `now`. Returns the time until the next one is due; `None` if all
    /// rest. One thread calls this.
    pub(crate) fn run(&self, now: Instant) -> Option<Duration> {
        let due = self.jobs.lock().take_due(now);
        due.into_iter().for_each(|id| self.run_one(id));
        self.jobs.lock().next()
    }

    /// Runs a job without the lock: other jobs may be added, removed and woken meanwhile.
    fn run_one(&self, id: JobId) {
        let begun = self.jobs.lock().begin(id);
        let Some((name, job)) = begun else { return };
        let ran = catch_unwind(AssertUnwindSafe(|| {
            if let Err(e) = job.run() {
                e.report(name);
            }
            job.interval()
        }));
        // Before `remove` returns: its caller may hold the last reference then.
        drop(job);
        let mut jobs = self.jobs.lock();
        match ran {
            Ok(interval) => jobs.end(id, interval),
            Err(_) => {
                jobs.running = None;
                jobs.remove(id);
            }
        }
        let has_panicked = ran.is_err();
        drop(jobs);
        self.ended.notify_all();
        if has_panicked {
            tracing::warn!(
                target: "net",
                "{name}: internal error, please report it: a panic was caught, and this is not done any more"
            );
        }
    }
}

impl fmt::Debug for Housekeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Housekeeping")
    }
}

#[cfg(test)]
pub(crate) mod tests;
