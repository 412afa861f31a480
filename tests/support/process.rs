//! A process for each test, since settings and devices belong to the process, and second processes
//! for its peers and agents.
//!
//! Each of them is the test binary, run again with `TEST --exact`. `TEST_CHILD` names the test, and
//! [`Role`] is what the process does in it: the body of [`isolated`] or another part.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use softverbs::{Capability, DeviceSpec};

use crate::pair::LIMIT;
use crate::{agent, hosts, remote_peer, stats, sys};

/// Set in the processes of a test: its name.
const TEST: &str = "TEST_CHILD";
/// Set in its second processes: the word of their role.
const ROLE: &str = "TEST_ROLE";

/// Set in the processes of a test: NCCL's variable that requests certain merged devices.
pub const MERGE: &str = "NCCL_NET_FORCE_MERGE";

/// What a second process does in place of the test's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes connections and moves data on command: [`remote_peer`].
    Peer,
    /// Answers as an agent: [`agent`].
    Agent,
    /// Reads statistics pages: [`stats`].
    StatsReader,
    /// Tries to reach an address: [`hosts`].
    Knock,
    /// The function that the test gave to [`isolated_with`].
    Second,
}

impl Role {
    const ALL: [(Self, &str); 5] = [
        (Self::Peer, "peer"),
        (Self::Agent, "agent"),
        (Self::StatsReader, "stats-reader"),
        (Self::Knock, "knock"),
        (Self::Second, "second"),
    ];

    /// The role of this process; none is the test's body.
    fn current() -> Option<Self> {
        let word = std::env::var(ROLE).ok()?;
        let known = Self::ALL.into_iter().find(|(_, known)| *known == word);
        Some(known.unwrap_or_else(|| panic!("{ROLE}={word} is no role")).0)
    }

    /// A second process of the current test.
    pub fn command(self) -> Command {
        self.command_by(Command::new(std::env::current_exe().unwrap()))
    }

    /// As [`command`](Self::command); `command` runs this program and lacks its arguments.
    pub fn command_by(self, mut command: Command) -> Command {
        let test = std::env::var(TEST).expect("second processes are started in the body of `isolated`");
        let (_, word) = Self::ALL.into_iter().find(|(role, _)| *role == self).unwrap();
        command.args(HARNESS).arg(test).env(ROLE, word);
        command
    }
}

/// Arguments of libtest that run the one test behind them.
const HARNESS: [&str; 3] = ["--exact", "--nocapture", "--test-threads=1"];

/// Whether this is a process of this test.
pub fn is_child(test: &str) -> bool {
    std::env::var(TEST).as_deref() == Ok(test)
}

/// Runs `body` in a fresh process, with `env` on top of two soft devices and a fabric. `test` is
/// the path of the calling test.
///
/// Returns what that process wrote to stderr; in that process itself, nothing.
pub fn isolated(test: &str, env: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    run(&[], test, env, || panic!("{test} has no function of its own for a second process"), body)
}

/// As [`isolated`]; the processes that `body` starts as [`Role::Second`] run `second`.
pub fn isolated_with(
    test: &str,
    env: &[(&str, &str)],
    second: impl FnOnce(),
    body: impl FnOnce(),
) -> Option<String> {
    run(&[], test, env, second, body)
}

/// Set in the processes of a test whose adapters have no shared receive queues.
pub const WITHOUT_SRQ: (&str, &str) = ("TEST_WITHOUT_SRQ", "1");

/// As [`isolated`], twice: the second time no adapter has shared receive queues.
pub fn with_and_without_srq(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        isolated(test, env, body);
        return;
    }
    for form in [&[][..], &[WITHOUT_SRQ]] {
        isolated(test, &[env, form].concat(), || {});
    }
}

/// Removes the shared receive queues from the devices of this process.
fn remove_srqs() {
    let mut devices = match std::env::var(softverbs::DEVICES_VAR) {
        Ok(text) => DeviceSpec::parse_list(&text).unwrap(),
        Err(_) => softverbs::default_devices(),
    };
    devices.iter_mut().for_each(|device| device.without.push(Capability::Srq));
    softverbs::configure(devices).unwrap();
}

