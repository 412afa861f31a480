//! Queue pairs that are being destroyed on the thread of their adapter. A verb takes milliseconds, and
//! for ever if the adapter's firmware hangs.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::async_events::CommWatch;
use crate::worker::{Steps, Urgency, Worker};

/// An adapter that has not destroyed queue pairs after this time is dead. Nothing is left of it to
/// write: the peer's queue pairs are destroyed, too.
const HANGS: Duration = Duration::from_secs(5);

/// Objects of an adapter that are being destroyed.
#[derive(Debug)]
pub(crate) struct Fence {
    work: Arc<Work>,
    begun: Instant,
}

struct Work {
    objects: Mutex<Option<Box<dyn Any + Send>>>,
    is_done: AtomicBool,
    watch: Arc<CommWatch>,
}

impl Fence {
    /// Destroys objects on the adapter's thread. The comm is notified when that is done.
    pub(crate) fn begin(
        worker: &Worker,
        urgency: Urgency,
        watch: Arc<CommWatch>,
        objects: impl Any + Send,
    ) -> Self {
        let objects = Mutex::new(Some(Box::new(objects) as Box<dyn Any + Send>));
        let work = Arc::new(Work { objects, is_done: AtomicBool::new(false), watch });
        if worker.add(Arc::<Work>::clone(&work), urgency).is_err() {
            // The system has no thread left.
            work.step();
        }
        Self { work, begun: Instant::now() }
    }

    /// Returns whether the objects are destroyed, or their adapter hangs.
    pub(crate) fn is_over(&self) -> bool {
        self.work.is_done.load(Ordering::Acquire) || self.hangs()
    }

    /// Returns whether the adapter hangs: its objects are left to it.
    pub(crate) fn hangs(&self) -> bool {
        !self.work.is_done.load(Ordering::Acquire) && self.begun.elapsed() >= HANGS
    }
}

impl Steps for Work {
    fn step(&self) -> bool {
        let objects = self.objects.lock().take();
        drop(objects);
        self.is_done.store(true, Ordering::Release);
        self.watch.notify();
        true
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}
