//! NCCL's profiler: each event begins and ends once.

mod absent;
mod events;
mod failures;
mod util;
