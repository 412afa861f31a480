//! The interfaces of the MPIB plugin (`libnccl-net-mpib.so`) to other programs of the same host.
//!
//! | module | contract | who writes | who reads |
//! |---|---|---|---|
//! | [`agent`] | registration messages, memory file and hint file, rules for their paths | the plugin sends requests; the agent answers and writes the files | the plugin reads the files |
//! | [`stats`] | the statistics page | the plugin, one page per process | any tool, for instance `mpib stats` |
//! | [`doctor`] | the report on a host and its routes, as JSON | the plugin | `mpib doctor` and other tools |
//! | [`codes`] | codes of warnings, checks and alerts, with their meaning | | `mpib`, the plugin |
//! | [`hw_counters`] | names of the adapters' counters | the kernel | the plugin and tools |
//! | [`shares`] | how shares follow goodput: arithmetic | | the plugin and `mpib agent` |
//!
//! The contracts are independent. A program that needs only one of them uses only that
//! module.
//!
//! # Life cycle of an agent
//!
//! An agent is a process that knows the networks of the host. It decides which part of each
//! transfer takes the scale-up rail (SUP); the rest takes the scale-out rail (SOUT).
//!
//! 1. Create an empty hint file: [`HintsWriter::create`](agent::HintsWriter::create).
//! 2. Listen on the Unix stream socket. The file must exist before the first plugin connects.
//! 3. For each plugin, buffer the received bytes and decode requests:
//!    [`Request::decode`](agent::Request::decode).
//! 4. For REGISTER, choose a slot and write its addresses ([`assign`](agent::HintsWriter::assign)).
//!    Then send the [`Response`](agent::Response) with the slot number.
//! 5. Change the share of a slot at any time: [`set`](agent::HintsWriter::set).
//! 6. Free the slot when its last connection deregisters or its socket closes:
//!    [`free`](agent::HintsWriter::free).
//!
//! [`agent`] has the details and the program; `examples/agent.rs` is a complete agent.
//!
//! # Life cycle of a statistics reader
//!
//! 1. Find the pages of a process: [`stats::pages_of`].
//! 2. Read [`StatsPage::read`](stats::StatsPage::read) as often as needed: header, totals, ports
//!    and connections.
//! 3. Compute rates from two readings with the same
//!    [`generation`](stats::Connection::generation).
//!
//! ```
//! use nccl_net_mpib_agent_iface::stats::{NoPage, pages_of};
//!
//! match pages_of(std::process::id()) {
//!     Ok(pages) => {
//!         for connection in pages.iter().flat_map(|page| page.connections()) {
//!             println!("{}: {} bytes", connection.peer, connection.totals.bytes);
//!         }
//!     }
//!     // This process does not use the plugin.
//!     Err(NoPage::None) => {}
//!     Err(e) => eprintln!("{e}"),
//! }
//! ```

/// The version of the protocol between two processes with the plugin. Ends with different versions
/// refuse each other.
pub const WIRE_PROTOCOL: u16 = 10;

/// The commit of this build: `MPIB_COMMIT` in the environment of the compiler, which `make build`
/// sets; else `unknown`.
pub const COMMIT: &str = match option_env!("MPIB_COMMIT") {
    Some(commit) if !commit.is_empty() => commit,
    _ => "unknown",
};

pub mod agent;
pub mod codes;
pub mod doctor;
pub mod environment;
pub mod hw_counters;
pub mod memfd;
pub mod shares;
pub mod stats;
pub mod text;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
