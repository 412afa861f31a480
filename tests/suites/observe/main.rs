//! What others see of connections: the statistics page, and NCCL's profiler.

mod operations;
mod profiler;
mod stats;
