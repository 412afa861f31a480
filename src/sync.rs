//! The atomics of the parts that loom models. `tests/suites/request_cell.rs` compiles those parts
//! with a module of this name that has loom's atomics instead.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
