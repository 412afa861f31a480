//! Lines on stderr: one for each misuse (unless `SOFTVERBS_LOG=off`) and one for each invalid
//! setting.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// Returns whether misuse is logged: always, except with the value `off`.
pub(crate) fn enabled() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SOFTVERBS_LOG").is_none_or(|value| value != "off"))
}

/// Writes a line if logging is enabled; see [`fault!`].
pub(crate) fn write(line: fmt::Arguments<'_>) {
    if enabled() {
        write_always(line);
    }
}

/// Writes a line even if logging is disabled, for invalid settings.
pub(crate) fn write_always(line: fmt::Arguments<'_>) {
    let line = format!("softverbs[{}]: {line}\n", std::process::id());
    // A closed stderr must not fail a verbs call.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Logs a misuse: what was found, where, and what was expected.
macro_rules! fault {
    ($($arg:tt)*) => { $crate::log::write(format_args!($($arg)*)) };
}
pub(crate) use fault;
