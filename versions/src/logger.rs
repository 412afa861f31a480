//! NCCL's logger as a plugin uses it.

use core::ffi::{CStr, c_int, c_ulong};

use nccl_net_abi as abi;

/// NCCL's levels that a plugin may send to every release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `NCCL_LOG_WARN`: this call failed. NCCL keeps it as its last error.
    Warn,
    /// `NCCL_LOG_INFO`
    Info,
    /// `NCCL_LOG_TRACE`
    Trace,
}

/// A logger written in Rust: level, flags, file, line, text.
pub type LogFn = fn(Level, c_ulong, &CStr, c_int, &CStr);

/// Where log lines go: NCCL's logger (`ncclDebugLogger_t`), or a function of a test or tool.
#[derive(Debug, Clone, Copy)]
pub struct Logger(Sink);

#[derive(Debug, Clone, Copy)]
enum Sink {
    C(abi::ncclDebugLogger_t),
    Rust(LogFn),
}

impl Logger {
    /// Wraps what NCCL hands to `init`. NULL gives a logger that drops every line.
    pub(crate) const fn new(logger: abi::ncclDebugLogger_t) -> Self {
        Self(Sink::C(logger))
    }

    /// A logger for tests and tools that run a plugin without NCCL.
    pub const fn from_fn(log: LogFn) -> Self {
        Self(Sink::Rust(log))
    }

    /// One line. `flags` are `NCCL_INIT`, `NCCL_NET`, … joined; the text is never a format.
    ///
    /// NCCL takes a lock and may write to a file: not for the data path.
    pub fn log(&self, level: Level, flags: c_ulong, file: &CStr, line: c_int, text: &CStr) {
        match self.0 {
            Sink::Rust(log) => log(level, flags, file, line, text),
            Sink::C(None) => {}
            Sink::C(Some(log)) => {
                let level = match level {
                    Level::Warn => abi::NCCL_LOG_WARN,
                    Level::Info => abi::NCCL_LOG_INFO,
                    Level::Trace => abi::NCCL_LOG_TRACE,
                };
                // SAFETY: NCCL's logger is a printf that lives as long as the process and only reads;
                // all strings end in NUL, and the fixed format takes exactly the one string given.
                unsafe { log(level, flags, file.as_ptr(), line, c"%s".as_ptr(), text.as_ptr()) }
            }
        }
    }
}
