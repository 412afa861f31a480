//! Where a plugin's log lines go. The variadic half is `csrc/logger.c`.

use std::{
    ffi::{CStr, c_char, c_int, c_ulong},
    sync::{Mutex, OnceLock, PoisonError},
};

use nccl_net_abi::ncclDebugLogger_t;

/// `NCCL_LOG_WARN`
pub const WARN: c_int = 2;

/// Takes a level of `ncclDebugLogLevel` and one line. Called from any thread of the plugin.
type Sink = Box<dyn Fn(c_int, &str) + Send + Sync>;

static SINK: OnceLock<Sink> = OnceLock::new();
static LAST_WARNING: Mutex<Option<String>> = Mutex::new(None);

unsafe extern "C" {
    /// Formats and calls `mpib_log_line`.
    fn mpib_logger(level: c_int, flags: c_ulong, file: *const c_char, line: c_int, fmt: *const c_char, ...);
}

/// Directs all lines to `sink`, once in a process.
pub fn install(sink: impl Fn(c_int, &str) + Send + Sync + 'static) {
    // A second sink cannot be: a worker serves one job and ends.
    let _ = SINK.set(Box::new(sink));
}

/// What `init` is given.
pub fn callback() -> ncclDebugLogger_t {
    type Plain = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: the two types differ in that the level is a `repr(transparent)` c_int in one of them.
    unsafe { std::mem::transmute::<Plain, ncclDebugLogger_t>(mpib_logger) }
}

/// The plugin's last line of level WARN: what NCCL would show as the last error.
pub fn last_warning() -> Option<String> {
    LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The other half of `csrc/logger.c`.
///
/// # Safety
/// `text` is NUL-terminated; the C half gives a local array that vsnprintf wrote.
#[unsafe(no_mangle)]
unsafe extern "C" fn mpib_log_line(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    // SAFETY: NUL-terminated and alive during the call (see above).
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    if level == WARN {
        *LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
    }
    if let Some(sink) = SINK.get() {
        sink(level, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_printf_and_keeps_the_last_warning() {
        // SAFETY: the arguments match the format.
        unsafe {
            mpib_logger(WARN, 16, c"f.c".as_ptr(), 3, c"%s %d%%\n".as_ptr(), c"rail".as_ptr(), 7 as c_int)
        };
        assert_eq!(last_warning().as_deref(), Some("rail 7%"));
    }
}
