//! The two threads that run the jobs of all streams. One polls kernels and copies in turn; the other
//! calls functions of the program, which may block.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{HostFunction, Job, Progress, Queue, Shared, Steps, StreamId, Table};
use crate::unknown::{Unknown, end_rank};

/// Rounds without progress after which the polling thread sleeps between rounds. The other threads
/// of the process, and the other ranks on few cores, need the time.
const PATIENCE: u32 = 200;
/// The first and the longest sleep between rounds.
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_micros(200);

pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let run = |name: &str, body: fn(&Shared)| {
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name(name.into());
        thread.spawn(move || end_if_it_panics(|| body(&shared))).map(drop)
    };
    run("softcuda-poll", poll)?;
    run("softcuda-host", call)
}

/// Ends the rank if a job panics. Without its thread, every stream would wait for ever.
fn end_if_it_panics(body: impl FnOnce()) {
    if panic::catch_unwind(AssertUnwindSafe(body)).is_err() {
        end_rank(&Unknown::new("cause of the panic of thread", thread::current().name().unwrap_or("")));
    }
}

/// Polls jobs that run in steps.
fn poll(shared: &Shared) {
    let mut idle = 0;
    loop {
        match round(shared) {
            None => {
                // The table is looked at again under the lock, so no job is missed.
                let mut table = shared.table.lock();
                while !table.has_work_to_poll() {
                    shared.work.wait(&mut table);
                }
                idle = 0;
            }
            Some(true) => idle = 0,
            Some(false) => {
                idle += 1;
                rest(idle);
            }
        }
    }
}

fn rest(idle: u32) {
    if idle < PATIENCE {
        thread::yield_now();
    } else {
        thread::sleep(if idle < 10 * PATIENCE { SHORT } else { LONG });
    }
}

/// Steps the first job of each stream once. Returns whether any of them went on, or `None` if there
/// is nothing to poll.
fn round(shared: &Shared) -> Option<bool> {
    let mut moved = shared.pass_marks();
    let (mut polled, mut last) = (moved, None);
    loop {
        let next = shared.table.lock().next_to_poll(last);
        let Some((stream, mut job)) = next else { break };
        last = Some(stream);
        polled = true;
        let progress = job.step();
        moved |= progress != Progress::Waiting;
        let mut table = shared.table.lock();
        if progress == Progress::Done {
            // The job's memory is returned before waiters go on.
            drop(job);
            table.finish(stream);
            drop(table);
            shared.finished.notify_all();
            shared.work.notify_all();
        } else {
            table.put_back(stream, job);
        }
    }
    polled.then_some(moved)
}

/// Calls functions of the program, one after the other.
fn call(shared: &Shared) {
    let mut table = shared.table.lock();
    loop {
        let Some((stream, function)) = table.next_to_call() else {
            shared.work.wait(&mut table);
            continue;
        };
        drop(table);
        function.call();
        table = shared.table.lock();
        table.finish(stream);
        shared.finished.notify_all();
        shared.work.notify_all();
    }
}

impl Table {
    /// Takes out the first job of the next stream after `last` that can be stepped.
    fn next_to_poll(&mut self, last: Option<StreamId>) -> Option<(StreamId, Box<dyn Steps>)> {
        let from = last.map_or(0, |stream| stream + 1);
        for (stream, queue) in self.queues.range_mut(from..) {
            if !queue.running
                && let Some(Job::Steps(_)) = queue.jobs.front()
            {
                let Some(Job::Steps(job)) = queue.jobs.pop_front() else { continue };
                queue.running = true;
                return Some((*stream, job));
            }
        }
        None
    }

    fn put_back(&mut self, stream: StreamId, job: Box<dyn Steps>) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.running = false;
            queue.jobs.push_front(Job::Steps(job));
        }
    }

    fn next_to_call(&mut self) -> Option<(StreamId, HostFunction)> {
        for (stream, queue) in &mut self.queues {
            if !queue.running
                && let Some(Job::Host(function)) = queue.jobs.front()
            {
                let function = *function;
                queue.jobs.pop_front();
                queue.running = true;
                return Some((*stream, function));
            }
        }
        None
    }

    /// Returns a stream whose first job waits for a mark that is reached.
    fn reached_wait(&self) -> Option<StreamId> {
        let mut waiting = self.queues.iter().filter(|(_, queue)| !queue.running);
        let found = waiting
            .find(|(_, queue)| matches!(queue.jobs.front(), Some(Job::Await(mark)) if self.reached(*mark)));
        found.map(|(stream, _)| *stream)
    }

    fn has_work_to_poll(&self) -> bool {
        let steps = |queue: &Queue| !queue.running && matches!(queue.jobs.front(), Some(Job::Steps(_)));
        self.queues.values().any(steps) || self.reached_wait().is_some()
    }
}

impl Shared {
    /// Ends every wait for a mark that is reached. Returns whether there was one.
    fn pass_marks(&self) -> bool {
        let mut table = self.table.lock();
        let mut any = false;
        while let Some(stream) = table.reached_wait() {
            any = true;
            if let Some(queue) = table.queues.get_mut(&stream) {
                queue.jobs.pop_front();
            }
            table.finish(stream);
        }
        drop(table);
        if any {
            self.finished.notify_all();
            self.work.notify_all();
        }
        any
    }
}
