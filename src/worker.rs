//! Threads for work that a call of NCCL must not wait for: each adapter has some. The work is done in
//! steps, and what a connection waits for comes first.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::background;
use crate::error::{Error, Result};

/// The pause after a step that has not ended the work: it waits for the network or for the kernel.
const PAUSE: Duration = Duration::from_millis(1);
/// An adapter whose step has not ended after this time is dead. Nothing is left of it to write.
pub(crate) const HANGS: Duration = Duration::from_secs(5);
/// How long a thread waits for the next job: connections that are closed come one after another.
const LINGER: Duration = Duration::from_millis(100);
/// Most threads of a worker. A step may wait in the kernel for a second, for a peer that is away.
pub(crate) const THREADS: usize = 4;

/// Work in steps.
pub(crate) trait Steps: Send + Sync {
    /// Does what can be done without waiting for the peer. Returns whether the work has ended.
    fn step(&self) -> bool;
}

/// Which work comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Data waits for it.
    High,
    Low,
}

/// Threads, which exist while there is work and [a little longer](LINGER). A clone is the same worker.
#[derive(Clone)]
pub(crate) struct Worker {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of each job.
    added: Condvar,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Arc<dyn Steps>>,
    other: VecDeque<Arc<dyn Steps>>,
    threads: usize,
    /// When the steps have begun that threads are in.
    busy: Vec<Instant>,
}

impl Worker {
    /// `name`: of the threads.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, shared: Arc::default() }
    }

    /// Adds a job.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn add(&self, job: Arc<dyn Steps>, urgency: Urgency) -> Result<()> {
        let mut state = self.shared.state.lock();
        // Each job finds a thread, if the others hang in their steps.
        let waiting = state.urgent.len() + state.other.len();
        if waiting >= state.threads - state.busy.len() && state.threads < THREADS {
            let [shared, waiter] = [&self.shared; 2].map(Arc::clone);
            let wake = move || {
                waiter.added.notify_all();
            };
            let spawned = background::spawn(self.name, wake, move || run(&shared));
            match spawned {
                Ok(_) => state.threads += 1,
                Err(e) if state.threads == 0 => {
                    return Err(Error::io(format!("starting the thread {}", self.name), e));
                }
                // The other threads do the work.
                Err(_) => {}
            }
        }
        state.push(job, urgency);
        self.shared.added.notify_one();
        Ok(())
    }

    /// Drops something on the adapter's threads, and waits for that, but not for an adapter that
    /// hangs.
    pub(crate) fn release(&self, object: impl Send + 'static) {
        Task::begin(self, Urgency::High, || drop(object), || {}).wait();
    }

    /// Returns whether a step has begun [so long](HANGS) ago and has not ended.
    pub(crate) fn hangs(&self) -> bool {
        self.shared.state.lock().busy.iter().any(|begun| begun.elapsed() >= HANGS)
    }
}

impl State {
    fn push(&mut self, job: Arc<dyn Steps>, urgency: Urgency) {
        match urgency {
            Urgency::High => self.urgent.push_back(job),
            Urgency::Low => self.other.push_back(job),
        }
    }

    fn next(&mut self) -> Option<(Arc<dyn Steps>, Urgency)> {
        let urgent = self.urgent.pop_front().map(|job| (job, Urgency::High));
        urgent.or_else(|| self.other.pop_front().map(|job| (job, Urgency::Low)))
    }
}

impl Shared {
    /// Waits for the next job, and notes that its step begins. `None`: the thread ends.
    fn begin(&self) -> Option<(Arc<dyn Steps>, Urgency, Instant)> {
        let mut state = self.state.lock();
        let mut has_waited = false;
        while !background::is_exiting() {
            if let Some((job, urgency)) = state.next() {
                let begun = Instant::now();
                state.busy.push(begun);
                return Some((job, urgency, begun));
            }
            if has_waited {
                break;
            }
            has_waited = self.added.wait_for(&mut state, LINGER).timed_out();
        }
        state.threads -= 1;
        None
    }
}

fn run(shared: &Shared) {
    while let Some((job, urgency, begun)) = shared.begin() {
        let has_ended = step(&*job);
        let mut state = shared.state.lock();
        state.busy.iter().position(|other| *other == begun).map(|at| state.busy.swap_remove(at));
        if has_ended {
            continue;
        }
        state.push(job, urgency);
        drop(state);
        thread::sleep(PAUSE);
    }
}

