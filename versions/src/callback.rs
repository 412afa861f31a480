//! What a thread is in: a call of NCCL, or a callback, NCCL's logger or its profiler.
//!
//! A callback holds a lock of NCCL's, or a comm's state. A call of the plugin from there could wait for
//! itself, so [`guard`](crate::guard) refuses it. A call of the data path is not marked and not refused
//! here: the implementation refuses it if it would have to wait.

use core::cell::Cell;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// A call of NCCL or a callback under way in this thread.
pub(crate) struct UnderWay(&'static std::thread::LocalKey<Cell<usize>>);

impl UnderWay {
    fn begin(count: &'static std::thread::LocalKey<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }

    /// Begins a call of NCCL.
    pub(crate) fn call() -> Self {
        Self::begin(&CALLS)
    }

    /// Begins a callback.
    pub(crate) fn callback() -> Self {
        Self::begin(&CALLBACKS)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns whether the calling thread is in a call of NCCL's other than `isend`, `irecv`, `iflush`
/// and `test`.
pub fn in_call() -> bool {
    CALLS.get() > 0
}

/// Returns whether the calling thread is in a callback of NCCL's, its logger or its profiler.
pub fn in_callback() -> bool {
    CALLBACKS.get() > 0
}
