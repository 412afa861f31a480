//! Types at the border that both an implementation and the adapters use.

use core::ffi::{CStr, c_int, c_ulong, c_void};

use nccl_net_abi as abi;

/// `NCCL_NET_HANDLE_MAXSIZE` bytes that NCCL carries from listener to connector.
pub type HandleBuf = [u8; 128];

/// The code a failed call gives to NCCL. There is no success among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `ncclSystemError`: a call to the system or to verbs failed.
    System,
    /// `ncclInternalError`: our own bug, a caught panic, or a broken protocol on our side.
    Internal,
    /// `ncclInvalidArgument`
    InvalidArgument,
    /// `ncclInvalidUsage`: NCCL or the user asks for what this plugin does not do.
    InvalidUsage,
    /// `ncclRemoteError`: the peer is gone, or speaks nonsense.
    Remote,
}

/// NCCL's logger (`ncclDebugLogger_t`).
#[derive(Debug, Clone, Copy)]
pub struct Logger(pub(crate) abi::ncclDebugLogger_t);

/// NCCL's levels that a plugin may send to every release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `NCCL_LOG_WARN`
    Warn,
    /// `NCCL_LOG_INFO`
    Info,
    /// `NCCL_LOG_TRACE`
    Trace,
}

impl Logger {
    /// One line. `flags` are `NCCL_INIT`, `NCCL_NET`, … joined; the text is never a format.
    pub fn log(&self, level: Level, flags: c_ulong, file: &CStr, line: c_int, text: &CStr) {
        let _ = (level, flags, file, line, text);
    }
}

/// The profiler's callback (`ncclProfilerCallback_t`, v10 and later).
#[derive(Debug, Clone, Copy)]
pub struct Profiler(pub(crate) abi::ncclProfilerCallback_t);

/// NCCL's handle of the operation that a request belongs to; absent before v10 and in bootstrap traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfilerHandle(pub(crate) Option<core::ptr::NonNull<c_void>>);

/// A value that C holds by address: a tag in front tells what it is.
#[repr(C)]
#[derive(Debug)]
pub struct Tagged<T> {
    tag: u64,
    value: T,
}
