//! The TCP side of a connection: listeners, connectors, and the control channel of each comm.
//!
//! NCCL's calls and one background thread serve all of them (`reactor`). The thread starts with
//! the first user and ends after the last one. No call here waits for the network.
//!
//! Untrusted peers: [`Listener::try_accept`] returns a channel only when its first frame is a whole
//! HELLO with the listener's nonce. Any other connection (port scans, health checks, other jobs'
//! peers) is dropped, holds at most a fixed number of descriptors until then, and never delays a
//! real peer.
//!
//! How a connector finds the right host: it tries the address that worked for the host before, then
//! the handle's addresses on its own networks, then the others, each soon after the one before
//! (`targets`). On each that connects it sends the same HELLO with a random token. The listener
//! answers the first HELLO with that token by WELCOME and drops the others. An address that leads to
//! another host does no harm: every host may have a 172.17.0.1.

mod attempt;
mod channel;
mod connector;
mod half_open;
mod interface_watch;
mod interfaces;
mod known_addresses;
mod link;
mod listener;
mod options;
mod reactor;
mod socket;
mod sockets;
mod targets;

pub use channel::Channel;
pub use interfaces::{Interface, interfaces, reachable};
pub use link::ChannelState;
pub use listener::Listener;
pub use options::Options;
pub use reactor::Control;
