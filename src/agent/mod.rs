//! The agent's client: registers connections, and gives the send path the hint of each.
//!
//! One background thread talks to the agent's socket. It starts with the first [`Subscription`] and
//! ends with the last. An agent passes a memory file over the socket: the send path reads the hint
//! there at each transfer, and the thread sleeps until a message comes. The file is sealed, so its
//! size cannot change. From an agent without one, the thread reads the hint file at an interval,
//! with `pread`: truncating a mapped file kills the process that reads it.
//!
//! The agent is optional at any time: without it a connection has its last good hint, and
//! `MPIB_SPLIT` decides if there never was one. A fault is logged once when it begins and once when
//! it is over.

mod client;
mod conn_id;
mod fault_log;
mod file;
mod hint;
mod link;
mod options;
mod ports;
mod socket;
mod subscription;
mod table;
mod trouble;

pub use hint::Addresses;
#[cfg(any(test, feature = "simulation"))]
pub use link::simulated;
pub use options::Options;
pub use ports::PortScales;
pub use subscription::{Clients, Subscription};
