//! What untrusted bytes may do to the plugin. Each target is a function that any bytes may be passed
//! to. It panics if a property does not hold.
//!
//! cargo-fuzz runs the targets with the programs of `fuzz/`. The test of this crate replays the
//! inputs of `fuzz/corpus`, and mutates them with a fixed seed. See docs/internals/testing.md.

mod allocation;
mod calls;
mod commands;
mod config;
mod fifo;
mod handle;
mod hellos;
mod mailbox;
mod messages;
pub mod mutation;
mod registrations;
mod routes;
mod seeds;
mod stats;
mod strangers;
mod table;

use arbitrary::{Arbitrary, Unstructured};

pub use calls::calls;
pub use commands::commands;
pub use config::config;
pub use fifo::fifo;
pub use handle::handle;
pub use mailbox::mailbox;
pub use messages::messages;
pub use nccl_net_mpib::simulation::{episodes, handshake, link, receiver};
pub use registrations::registrations;
pub use routes::routes;
pub use stats::stats;
pub use strangers::strangers;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the program in `fuzz/fuzz_targets`, and of the folder in `fuzz/corpus`.
    pub name: &'static str,
    /// The target itself.
    pub run: fn(&[u8]),
    /// Returns the first inputs, each with its name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Mutated inputs that the test runs: about two seconds in a build without optimisation.
    pub rounds: usize,
    /// Settings of the process.
    pub env: &'static [(&'static str, &'static str)],
}

/// One device with two rails. A failed rail fails the connection.
const TWO_RAILS: &[(&str, &str)] = &[
    ("MPIB_HCA_SOUT", "soft0"),
    ("MPIB_HCA_SUP", "soft1"),
    ("MPIB_SUP_SHARE", "0"),
    ("MPIB_FAILOVER", "0"),
    ("MPIB_STALL_MS", "0"),
];

/// One device that registers the memory of GPUs. A failed rail fails the connection.
const GPU_MEMORY: &[(&str, &str)] = &[
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,dmabuf=on"),
    ("MPIB_FAILOVER", "0"),
    ("MPIB_STALL_MS", "0"),
];

/// Sets the settings of a target, for a program that runs this target alone.
///
/// # Safety
/// No other thread of the process reads or writes the environment.
pub unsafe fn prepare(name: &str) {
    let fabric = format!("fuzz-{}", std::process::id());
    let own = TARGETS.iter().filter(|target| target.name == name).flat_map(|target| target.env);
    for (name, value) in own.copied().chain([("SOFTVERBS_FABRIC", fabric.as_str())]) {
        // SAFETY: as the caller promises.
        unsafe { std::env::set_var(name, value) };
    }
}

/// A target without settings.
const fn target(
    name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<(String, Vec<u8>)>,
    rounds: usize,
) -> Target {
    Target { name, run, seeds, rounds, env: &[] }
}

/// All targets.
pub const TARGETS: [Target; 16] = [
    target("messages", messages, seeds::messages, 20_000),
    target("handle", handle, seeds::handle, 40_000),
    target("link", link, seeds::link, 4_000),
    target("mailbox", mailbox, seeds::mailbox, 4_000),
    target("handshake", handshake, seeds::handshake, 2_000),
    target("routes", routes, seeds::routes, 1_000),
    target("receiver", receiver, seeds::receiver, 10_000),
    Target { env: TWO_RAILS, ..target("fifo", fifo, seeds::fifo, 40) },
    target("agent", agent, seeds::agent, 2_000),
    target("stats", stats, seeds::stats, 1_000),
    target("calls", calls, seeds::calls, 40),
    target("config", config, seeds::config, 1_000),
    target("episodes", episodes, seeds::episodes, 1_000),
    target("registrations", registrations, seeds::registrations, 10_000),
    target("strangers", strangers, seeds::strangers, 500),
    Target { env: GPU_MEMORY, ..target("commands", commands, seeds::commands, 20) },
];

/// Reads the steps of a run, at most so many. `None` if one of them cannot be read.
fn steps<'a, T: Arbitrary<'a>>(data: &'a [u8], most: usize) -> Option<Vec<T>> {
    let mut u = Unstructured::new(data);
    u.arbitrary_iter().and_then(|steps| steps.take(most).collect()).ok()
}

/// The agent's client, with a hint file of this thread.
pub fn agent(data: &[u8]) {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder for the hint file");
    }
    FOLDER.with(|folder| nccl_net_mpib::simulation::agent(data, folder.path()));
}
