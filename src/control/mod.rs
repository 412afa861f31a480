//! The TCP side of a connection: listeners, connectors, and the control channel of each comm.
//!
//! NCCL's calls and one background thread serve all of them (`reactor`). The thread starts with
//! the first user and ends after the last one. No call here waits for the network.
//!
//! Untrusted peers: [`Listener::try_accept`] returns a channel only when its first frame is a whole
//! HELLO whose tag shows that its sender had the handle. Any other connection (port scans, health
//! checks, other jobs' peers) is dropped, holds at most a fixed number of descriptors until then,
//! and never delays a real peer.
//!
//! How a connector finds the right host: it tries the address that worked for the host before, then
//! the handle's addresses on its own networks, then the others, each soon after the one before
//! (`targets`). On each that connects it sends the same HELLO with a random token. The listener
//! answers the first HELLO with that token by WELCOME, and drops the others once the connector has
//! proved itself. An address that leads to another host does no harm: every host may have a
//! 172.17.0.1.
//!
//! With failover a TCP connection that breaks is no end of its channel: the ends replace it by a
//! new one (`redial`). A FIN without BYE is the end of the peer's process, and ends the channel.

mod bounds;
mod channel;
mod connector;
mod half_open;
mod interfaces;
mod link;
mod listener;
mod options;
mod reactor;
mod redial;
mod socket;
mod sockets;
mod targets;
mod wire;

pub(crate) use bounds::HandshakePermit;
pub use channel::{Channel, ChannelEvent, ChannelObserver, ChannelState};
pub use interfaces::interfaces;
pub(crate) use interfaces::{Interface, reachable};
#[cfg(any(test, feature = "simulation"))]
pub use link::simulated;
pub use listener::Listener;
pub use options::{Failover, Options, Tolerance};
pub use reactor::Control;
pub(crate) use sockets::FrameCounts;
