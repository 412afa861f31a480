//! NCCL's logger: where a plugin's log lines go.
//!
//! C gives a logger no context, so there is one per process. [`install`] sends every line to a
//! function, [`record`] keeps the lines for [`take`].

use std::{
    ffi::{CStr, c_char, c_int, c_ulong},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use nccl_net_abi::ncclDebugLogger_t;

/// `NCCL_LOG_WARN`
pub const WARN: c_int = 2;
/// `NCCL_LOG_INFO`
pub const INFO: c_int = 3;
/// `NCCL_LOG_TRACE`
pub const TRACE: c_int = 5;

/// A line that a plugin logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// A level of `ncclDebugLogLevel`, such as [`WARN`].
    pub level: c_int,
    /// Bits of `ncclDebugLogSubSys`.
    pub flags: u64,
    /// The formatted text without the newline at its end.
    pub text: String,
}

type Sink = Arc<dyn Fn(&Line) + Send + Sync>;

static SINK: Mutex<Option<Sink>> = Mutex::new(None);
static RECORDING: AtomicBool = AtomicBool::new(false);
static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());
static LAST_WARNING: Mutex<Option<String>> = Mutex::new(None);

unsafe extern "C" {
    /// Formats the line and calls `nccl_net_host_log_line` (csrc/logger.c).
    fn nccl_net_host_logger(
        level: c_int,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        fmt: *const c_char,
        ...
    );
}

/// A panic of a sink leaves nothing half-written behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes every line to `sink` from now on, in place of the sink before. Any thread of the plugin
/// may call it.
pub fn install(sink: impl Fn(&Line) + Send + Sync + 'static) {
    *lock(&SINK) = Some(Arc::new(sink));
}

/// Keeps every line from now on, for [`lines`] and [`take`].
pub fn record() {
    RECORDING.store(true, Relaxed);
}

/// Returns the recorded lines, oldest first.
pub fn lines() -> Vec<Line> {
    lock(&LINES).clone()
}

/// Returns the recorded lines and forgets them.
pub fn take() -> Vec<Line> {
    std::mem::take(&mut *lock(&LINES))
}

/// Returns the texts of the recorded lines at WARN.
pub fn warnings() -> Vec<String> {
    lines().into_iter().filter(|line| line.level == WARN).map(|line| line.text).collect()
}

/// Returns the plugin's last line at WARN, which NCCL would show as its last error.
pub fn last_warning() -> Option<String> {
    lock(&LAST_WARNING).clone()
}

/// Returns the logger that `init` passes to plugins.
pub fn callback() -> ncclDebugLogger_t {
    type Plain = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: the types differ in the level alone, which is a `repr(transparent)` c_int in one of
    // them.
    unsafe { std::mem::transmute::<Plain, ncclDebugLogger_t>(nccl_net_host_logger) }
}

/// Receives a formatted line from `csrc/logger.c`.
///
/// # Safety
/// `text` is NUL-terminated; the C half passes a local array that vsnprintf wrote.
#[unsafe(no_mangle)]
unsafe extern "C" fn nccl_net_host_log_line(
    level: c_int,
    flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    // SAFETY: NUL-terminated, and alive during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = Line { level, flags, text: text.trim_end().to_owned() };
    if level == WARN {
        *lock(&LAST_WARNING) = Some(line.text.clone());
    }
    // The sink runs without the lock, since it may cause the plugin to log.
    let sink = lock(&SINK).clone();
    if let Some(sink) = sink {
        // A panic must not cross the border to C.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sink(&line)));
    }
    if RECORDING.load(Relaxed) {
        lock(&LINES).push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(level: c_int, number: c_int) {
        let rail = c"rail".as_ptr();
        // SAFETY: the arguments match the format.
        unsafe { nccl_net_host_logger(level, 16, c"f.c".as_ptr(), 3, c"%s %d%%\n".as_ptr(), rail, number) };
    }

    #[test]
    fn lines_are_formatted_passed_on_and_kept() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        install(move |line| {
            sink.lock().unwrap().push(line.text.clone());
            assert!(line.level != TRACE, "a panic stays here");
        });
        log(WARN, 6);
        assert_eq!(lines(), [], "not before record()");
        record();
        log(WARN, 7);
        log(TRACE, 8);
        assert_eq!(last_warning().as_deref(), Some("rail 7%"));
        assert_eq!(warnings(), ["rail 7%"]);
        assert_eq!(*seen.lock().unwrap(), ["rail 6%", "rail 7%", "rail 8%"]);
        let line = Line { level: WARN, flags: 16, text: "rail 7%".into() };
        assert_eq!(take()[0], line);
        assert_eq!(lines(), []);
    }
}