/// As [`isolated`]; `launcher` runs the program and the arguments that follow it.
pub fn isolated_under(
    launcher: &[&str],
    test: &str,
    env: &[(&str, &str)],
    body: impl FnOnce(),
) -> Option<String> {
    run(launcher, test, env, || panic!("{test} has no function of its own for a second process"), body)
}

fn run(
    launcher: &[&str],
    test: &str,
    env: &[(&str, &str)],
    second: impl FnOnce(),
    body: impl FnOnce(),
) -> Option<String> {
    if is_child(test) {
        play(second, body);
        return None;
    }
    assert!(std::env::var_os(TEST).is_none(), "{test} is not the name of the test that calls isolated");
    let launcher = if launcher.is_empty() { sys::hide_gpu() } else { launcher };
    let fabric = fabric(test);
    let mut command = command(launcher, test, env, &fabric);
    if std::env::var_os("TEST_SHOW").is_some() {
        // Shows what a long test prints as it comes.
        let child = command.stderr(Stdio::inherit()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{test} in its own process: {}", output.status);
        return Some(String::new());
    }
    Some(checked(test, &command.output().unwrap(), &fabric))
}

/// Does what this process of a test is for.
fn play(second: impl FnOnce(), body: impl FnOnce()) {
    let role = Role::current();
    if role != Some(Role::Agent) {
        // SAFETY: only chooses the signal for the end of the thread that started this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
    if std::env::var_os(WITHOUT_SRQ.0).is_some() {
        remove_srqs();
    }
    match role {
        None => {
            watchdog();
            // With SOFTVERBS_QUIRKS.
            match softverbs::missing().first() {
                Some(why) => eprintln!("not run: {why}"),
                None => body(),
            }
        }
        Some(Role::Peer) => remote_peer::serve(),
        Some(Role::Agent) => agent::run_agent(),
        Some(Role::StatsReader) => stats::serve(),
        Some(Role::Knock) => hosts::knock(),
        Some(Role::Second) => second(),
    }
}

/// Returns whether the adapters have shared receive queues, for tests of these. With SOFTVERBS_QUIRKS
/// they may have none.
pub fn has_srq() -> bool {
    let without: Vec<_> = softverbs::devices().into_iter().filter(|d| !d.has(Capability::Srq)).collect();
    without.iter().for_each(|device| eprintln!("not run: {} has no shared receive queues", device.name));
    without.is_empty()
}

/// The provider whose quirks the devices have that name none; empty without one.
pub fn provider() -> String {
    std::env::var(softverbs::QUIRKS_VAR).unwrap_or_default()
}

/// Ends this process by SIGALRM after five minutes: a call that hangs is found in no other way.
/// Each test begins with this; a longer one sets its own limit, and a forked child its own alarm.
pub fn watchdog() {
    watchdog_after(5 * LIMIT);
}

/// Ends this process by SIGALRM after `limit`.
pub fn watchdog_after(limit: Duration) {
    // SAFETY: nothing here handles SIGALRM, whose default is to end the process.
    unsafe { libc::alarm(limit.as_secs() as u32) };
}

/// A name that no other test on this machine has at the moment.
fn fabric(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = test.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let mut fabric = format!("t{}-{number}-{name}", std::process::id());
    // softverbs takes no longer name.
    fabric.truncate(60);
    fabric
}

fn command(launcher: &[&str], test: &str, env: &[(&str, &str)], fabric: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut words = launcher.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(HARNESS).arg(test).stdin(Stdio::null());
    // Adapters of softverbs have no PCI address: otherwise they would not be merged.
    command.env(MERGE, "by the test");
    command.env(TEST, test).env("SOFTVERBS_FABRIC", fabric).envs(env.iter().copied());
    command
}

/// The test passed and left nothing of its fabric; what it wrote to stderr.
fn checked(test: &str, output: &Output, fabric: &str) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test} in its own process: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{test} did not run in its own process:\n{out}\n{err}");
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    let folder = format!("/dev/shm/softverbs-{uid}/{fabric}");
    assert!(!Path::new(&folder).exists(), "{test} did not remove {folder}\n{err}");
    err
}

/// The name of the function in which this stands, as libtest knows it.
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
