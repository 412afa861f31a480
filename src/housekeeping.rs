//! Work that must not wait for NCCL's next call: a list of named jobs.
//!
//! The thread of the adapters' events runs them between two events.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::Result;

/// Something to do now and then.
pub trait Job: Send + Sync {
    /// Does what is due, without waiting. An error is logged once, under the job's name.
    fn run(&self) -> Result<()>;
}

/// Returns an object as a job.
pub(crate) fn job<J: Job + 'static>(object: &Arc<J>) -> Weak<dyn Job> {
    let job: Arc<dyn Job> = Arc::<J>::clone(object);
    Arc::downgrade(&job)
}

/// The jobs of a process.
#[derive(Default)]
pub struct Housekeeping {
    jobs: Mutex<Vec<(&'static str, Weak<dyn Job>)>>,
}

impl Housekeeping {
    /// Adds a job. It runs until [`remove`](Self::remove) or until it is dropped.
    pub(crate) fn add(&self, name: &'static str, job: Weak<dyn Job>) {
        self.jobs.lock().push((name, job));
    }

    /// Removes a job. It neither runs nor will run when this returns.
    pub(crate) fn remove(&self, job: &Arc<impl Job>) {
        let same = |one: &Weak<dyn Job>| std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(job));
        self.jobs.lock().retain(|(_, one)| one.strong_count() > 0 && !same(one));
    }

    /// Runs each job once. The list stays locked meanwhile, which is what `remove` waits for.
    pub(crate) fn run(&self) {
        let jobs = self.jobs.lock();
        for (name, job) in jobs.iter().filter_map(|(name, job)| Some((name, job.upgrade()?))) {
            if let Err(e) = job.run() {
                e.report(name);
            }
        }
    }
}

impl fmt::Debug for Housekeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Housekeeping")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

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
        let runs = |jobs: &[Arc<Count>]| jobs.iter().map(|j| j.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        list.run();
        assert_eq!(runs(&jobs), [1, 1, 1]);
        list.remove(&jobs[1]);
        list.run();
        assert_eq!(runs(&jobs), [2, 1, 2]);
        let [first, _, last] = jobs;
        drop(first);
        list.remove(&last);
        list.run();
        assert_eq!((runs(&[last]), list.jobs.lock().len()), (vec![2], 0));
    }
}
