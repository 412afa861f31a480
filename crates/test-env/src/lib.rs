//! Keeps the host out of test programs: its settings, agents, configuration files and limits.
//!
//! A program that names this crate (`extern crate mpib_test_env as _;`) runs `enter` before
//! `main`, while it has one thread. Tests in the process and the processes that they start then have
//! the same environment on every host. What a test sets itself stays: a process that a test program
//! has started finds [`ENTERED`] and changes nothing.

mod guide;

use std::env;

pub use guide::stands_in_the_guide;
use nccl_net_mpib_agent_iface::environment::{WITHOUT_HOST, is_setting};

/// Set in test programs and the processes that they start.
pub const ENTERED: &str = "TEST_ENV_ENTERED";

/// Softverbs' way of copying, the order in which data lands, and the provider whose quirks its devices have,
/// which a run of all tests may choose.
const KEPT: [&str; 3] = ["SOFTVERBS_COPY", "SOFTVERBS_ORDER", "SOFTVERBS_QUIRKS"];

/// Other variables that decide what the project's programs read, print or log.
const OTHERS: [&str; 8] = [
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "NO_COLOR",
    "RUST_LOG",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
];

/// Most descriptors of a process: more than any test needs, and few enough to use them all up.
const DESCRIPTORS: libc::rlim_t = 20_000;

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = enter;

extern "C" fn enter() {
    if env::var_os(ENTERED).is_some() {
        return;
    }
    let is_taken = |name: &str| is_setting(name) && !KEPT.contains(&name) || OTHERS.contains(&name);
    let taken: Vec<_> = env::vars_os().map(|(name, _)| name).collect();
    for name in taken.iter().filter(|name| is_taken(&name.to_string_lossy())) {
        // SAFETY: this runs before `main`, so the process has one thread.
        unsafe { env::remove_var(name) };
    }
    // The texts of system tools are compared.
    for (name, value) in WITHOUT_HOST.into_iter().chain([("LC_ALL", "C.UTF-8"), (ENTERED, "1")]) {
        // SAFETY: as above.
        unsafe { env::set_var(name, value) };
    }
    // SAFETY: the call only changes the process's mask.
    unsafe { libc::umask(0o022) };
    limit_descriptors();
}

/// Sets the soft limit, where the hard one allows it.
fn limit_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = DESCRIPTORS.min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
