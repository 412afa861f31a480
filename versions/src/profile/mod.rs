//! A profiler plugin: NCCL reports its operations, and what its proxy does for them.

mod event;
mod plugin;
mod table;

pub use event::{Event, Operation};
pub use plugin::{Communicator, ProfilerPlugin};
pub use table::*;
