//! Work that must not wait for NCCL's next call: a list of named jobs.
//!
//! The thread of the adapters' events runs each job at the job's own interval, and all of them at
//! once after [`Housekeeping::wake`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;

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
pub const TICK: Duration = Duration::from_millis(250);

/// The interval of a job that leaves something to NCCL's next call, in case none comes.
const SOON: Duration = Duration::from_millis(10);

/// The shortest interval: the thread never spins.
const SHORTEST: Duration = Duration::from_millis(1);

/// Something to do now and then.
pub trait Job: Send + Sync {
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

/// The jobs of a process.
#[derive(Default)]
pub struct Housekeeping {
    jobs: Mutex<Vec<Entry>>,
    /// Wakes the thread that runs the jobs; `None` while there is no thread.
    waker: Mutex<Option<Arc<EventFd>>>,
}

struct Entry {
    name: &'static str,
    job: Weak<dyn Job>,
    due: Instant,
}

impl Housekeeping {
    /// Adds a job. It runs until [`remove`](Self::remove) or until it is dropped.
    pub(crate) fn add(&self, name: &'static str, job: Weak<dyn Job>) {
        self.jobs.lock().push(Entry { name, job, due: Instant::now() });
    }

    /// Removes a job. It neither runs nor will run when this returns.
    pub(crate) fn remove(&self, job: &Arc<impl Job>) {
        let same = |one: &Weak<dyn Job>| std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(job));
        self.jobs.lock().retain(|one| one.job.strong_count() > 0 && !same(&one.job));
    }

    /// Makes the thread run all jobs now, regardless of their intervals. Any thread may call this, a job
    /// too: it takes no lock that a run holds, and costs one system call.
    pub fn wake(&self) {
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

    /// Runs each job that is due, or all if `now` is `None`. Returns the time until the next one is
    /// due. The list stays locked meanwhile, which is what `remove` waits for.
    pub(crate) fn run(&self, now: Option<Instant>) -> Duration {
        let mut jobs = self.jobs.lock();
        for entry in jobs.iter_mut().filter(|entry| now.is_none_or(|now| entry.due <= now)) {
            let Some(job) = entry.job.upgrade() else { continue };
            match catch_unwind(AssertUnwindSafe(|| job.run())) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => {
                    e.report(entry.name);
                }
                Err(_) => {
                    let name = entry.name;
                    tracing::warn!(
                        target: "net",
                        "{name}: internal error, please report it: a panic was caught, and this is not done any more"
                    );
                    entry.job = Weak::<Never>::new();
                }
            }
            entry.due = Instant::now() + job.interval().clamp(SHORTEST, TICK);
        }
        let next = jobs.iter().filter(|entry| entry.job.strong_count() > 0).map(|entry| entry.due).min();
        next.map_or(TICK, |due| due.saturating_duration_since(Instant::now()))
    }
}

/// In the place of a job that has panicked.
struct Never;

impl Job for Never {
    fn run(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Housekeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Housekeeping")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicU32;

    use nix::sys::eventfd::EfdFlags;

    use super::*;

    /// Counts its runs.
    #[derive(Default)]
    pub(crate) struct Count(AtomicU32);

    impl Count {
        pub(crate) fn runs(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Job for Count {
        fn run(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_job_runs_until_it_is_removed_or_dropped() {
        let (list, jobs) = (Housekeeping::default(), [(); 3].map(|()| Arc::<Count>::default()));
        for job in &jobs {
            let job: Arc<dyn Job> = Arc::<Count>::clone(job);
            list.add("count", Arc::downgrade(&job));
        }
        let runs = |jobs: &[Arc<Count>]| jobs.iter().map(|j| j.runs()).collect::<Vec<_>>();
        list.run(None);
        assert_eq!(runs(&jobs), [1, 1, 1]);
        list.remove(&jobs[1]);
        list.run(None);
        assert_eq!(runs(&jobs), [2, 1, 2]);
        let [first, _, last] = jobs;
        drop(first);
        list.remove(&last);
        list.run(None);
        assert_eq!((runs(&[last]), list.jobs.lock().len()), (vec![2], 0));
    }

    /// A job with a bug.
    struct Panics;

    impl Job for Panics {
        fn run(&self) -> Result<()> {
            panic!("a seeded bug");
        }
    }

    //= faults.md: 74
    #[test]
    fn a_job_that_panics_ends_alone() {
        let (list, other) = (Housekeeping::default(), Arc::<Count>::default());
        let bug: Arc<dyn Job> = Arc::new(Panics);
        list.add("bug", Arc::downgrade(&bug));
        let job: Arc<dyn Job> = Arc::<Count>::clone(&other);
        list.add("count", Arc::downgrade(&job));
        list.run(None);
        list.run(None);
        assert_eq!(other.runs(), 2);
        assert_eq!(list.jobs.lock().iter().filter(|entry| entry.job.strong_count() > 0).count(), 1);
    }

    /// Runs every 20 ms.
    #[derive(Default)]
    struct Often(AtomicU32);

    impl Job for Often {
        fn run(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn interval(&self) -> Duration {
            Duration::from_millis(20)
        }
    }

    #[test]
    fn each_job_runs_at_its_own_interval_and_all_at_a_wake() {
        let (list, often, seldom) =
            (Housekeeping::default(), Arc::<Often>::default(), Arc::<Count>::default());
        let jobs: [Arc<dyn Job>; 2] = [Arc::<Often>::clone(&often), Arc::<Count>::clone(&seldom)];
        jobs.iter().for_each(|job| list.add("job", Arc::downgrade(job)));
        let runs = || (often.0.load(Ordering::Relaxed), seldom.runs());
        assert!(list.run(None) <= Duration::from_millis(20));
        assert_eq!(runs(), (1, 1));
        // Times at which the list below has the same intervals, however long this test takes.
        let due = list.jobs.lock()[0].due;
        assert!(list.jobs.lock()[1].due > due);
        list.run(Some(due));
        assert_eq!(runs(), (2, 1));
        let last = list.jobs.lock().iter().map(|entry| entry.due).max();
        list.run(last);
        assert_eq!(runs(), (3, 2));
        list.run(None);
        assert_eq!(runs(), (4, 3), "all");
    }

    #[test]
    fn a_wake_reaches_the_thread_that_waits() {
        let list = Housekeeping::default();
        list.wake();
        let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap());
        list.set_waker(Arc::clone(&waker));
        assert!(waker.read().is_err(), "nothing yet");
        (0..3).for_each(|_| list.wake());
        assert_eq!(waker.read().unwrap(), 3);
        let other = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap());
        list.remove_waker(&other);
        list.wake();
        assert_eq!(waker.read().unwrap(), 1, "another thread has ended");
        list.remove_waker(&waker);
        list.wake();
        assert!(waker.read().is_err(), "the thread has ended");
    }
}
