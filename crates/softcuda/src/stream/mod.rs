//! Streams and events. A stream is a queue of jobs that run one after the other; two threads of the
//! process run the jobs of all streams.

mod event;
mod job;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};

pub(crate) use self::job::{Condition, HostFunction, Job, Progress, Steps};
use crate::status::{Answer, Status};

/// Number of a stream. The numbers below [`FIRST_CREATED`] mean the default stream: null,
/// `cudaStreamLegacy`, `cudaStreamPerThread`.
pub(crate) type StreamId = u64;

const DEFAULT: StreamId = 0;
const FIRST_CREATED: StreamId = 0x100;

/// A position in a stream: reached when this many of its jobs have finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    stream: StreamId,
    position: u64,
}

/// The streams and events of a process.
#[derive(Debug)]
pub(crate) struct Streams {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// A job was added, or one has finished that another stream may wait for.
    work: Condvar,
    /// A job has finished.
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    queues: BTreeMap<StreamId, Queue>,
    events: HashMap<u64, Option<Mark>>,
    next: u64,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs that were ever added, and those of them that have finished.
    added: u64,
    finished: u64,
    /// Whether a worker has taken the first job out to run it.
    running: bool,
    /// Whether the program has destroyed the stream. The queue ends with its last job.
    destroyed: bool,
}

impl Table {
    fn queue(&mut self, stream: StreamId) -> Answer<&mut Queue> {
        let stream = canonical(stream);
        match self.queues.get_mut(&stream) {
            Some(queue) if !queue.destroyed => Ok(queue),
            _ => Err(Status::INVALID_HANDLE),
        }
    }

    /// Returns whether a stream has reached a mark. A stream that ended has reached all of them.
    fn reached(&self, mark: Mark) -> bool {
        self.queues.get(&mark.stream).is_none_or(|queue| queue.finished >= mark.position)
    }

    /// Returns the end of a stream as of now.
    fn end_of(&mut self, stream: StreamId) -> Answer<Mark> {
        let position = self.queue(stream)?.added;
        Ok(Mark { stream: canonical(stream), position })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        FIRST_CREATED + self.next
    }

    /// Counts a finished job, and removes the queue after the last job of a destroyed stream.
    fn finish(&mut self, stream: StreamId) {
        let Some(queue) = self.queues.get_mut(&stream) else { return };
        queue.running = false;
        queue.finished += 1;
        if queue.destroyed && queue.jobs.is_empty() {
            self.queues.remove(&stream);
        }
    }
}

const fn canonical(stream: StreamId) -> StreamId {
    if stream < FIRST_CREATED { DEFAULT } else { stream }
}

impl Streams {
    /// Starts the threads. They run until the process ends.
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.table.lock().queues.insert(DEFAULT, Queue::default());
        worker::start(&shared)?;
        Ok(Self { shared })
    }

    /// Creates a stream.
    pub(crate) fn create(&self) -> StreamId {
        let mut table = self.shared.table.lock();
        let stream = table.number();
        table.queues.insert(stream, Queue::default());
        stream
    }

    /// Destroys a stream. Its jobs still run.
    pub(crate) fn destroy(&self, stream: StreamId) -> Answer {
        if stream < FIRST_CREATED {
            return Err(Status::INVALID_HANDLE);
        }
        let mut table = self.shared.table.lock();
        let queue = table.queue(stream)?;
        queue.destroyed = true;
        if queue.jobs.is_empty() && !queue.running {
            table.queues.remove(&stream);
        }
        Ok(())
    }

    /// Adds a job to a stream.
    pub(crate) fn add(&self, stream: StreamId, job: Job) -> Answer {
        let mut table = self.shared.table.lock();
        let queue = table.queue(stream)?;
        queue.jobs.push_back(job);
        queue.added += 1;
        drop(table);
        self.shared.work.notify_all();
        Ok(())
    }

    /// Returns whether a stream has finished all its jobs.
    pub(crate) fn is_idle(&self, stream: StreamId) -> Answer<bool> {
        let mut table = self.shared.table.lock();
        let end = table.end_of(stream)?;
        Ok(table.reached(end))
    }

    /// Waits until the jobs that a stream has now are finished.
    pub(crate) fn synchronize(&self, stream: StreamId) -> Answer {
        let end = self.shared.table.lock().end_of(stream)?;
        self.wait(end);
        Ok(())
    }

    /// Waits until the jobs that all streams have now are finished.
    pub(crate) fn synchronize_all(&self) {
        let marks: Vec<_> = {
            let table = self.shared.table.lock();
            table.queues.iter().map(|(id, q)| Mark { stream: *id, position: q.added }).collect()
        };
        marks.into_iter().for_each(|mark| self.wait(mark));
    }

    fn wait(&self, mark: Mark) {
        let mut table = self.shared.table.lock();
        while !table.reached(mark) {
            self.shared.finished.wait(&mut table);
        }
    }
}
