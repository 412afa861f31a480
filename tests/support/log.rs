//! What the plugin passes to NCCL's logger.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::io::Write as _;
use std::sync::Mutex;

use nccl_net_abi as abi;
use nccl_net_mpib::simulation::log::flush;
use nccl_net_mpib_agent_iface::codes::Code;

use crate::pair::{LIMIT, Polling};

/// Levels of NCCL's log.
pub const WARN: c_int = 2;
pub const INFO: c_int = 3;

/// The lines of this process with their levels, oldest first.
pub static LOG: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

/// Without the last line of a long warning, which repeats the first one, and without the code that
/// each warning ends in.
fn at_warn(lines: &[(c_int, String)]) -> Vec<String> {
    let warnings = lines.iter().filter(|(level, _)| *level == WARN).map(|(_, text)| text);
    let whole = warnings.filter(|text| !text.starts_with("NET/MPIB : in short: "));
    whole.map(|text| without_code(text).to_owned()).collect()
}

/// Takes the code from a line of a warning. A long warning goes on in the next line.
#[track_caller]
pub fn without_code(line: &str) -> &str {
    let (text, code) = Code::take(line);
    assert!(code.is_some() || line.ends_with(" …"), "a warning without a code: {line}");
    text
}

/// Returns whether a line so far, at any level, has this text.
pub fn has_logged(part: &str) -> bool {
    LOG.lock().unwrap().iter().any(|(_, line)| line.contains(part))
}

/// The lines at WARN so far.
pub fn warnings() -> Vec<String> {
    flush();
    at_warn(&LOG.lock().unwrap())
}

/// The lines at WARN since the last call; forgets the other lines too.
pub fn take_warnings() -> Vec<String> {
    flush();
    at_warn(&std::mem::take(&mut *LOG.lock().unwrap()))
}

fn has_all(line: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| line.contains(part))
}

/// Waits until one of the lines at WARN has all of `parts`: other threads log, too.
#[track_caller]
pub fn assert_warned(parts: &[&str]) {
    assert_warned_one_of(&[parts]);
}

/// Waits until one of the lines at WARN has all parts of one of these lists.
#[track_caller]
pub fn assert_warned_one_of(lists: &[&[&str]]) {
    let has_one = |line: &String| lists.iter().any(|parts| has_all(line, parts));
    let polling = Polling::start();
    loop {
        let lines = warnings();
        if lines.iter().any(has_one) {
            return;
        }
        assert!(polling.pause() < LIMIT, "no warning has all of one of {lists:?}: {lines:?}");
    }
}

/// Asserts that the last line at WARN has all of `parts`.
#[track_caller]
pub fn assert_last_warning(parts: &[&str]) {
    flush();
    let lines = LOG.lock().unwrap();
    let last = lines.iter().rfind(|(level, _)| *level == WARN).map(|(_, text)| text.as_str());
    let last = last.expect("nothing was logged");
    assert!(has_all(last, parts), "not all of {parts:?} are in {last:?}");
}

/// The one line at WARN since the last call of this or [`take_warnings`]; it has all of `parts`.
#[track_caller]
pub fn take_warning(parts: &[&str]) -> String {
    let lines = take_warnings();
    let [line] = &lines[..] else { panic!("not one warning with {parts:?} but {lines:?}") };
    assert!(has_all(line, parts), "not all of {parts:?} are in {line:?}");
    line.clone()
}

/// Stands in for NCCL's printf-like logger. The plugin always calls it with "%s" and one string,
/// and this has such a call's fixed list of arguments.
unsafe extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: C strings of the plugin.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format, c"%s");
    let text = text.to_string_lossy().into_owned();
    // One write, since several processes share one stderr.
    let _ = std::io::stderr().write_all(format!("[{level}] {text}\n").as_bytes());
    LOG.lock().unwrap().push((level, text));
}

/// A logger of the one form in which the plugin calls it.
pub type FixedLogger =
    unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

/// The logger that fills [`LOG`], as `init` takes it.
pub fn c_logger() -> abi::ncclDebugLogger_t {
    as_logger(logger)
}

/// A logger as `init` takes it.
pub fn as_logger(logger: FixedLogger) -> abi::ncclDebugLogger_t {
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: in this machine's C ABI a variadic call with one pointer passes it as a fixed
    // argument.
    let logger = unsafe { std::mem::transmute::<FixedLogger, Variadic>(logger) };
    // SAFETY: the crate's own type of the same function pointer, optional or not.
    unsafe { std::mem::transmute_copy::<Variadic, abi::ncclDebugLogger_t>(&logger) }
}
