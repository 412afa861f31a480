//! Queue pairs that are being destroyed on the threads of their adapter. A verb takes milliseconds,
//! and for ever if the adapter's firmware hangs.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::async_events::CommWatch;
use crate::background;
use crate::error::Result;
use crate::worker::{HANGS, Steps, Urgency, Worker};

/// Objects of an adapter.
pub(crate) trait Destroy: Send {
    /// Destroys the objects.
    ///
    /// # Errors
    /// A queue pair could not be destroyed: its packets may still read or write memory.
    fn destroy(self: Box<Self>) -> Result<()>;
}

/// Objects of an adapter that are being destroyed.
#[derive(Debug)]
pub(crate) struct Fence {
    work: Arc<Work>,
    worker: Worker,
    begun: Instant,
}

/// What has become of the objects.
#[derive(Debug)]
pub(crate) enum End {
    Destroyed,
    /// The adapter hangs: the objects are left to it.
    Hangs,
    Outstanding(Fence),
}

struct Work {
    objects: Mutex<Option<Box<dyn Destroy>>>,
    result: Mutex<Option<Result<()>>>,
    /// Notified when there is a result.
    done: Condvar,
    watch: Arc<CommWatch>,
}

impl Fence {
    /// Destroys objects on the adapter's threads. The comm is notified when that is done.
    pub(crate) fn begin(
        worker: &Worker,
        urgency: Urgency,
        watch: Arc<CommWatch>,
        objects: impl Destroy + 'static,
    ) -> Self {
        let objects: Box<dyn Destroy> = Box::new(objects);
        let objects = Mutex::new(Some(objects));
        let work = Arc::new(Work { objects, result: Mutex::default(), done: Condvar::new(), watch });
        // The system has no thread left, or the process ends and its threads with it.
        if background::is_exiting() || worker.add(Arc::<Work>::clone(&work), urgency).is_err() {
            work.step();
        }
        Self { work, worker: worker.clone(), begun: Instant::now() }
    }

    /// Returns what has become of the objects.
    ///
    /// # Errors
    /// A queue pair could not be destroyed.
    pub(crate) fn end(self) -> Result<End> {
        let result = self.work.result.lock().take();
        match result {
            Some(result) => result.map(|()| End::Destroyed),
            None if self.begun.elapsed() >= HANGS => Ok(End::Hangs),
            None => Ok(End::Outstanding(self)),
        }
    }

    /// Waits until the objects are destroyed. Returns `false` without waiting longer if the adapter
    /// hangs: the objects are left to it.
    ///
    /// # Errors
    /// A queue pair could not be destroyed.
    pub(crate) fn wait(self) -> Result<bool> {
        let until = self.begun + HANGS;
        let mut result = self.work.result.lock();
        while result.is_none() && !self.worker.hangs() {
            if self.work.done.wait_until(&mut result, until).timed_out() {
                break;
            }
        }
        result.take().map_or(Ok(false), |result| result.map(|()| true))
    }
}

impl Steps for Work {
    fn step(&self) -> bool {
        let objects = self.objects.lock().take();
        let result = objects.map_or(Ok(()), Destroy::destroy);
        *self.result.lock() = Some(result);
        self.done.notify_all();
        self.watch.notify();
        true
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("result", &self.result).finish_non_exhaustive()
    }
}