/// Does a step. A panic ends the work.
fn step(job: &dyn Steps) -> bool {
    catch_unwind(AssertUnwindSafe(|| job.step())).unwrap_or_else(|_| {
        tracing::warn!(target: "net", "internal error, please report it: work on a rail or an adapter has ended by a panic");
        true
    })
}

/// Work whose result somebody waits for, for a time: a verb takes milliseconds, and for ever if the
/// adapter's firmware hangs.
pub(crate) struct Task<T> {
    run: Arc<Run<T>>,
    worker: Worker,
    begun: Instant,
}

/// What has become of a task.
#[derive(Debug)]
pub(crate) enum End<T> {
    Done(T),
    /// The adapter hangs: what the task has is left to it.
    Hangs,
    Outstanding(Task<T>),
}

struct Run<T> {
    work: Mutex<Option<Box<dyn FnOnce() -> T + Send>>>,
    result: Mutex<Option<T>>,
    /// Notified when there is a result ...
    done: Condvar,
    /// ... and called then.
    then: Box<dyn Fn() + Send + Sync>,
}

impl<T: Send + 'static> Task<T> {
    /// Begins the work on the worker's threads. `then` is called after there is a result.
    pub(crate) fn begin(
        worker: &Worker,
        urgency: Urgency,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let work = Mutex::new(Some(Box::new(work) as Box<_>));
        let run =
            Arc::new(Run { work, result: Mutex::new(None), done: Condvar::new(), then: Box::new(then) });
        // The system has no thread left, or the process ends and its threads with it.
        if background::is_exiting() || worker.add(Arc::<Run<T>>::clone(&run), urgency).is_err() {
            run.step();
        }
        Self { run, worker: worker.clone(), begun: Instant::now() }
    }

    /// Returns what has become of the task.
    pub(crate) fn end(self) -> End<T> {
        let result = self.run.result.lock().take();
        match result {
            Some(result) => End::Done(result),
            None if self.begun.elapsed() >= HANGS => End::Hangs,
            None => End::Outstanding(self),
        }
    }

    /// Waits for the result. `None` without waiting longer if the adapter hangs.
    pub(crate) fn wait(self) -> Option<T> {
        let until = self.begun + HANGS;
        let mut result = self.run.result.lock();
        while result.is_none() && !self.worker.hangs() {
            if self.run.done.wait_until(&mut result, until).timed_out() {
                break;
            }
        }
        result.take()
    }
}

impl<T: Send> Steps for Run<T> {
    fn step(&self) -> bool {
        let work = self.work.lock().take();
        if let Some(work) = work {
            let result = work();
            *self.result.lock() = Some(result);
            self.done.notify_all();
            (self.then)();
        }
        true
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("begun", &self.begun).finish_non_exhaustive()
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
        for urgency in [Urgency::High, Urgency::Low] {
            let (steps, done) = mpsc::channel();
            worker.add(Arc::new(Count(AtomicU32::new(0), steps.clone())), urgency).unwrap();
            worker.add(Arc::new(Count(AtomicU32::new(0), steps)), Urgency::Low).unwrap();
            // The channel ends when the threads have dropped both.
            let mut all: Vec<_> = done.iter().collect();
            all.sort_unstable();
            assert_eq!(all, [1, 1, 2, 2, 3, 3]);
        }
    }

    /// Waits in its step until the other end is dropped.
    struct Stuck(Mutex<mpsc::Receiver<()>>);

    impl Steps for Stuck {
        fn step(&self) -> bool {
            self.0.lock().recv().is_err()
        }
    }

    //= rail-life.md: an adapter that hangs holds up no other work of its thread
    #[test]
    fn a_step_that_does_not_return_holds_up_no_other_job() {
        let worker = Worker::new("worker");
        let (go_on, waits) = mpsc::channel();
        worker.add(Arc::new(Stuck(Mutex::new(waits))), Urgency::Low).unwrap();
        let (steps, done) = mpsc::channel();
        worker.add(Arc::new(Count(AtomicU32::new(0), steps)), Urgency::High).unwrap();
        assert_eq!(done.iter().collect::<Vec<_>>(), [1, 2, 3]);
        drop(go_on);
    }
}
