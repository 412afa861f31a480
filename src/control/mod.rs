//! The TCP side of a connection: listeners, connectors, and the control channel of each comm.
//!
//! One background thread serves all of them. It starts with the first user and ends with the last
//! one. No call here waits for the network: it queues a command, reads a state, or makes one
//! non-blocking system call.
//!
//! Untrusted peers: [`Listener::try_accept`] returns a channel only when its first frame is a whole
//! HELLO with the listener's nonce. Any other connection (port scans, health checks, other jobs'
//! peers) is dropped, holds at most a fixed number of descriptors until then, and never delays a
//! real peer.
//!
//! How a connector finds the right host: it tries the handle's addresses on its own networks all at
//! once, and the others soon after. On each that connects it sends the same HELLO with a random
//! token. The listener answers the first HELLO with that token by WELCOME and drops the others. An
//! address that leads to another host does no harm: every host may have a 172.17.0.1.

mod channel;
mod connector;
mod half_open;
mod interfaces;
mod link;
mod listener;
mod options;
mod reactor;
mod socket;

pub use channel::Channel;
pub use interfaces::{Interface, interfaces, reachable};
pub use link::ChannelState;
pub use listener::Listener;
pub use options::Options;
pub use reactor::Control;
