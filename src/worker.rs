//! A thread for work that a call of NCCL must not wait for. The work is done in steps.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The pause after each job has had a step: jobs wait for the network and for the kernel.
const PAUSE: Duration = Duration::from_millis(1);

/// Work in steps.
pub(crate) trait Steps: Send + Sync {
    /// Does what can be done without waiting. Returns whether the work has ended.
    fn step(&self) -> bool;
}

/// A thread, which exists while there is work.
pub(crate) struct Worker {
    name: &'static str,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    jobs: Vec<Arc<dyn Steps>>,
    is_running: bool,
}

impl Worker {
    /// `name`: of the thread.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, state: Arc::default() }
    }

    /// Adds a job.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn add(&self, job: Arc<dyn Steps>) -> Result<()> {
        let mut state = self.state.lock();
        if !state.is_running {
            let shared = Arc::clone(&self.state);
            thread::Builder::new()
                .name(self.name.into())
                .spawn(move || run(&shared))
                .map_err(|e| Error::io(format!("starting the thread {}", self.name), e))?;
            state.is_running = true;
        }
        state.jobs.push(job);
        Ok(())
    }
}

fn run(state: &Mutex<State>) {
    loop {
        let jobs = {
            let mut state = state.lock();
            if state.jobs.is_empty() {
                state.is_running = false;
                return;
            }
            state.jobs.clone()
        };
        for job in jobs {
            if job.step() {
                state.lock().jobs.retain(|other| !Arc::ptr_eq(other, &job));
            }
        }
        thread::sleep(PAUSE);
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// Ends with the third step.
    struct Count(AtomicU32, mpsc::Sender<u32>);

    impl Steps for Count {
        fn step(&self) -> bool {
            let steps = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            self.1.send(steps).unwrap();
            steps == 3
        }
    }

    #[test]
    fn each_job_has_steps_until_it_ends_also_after_a_time_without_any() {
        let worker = Worker::new("worker");
        for _ in 0..2 {
            let (steps, done) = mpsc::channel();
            worker.add(Arc::new(Count(AtomicU32::new(0), steps.clone()))).unwrap();
            worker.add(Arc::new(Count(AtomicU32::new(0), steps))).unwrap();
            // The channel ends when the thread has dropped both.
            let mut all: Vec<_> = done.iter().collect();
            all.sort_unstable();
            assert_eq!(all, [1, 1, 2, 2, 3, 3]);
        }
    }
}
