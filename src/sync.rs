//! The atomics and locks of the parts that loom models. Suites of `tests/suites` compile those parts
//! with a module of this name that has loom's instead.

pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

pub(crate) use parking_lot::Mutex;
