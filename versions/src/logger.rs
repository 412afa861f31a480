//! NCCL's logger.

use core::ffi::{CStr, c_int, c_ulong, c_void};

use nccl_net_abi as abi;

use crate::callback::UnderWay;

/// The log levels that every release accepts from a plugin, with the subsystems of the line:
/// `NCCL_INIT`, `NCCL_NET`, …, or-ed. NCCL drops a line if `NCCL_DEBUG_SUBSYS`, whose default lacks
/// `NET`, has none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `NCCL_LOG_WARN`: a call failed. NCCL keeps the line as its last error. It is of every
    /// subsystem (`NCCL_ALL`), as NCCL's own warnings.
    Warn,
    /// `NCCL_LOG_INFO`: information.
    Info(c_ulong),
    /// `NCCL_LOG_TRACE`: only in builds with tracing.
    Trace(c_ulong),
}

/// A logger in Rust. Arguments: level, file, line, text.
pub type LogFn = fn(Level, &CStr, c_int, &CStr);

/// A destination of log lines: NCCL's logger (`ncclDebugLogger_t`), or a function of a test or
/// tool.
#[derive(Debug, Clone, Copy)]
pub struct Logger(Sink);

#[derive(Debug, Clone, Copy)]
enum Sink {
    C(abi::ncclDebugLogger_t),
    Rust(LogFn),
}

impl Logger {
    /// Wraps the logger that NCCL passes to `init`. A NULL logger drops every line.
    pub(crate) const fn new(logger: abi::ncclDebugLogger_t) -> Self {
        Self(Sink::C(logger))
    }

    /// Returns a logger for tests and tools that run a plugin without NCCL.
    pub const fn from_fn(log: LogFn) -> Self {
        Self(Sink::Rust(log))
    }

    /// Returns the address of NCCL's function, which is in libnccl. `None` for other loggers.
    pub fn address(&self) -> Option<*const c_void> {
        match self.0 {
            Sink::C(log) => log.map(|log| log as *const c_void),
            Sink::Rust(_) => None,
        }
    }

    /// Logs one line. The text is never used as a format.
    ///
    /// NCCL takes a lock and may write to a file, so the data path must not call it, and nobody may
    /// under a lock.
    pub fn log(&self, level: Level, file: &CStr, line: c_int, text: &CStr) {
        let _callback = UnderWay::callback();
        match self.0 {
            Sink::Rust(log) => log(level, file, line, text),
            Sink::C(None) => {}
            Sink::C(Some(log)) => {
                let (level, flags) = match level {
                    Level::Warn => (abi::NCCL_LOG_WARN, abi::NCCL_ALL),
                    Level::Info(flags) => (abi::NCCL_LOG_INFO, flags),
                    Level::Trace(flags) => (abi::NCCL_LOG_TRACE, flags),
                };
                // SAFETY: NCCL's logger is a printf that lives as long as the process and only
                // reads. All strings end in NUL, and the fixed format takes exactly one string.
                unsafe { log(level, flags, file.as_ptr(), line, c"%s".as_ptr(), text.as_ptr()) }
            }
        }
    }
}
