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
    /// How connections outlive a break of their TCP connection; `None`: they do not.
    pub failover: Option<Failover>,
}

/// How an established connection outlives a break of its TCP connection, if the peer's does.
#[derive(Debug, Clone)]
pub struct Failover {
    /// How long a connection may be broken while nothing shows that the peer is alive. The control
    /// connections do not count this time: their owner does.
    pub wait: Duration,
    /// Which interfaces peers may dial, and the variable that sets this.
    pub interfaces: Option<(&'static str, NameFilter)>,
    /// Address family; `None` is both.
    pub family: Option<Family>,
}

/// What a connection outlives.
#[derive(Debug, Clone)]
pub struct Tolerance {
    /// As in [`Options`].
    pub silence: Duration,
    /// As in [`Options`].
    pub failover: Option<Failover>,
}

impl Options<'_> {
    /// Returns what chooses the addresses of a listener for re-dials: those of all interfaces.
    pub(super) fn of_redials(failover: &Failover) -> Options<'static> {
        let Failover { interfaces, family, .. } = failover.clone();
        let none = Duration::ZERO;
        Options {
            interfaces,
            sout: None,
            adapters: &Vec::new,
            family,
            timeout: none,
            silence: none,
            failover: None,
        }
    }
}

impl Failover {
    /// Returns the settings; `None` with `MPIB_FAILOVER=0`.
    fn of(config: &Config) -> Option<Self> {
        config.failover.then(|| Self {
            wait: config.failover_wait,
            interfaces: config.oob_filter().map(|(variable, filter)| (variable, filter.clone())),
            family: config.socket_family,
        })
    }
}

impl From<&Config> for Tolerance {
    fn from(config: &Config) -> Self {
        Self { silence: config.peer_timeout, failover: Failover::of(config) }
    }
}

/// No failover.
impl From<Duration> for Tolerance {
    fn from(silence: Duration) -> Self {
        Self { silence, failover: None }
    }
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
            failover: Failover::of(config),
        }
    }
}
