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
mod reactor;
mod socket;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

pub use channel::Channel;
pub use interfaces::{Interface, interfaces, reachable};
pub use link::ChannelState;
pub use listener::Listener;

use crate::config::{Config, Family, NameFilter};
use crate::error::Result;
use crate::warned::Warned;
use reactor::Reactor;

/// The control connections of a process, and the thread that serves them.
#[derive(Debug)]
pub struct Control {
    running: Mutex<Weak<Reactor>>,
    warned: Arc<Warned>,
}

impl Control {
    pub(crate) fn new(warned: Arc<Warned>) -> Self {
        Self { running: Mutex::default(), warned }
    }

    /// Returns the running thread, or starts one.
    fn reactor(&self) -> Result<Arc<Reactor>> {
        let mut running = self.running.lock();
        // A thread that has ended has reported that to its users; new users get a new one.
        if let Some(reactor) = running.upgrade().filter(|r| r.alive().is_ok()) {
            return Ok(reactor);
        }
        let reactor = Arc::new(Reactor::start()?);
        *running = Arc::downgrade(&reactor);
        Ok(reactor)
    }
}

/// What the control connections need of the settings.
#[derive(Clone)]
pub struct Options<'a> {
    /// Which interfaces a listener names in its handle, and the variable that sets this.
    pub interfaces: Option<(&'static str, NameFilter)>,
    /// SOUT's address. Without `interfaces`, a listener names the addresses of the interface that
    /// has this one, if there is such an interface.
    pub sout: Option<IpAddr>,
    /// Returns the addresses of this host's adapters, whose interfaces come first in a handle.
    /// Called only if a handle has no room for all addresses.
    pub adapters: &'a dyn Fn() -> Vec<IpAddr>,
    /// Address family; `None` is both.
    pub family: Option<Family>,
    /// How long each step of the handshake may take.
    pub timeout: Duration,
    /// How long a peer's host may be silent before the peer counts as lost.
    pub silence: Duration,
}

impl From<&Config> for Options<'static> {
    fn from(config: &Config) -> Self {
        Self {
            interfaces: config.oob_filter().map(|(variable, filter)| (variable, filter.clone())),
            sout: None,
            adapters: &Vec::new,
            family: config.socket_family,
            timeout: config.connect_timeout,
            silence: config.peer_timeout,
        }
    }
}
