//! What tests of the whole plugin share: every version's C table behind one trait, and a process of its own
//! for each test, since settings and devices belong to the process.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod evil;
pub mod memory;
pub mod obey;
pub mod pair;
pub mod peer;
pub mod recorder;
pub mod rng;
pub mod table;

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set in the child; its value is the test's name.
const CHILD: &str = "TEST_CHILD";

/// Below /sys while the kernel's module for GPU memory is loaded.
pub const PEERMEM: &str = "module/nvidia_peermem/version";

/// Runs what follows it with a /sys of its own, which has the files named in [`SYS_FILES`], below /sys, and no others.
const OWN_SYS: &[&str] = &[
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
const SYS_FILES: &str = "TEST_SYS_FILES";

/// Whether this kernel lets this user have a /sys of its own; what it says if not.
fn own_sys() -> Result<(), String> {
    let tried = Command::new(OWN_SYS[0]).args(&OWN_SYS[1..]).arg("true").output().unwrap();
    if tried.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&tried.stderr).into_owned()) }
}

/// Variables that this project reads, which a test's process must not get from outside.
const OURS: [&str; 4] = ["MPIB_", "NCCL_", "SOFTVERBS_", "RUST_LOG"];

/// Runs `body` in a process of its own, with `env` on top of two soft devices and a fabric of its own. `test` is
/// the path of the calling test. Gives what that process said on stderr, and nothing in that process itself.
pub fn isolated(test: &str, env: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    isolated_under(&[], test, env, body)
}

/// Whether this is the process of that test's own.
pub fn is_child(test: &str) -> bool {
    std::env::var(CHILD).as_deref() == Ok(test)
}

/// As [`isolated`], in a process that `launcher` makes of the program and arguments behind its own.
pub fn isolated_under(
    launcher: &[&str],
    test: &str,
    env: &[(&str, &str)],
    body: impl FnOnce(),
) -> Option<String> {
    if is_child(test) {
        body();
        return None;
    }
    assert!(std::env::var_os(CHILD).is_none(), "{test} does not match its own name");
    let program = std::env::current_exe().unwrap();
    // A machine with a GPU looks like one without, where it lets itself.
    let gpu = Path::new("/sys/module/nvidia").exists() || Path::new("/sys/kernel/mm/memory_peers").exists();
    let launcher = if launcher.is_empty() && gpu && own_sys().is_ok() { OWN_SYS } else { launcher };
    let mut words = launcher.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args([test, "--exact", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if OURS.iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            command.env_remove(name);
        }
    }
    let fabric =
        format!("t{}-{}", std::process::id(), test.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let fabric = &fabric[..fabric.len().min(60)];
    command.env(CHILD, test).env("SOFTVERBS_FABRIC", fabric);
    command.envs(env.iter().copied());
    if std::env::var_os("TEST_SHOW").is_some() {
        // As it comes, for tests that take long.
        command.stderr(Stdio::inherit()).stdout(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{test} in its own process: {}", output.status);
        return Some(String::new());
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test} in its own process: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{test} did not run in its own process:\n{out}\n{err}");
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    let left = format!("/dev/shm/softverbs-{uid}/{fabric}");
    assert!(!Path::new(&left).exists(), "{test} left {left} behind\n{err}");
    Some(err)
}

/// Runs `body` in a process whose /sys has these files only.
pub fn with_sys(test: &str, files: &[&str], env: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(SYS_FILES).is_none()
        && let Err(why) = own_sys()
    {
        assert!(
            std::env::var_os("TEST_NAMESPACES").is_none(),
            "TEST_NAMESPACES is set, and a process may have no /sys of its own here: {why}"
        );
        // Not by a macro, whose lines the harness keeps to itself.
        let _ =
            writeln!(std::io::stderr(), "{test}: NOT RUN, a process may have no /sys of its own here: {why}");
        return;
    }
    let files = files.join(" ");
    let env = [env, &[(SYS_FILES, files.as_str())]].concat();
    isolated_under(OWN_SYS, test, &env, body);
}

/// Sets a variable of this process, or takes it away. For the body of [`isolated`] only, while no comm exists.
pub fn set(name: &str, value: Option<impl AsRef<OsStr>>) {
    match value {
        // SAFETY: in a process of one test, whose only other threads wait: libtest's for this one, the plugin's in
        // its event loop. Neither looks at the environment.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
}

/// The MPIB profile: two rails behind one device.
pub const TWO_RAILS: [(&str, &str); 2] = [("MPIB_HCA_SOUT", "soft0"), ("MPIB_HCA_SUP", "soft1")];

/// The MPIB profile with a share for SUP, and more.
pub fn mpib<'a>(share: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut env = TWO_RAILS.to_vec();
    env.push(("MPIB_SUP_SHARE", share));
    env.extend_from_slice(more);
    env
}

/// So that a probe or a write without an answer ends soon.
pub const SHORT: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "1")];

/// The name of the function that this stands in, as libtest knows it.
#[macro_export]
macro_rules! here {
    () => {{
        fn f() {}
        let name = std::any::type_name_of_val(&f);
        // crate::path::function::f
        let name = name.strip_suffix("::f").unwrap();
        name.split_once("::").unwrap().1
    }};
}
