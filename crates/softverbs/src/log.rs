//! One line on stderr for each misuse, unless `SOFTVERBS_LOG=off`, and for each setting that is wrong, always.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// Whether faults are told. Any value but `off` means that they are.
pub(crate) fn enabled() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SOFTVERBS_LOG").is_none_or(|value| value != "off"))
}

/// Writes the line; see [`fault!`].
pub(crate) fn write(line: fmt::Arguments<'_>) {
    if enabled() {
        write_always(line);
    }
}

/// Writes a line that nothing silences: a setting is wrong, and what was asked for will not be.
pub(crate) fn write_always(line: fmt::Arguments<'_>) {
    let line = format!("softverbs[{}]: {line}\n", std::process::id());
    // A closed stderr is no reason to fail a verb.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Tells a misuse: what was found, where, and what was expected.
macro_rules! fault {
    ($($arg:tt)*) => { $crate::log::write(format_args!($($arg)*)) };
}
pub(crate) use fault;
