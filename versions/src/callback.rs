//! The marks of threads that are in a callback of NCCL's: its logger or its profiler.
//!
//! The caller of a callback holds NCCL's lock of the logger, or a comm's state. A call of the plugin from
//! there could wait for itself, so [`guard`](crate::guard) refuses it.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Callbacks under way in all threads. Without any, the data path looks at nothing else.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Callbacks under way in this thread.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// A callback under way in this thread.
pub(crate) struct Callback(());

impl Callback {
    #[inline]
    pub(crate) fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        HERE.set(HERE.get() + 1);
        Self(())
    }
}

impl Drop for Callback {
    #[inline]
    fn drop(&mut self) {
        HERE.set(HERE.get() - 1);
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the calling thread is in a callback of NCCL's, its logger or its profiler.
#[inline(always)]
pub fn in_callback() -> bool {
    // A thread sees its own count, and the others do not matter.
    RUNNING.load(Ordering::Relaxed) != 0 && HERE.get() > 0
}
