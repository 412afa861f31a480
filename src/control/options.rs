//! What the control connections need of the settings.

use std::net::IpAddr;
use std::time::Duration;

use crate::config::{Config, Family, NameFilter};

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
