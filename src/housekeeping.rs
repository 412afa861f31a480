//! Work that must not wait for NCCL's next call: a list of named jobs.
//!
//! The thread of the adapters' events runs each job at the job's own interval, and at once after
//! `Housekeeping::wake`.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use parking_lot::{Condvar, Mutex};

use crate::error::{Fast, Result};

/// Whether NCCL has left a comm alone, by something that each of its operations changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idleness<T>(Option<(T, Instant)>);

impl<T: PartialEq + Copy> Idleness<T> {
    /// Nothing is known yet.
    pub(crate) const UNKNOWN: Self = Self(None);

    /// Returns whether `now` has been the same at each call for at least [`TICK`].
    pub(crate) fn lasts(&mut self, now: T) -> bool {
        match self.0 {
            Some((before, since)) if before == now => since.elapsed() >= TICK,
            _ => {
                self.0 = Some((now, Instant::now()));
                false
            }
        }
    }
}

/// Whether the last run of a comm's job has left news to NCCL's next call.
#[derive(Debug, Default)]
pub(crate) struct Urgency(AtomicBool);

impl Urgency {
    pub(crate) fn set(&self, is_urgent: bool) {
        self.0.store(is_urgent, Ordering::Relaxed);
    }

    /// Returns the time until the job's next run.
    pub(crate) fn interval(&self) -> Duration {
        if self.0.load(Ordering::Relaxed) { SOON } else { TICK }
    }
}

/// How often a job runs unless it has another interval.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// The interval of a job that leaves something to NCCL's next call, in case none comes.
const SOON: Duration = Duration::from_millis(10);

/// The shortest interval: the thread never spins.
const SHORTEST: Duration = Duration::from_millis(1);

/// Something to do now and then.
pub(crate) trait Job: Send + Sync {
    /// Does what is due, without waiting. An error is logged once, under the job's name.
    fn run(&self) -> Result<()>;

    /// Returns the time until the next run, as the last run has left the job. At least 1 ms and at
    /// most [`TICK`] count.
    fn interval(&self) -> Duration {
        TICK
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
}

struct Entry {
    name: &'static str,
    job: Weak<dyn Job>,
    /// `None` from the time when it is due until its run has ended.
    due: Option<Instant>,
    /// Woken while it runs.
    again: bool,
}

impl Jobs {
    /// Makes a job due at `at`.
    fn schedule(&mut self, id: JobId, at: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(due) = entry.due.replace(at) {
            self.due.remove(&(due, id));
        }
        self.due.insert((at, id));
    }

    /// Takes the jobs that are due at `now`, in their order.
    fn take_due(&mut self, now: Instant) -> Vec<JobId> {
        let mut taken = Vec::new();
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
        if let Some(due) = self.entries.remove(&id).and_then(|entry| entry.due) {
            self.due.remove(&(due, id));
        }
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

    /// Ends a run. The job is due again after `interval`, if it has one.
    fn end(&mut self, id: JobId, interval: Option<Duration>) {
        self.running = None;
        let Some(interval) = interval else { return self.remove(id) };
        if let Some(entry) = self.entries.get(&id) {
            let pause = if entry.again { Duration::ZERO } else { interval.clamp(SHORTEST, TICK) };
            self.schedule(id, Instant::now() + pause);
        }
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
        let mut jobs = self.jobs.lock();
        jobs.entries.insert(id, Entry { name, job, due: None, again: false });
        jobs.schedule(id, Instant::now());
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
        if entry.due.is_some() {
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

    /// Runs each job that is due at `now`. Returns the time until the next one is due. One thread
    /// calls this.
    pub(crate) fn run(&self, now: Instant) -> Duration {
        let due = self.jobs.lock().take_due(now);
        due.into_iter().for_each(|id| self.run_one(id));
        let next = self.jobs.lock().due.first().map(|(at, _)| *at);
        next.map_or(TICK, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Runs a job without the lock: other jobs may be added, removed and woken meanwhile.
    fn run_one(&self, id: JobId) {
        let begun = self.jobs.lock().begin(id);
        let Some((name, job)) = begun else { return };
        let interval = match catch_unwind(AssertUnwindSafe(|| job.run())) {
            Ok(Ok(())) => Some(job.interval()),
            Ok(Err(e)) => {
                e.report(name);
                Some(job.interval())
            }
            Err(_) => {
                tracing::warn!(
                    target: "net",
                    "{name}: internal error, please report it: a panic was caught, and this is not done any more"
                );
                None
            }
        };
        // Before `remove` returns: its caller may hold the last reference then.
        drop(job);
        self.jobs.lock().end(id, interval);
        self.ended.notify_all();
    }
}

impl fmt::Debug for Housekeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Housekeeping")
    }
}

#[cfg(test)]
pub(crate) mod tests;
