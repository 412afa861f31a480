//! The agent's client: registers connections, and keeps the last good hint of each for the send
//! path.
//!
//! One background thread talks to the agent's socket and reads its hint file. It starts with the
//! first [`Subscription`] and ends with the last. The agent is optional at any time: without it
//! [`Subscription::share`] is the last good hint, or 0 if there never was one. A
//! fault is logged once when it begins and once when it is over.
//!
//! The file is read with `pread`, never mapped: truncating a mapped file kills the process that
//! reads it.

mod client;
mod conn_id;
mod fault_log;
mod file;
mod hint;
mod link;
mod options;
mod subscription;
mod table;

pub use hint::Addresses;
pub use options::Options;
pub use subscription::{Clients, Subscription};
