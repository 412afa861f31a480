//! The atomics of the parts that loom models. A suite of `tests/suites` compiles those parts with a
//! module of this name that has loom's instead.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
