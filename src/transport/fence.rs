//! Queue pairs that are being destroyed on the threads of their adapter. A verb takes milliseconds,
//! and for ever if the adapter's firmware hangs.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::async_events::CommWatch;
use crate::error::Result;
use crate::worker::{Steps, Urgency, Worker};

/// An adapter that has not destroyed queue pairs after this time is dead. Nothing is left of it to
/// write: the peer's queue pairs are destroyed, too.
const HANGS: Duration = Duration::from_secs(5);

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
        let work = Arc::new(Work { objects: Mutex::new(Some(objects)), result: Mutex::default(), watch });
        if worker.add(Arc::<Work>::clone(&work), urgency).is_err() {
            // The system has no thread left.
            work.step();
        }
        Self { work, begun: Instant::now() }
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
}

impl Steps for Work {
    fn step(&self) -> bool {
        let objects = self.objects.lock().take();
        let result = objects.map_or(Ok(()), Destroy::destroy);
        *self.result.lock() = Some(result);
        self.watch.notify();
        true
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("result", &self.result).finish_non_exhaustive()
    }
}
