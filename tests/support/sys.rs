//! Processes with a private `/sys`, whose files list the loaded kernel modules.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::process::isolated_under;

/// Below `/sys` while the kernel's module for GPU memory is loaded.
pub const PEERMEM: &str = "module/nvidia_peermem/version";

/// Runs the command behind it with a `/sys` that has the files named in [`FILES`] and no others.
const LAUNCHER: &[&str] = &[
    "unshare",
    "--user",
    "--map-current-user",
    "--keep-caps",
    "--mount",
    "sh",
    "-ec",
    "mount -t tmpfs none /sys
    for f in ${TEST_SYS_FILES:-}; do mkdir -p \"/sys/${f%/*}\"; echo 1 >\"/sys/$f\"; done
    exec \"$@\"",
    "sh",
];
const FILES: &str = "TEST_SYS_FILES";

/// Tries [`LAUNCHER`]; the error is what `unshare` or `mount` printed.
fn try_launcher() -> Result<(), String> {
    let tried = Command::new(LAUNCHER[0]).args(&LAUNCHER[1..]).arg("true").output().unwrap();
    if tried.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&tried.stderr).into_owned()) }
}

/// The launcher of tests that do not choose one: hides the modules of a machine with a GPU, if the
/// kernel allows it, since the plugin would find them.
pub(crate) fn hide_gpu() -> &'static [&'static str] {
    let gpu = Path::new("/sys/module/nvidia").exists() || Path::new("/sys/kernel/mm/memory_peers").exists();
    if gpu && try_launcher().is_ok() { LAUNCHER } else { &[] }
}

/// Runs `body` in a process whose `/sys` has these files only.
///
/// Does not run it if the kernel refuses such a `/sys`, and prints that; with `TEST_NAMESPACES` set
/// the test fails.
pub fn with_sys(test: &str, files: &[&str], env: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(FILES).is_none()
        && let Err(why) = try_launcher()
    {
        return skip(test, "a process may have no /sys of its own here", &why);
    }
    let files = files.join(" ");
    let env = [env, &[(FILES, files.as_str())]].concat();
    isolated_under(LAUNCHER, test, &env, body);
}

/// Prints that `test` does not run; fails with `TEST_NAMESPACES` set.
pub(crate) fn skip(test: &str, what: &str, why: &str) {
    assert!(std::env::var_os("TEST_NAMESPACES").is_none(), "TEST_NAMESPACES is set, and {what}: {why}");
    // Without eprintln, whose output libtest captures.
    let _ = writeln!(std::io::stderr(), "{test}: NOT RUN, {what}: {why}");
}
