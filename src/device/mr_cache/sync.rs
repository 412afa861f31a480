//! The locks of the cache. `tests/suites/loom` replaces them by loom's.

pub(super) use std::sync::Arc;

pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
