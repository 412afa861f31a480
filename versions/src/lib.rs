//! One implementation, every `ncclNetPlugin_vN` table.
mod failure;
mod logger;
mod plugin;
mod profiler;
mod tagged;

pub use failure::Failure;
pub use logger::{Level, LogFn, Logger};
pub use plugin::*;
pub use profiler::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};
pub use tagged::Tagged;

/// `NCCL_NET_HANDLE_MAXSIZE` bytes that NCCL carries from listener to connector.
pub type HandleBuf = [u8; nccl_net_abi::NCCL_NET_HANDLE_MAXSIZE];
