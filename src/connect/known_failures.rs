//! What one end knows of a route before it tries the route: whether the kernel leads to the peer's
//! address, and whether the route has failed lately.
//!
//! Such a route is reported as failed at once. The peer sees only the failure, as that of a probe,
//! so both ends still choose alike.

use std::time::Instant;

use crate::connect::endpoint::Endpoint;
use crate::connect::local_rails::LocalRail;
use crate::connect::machine::BringUp;
use crate::error::Error;
use crate::failed_routes::{EXPIRY, RouteKey};
use crate::process::Process;
use crate::proto::{LinkLayer, RailInfo, Role};
use crate::route::{Route, gid_addr, unrouted, untried};

/// The failures that concern one handshake.
#[derive(Debug)]
pub(crate) struct KnownFailures {
    /// The rails of the peer's HELLO, and its host.
    peer: Vec<RailInfo>,
    host: String,
    /// Routes that this handshake has tried.
    tried: Vec<Tried>,
    /// Whether the attempt is the last one.
    last: bool,
    /// Changes of the network before the attempt.
    changes: u64,
}

/// A route that does not work.
#[derive(Debug)]
struct Tried {
    route: Route,
    why: String,
    /// For later connections, until they know.
    key: Option<RouteKey>,
}

impl KnownFailures {
    pub(crate) const fn new() -> Self {
        Self { peer: Vec::new(), host: String::new(), tried: Vec::new(), last: false, changes: 0 }
    }

    /// Begins an attempt. The peer's host is the same for each.
    pub(crate) fn begin(&mut self, process: &Process, attempt: &BringUp) {
        (self.last, self.changes) = (attempt.last, process.failed_routes.changes());
        // A second HELLO has more rails.
        if self.peer.len() < attempt.rails.len() {
            (self.peer, self.host) = (attempt.rails.clone(), attempt.host.clone());
        }
    }

    /// Returns why a route is not to be tried. In the last attempt only what this handshake has
    /// tried counts: anything else may be wrong or old, and nothing is left to fall back to.
    pub(crate) fn of(
        &self,
        process: &Process,
        role: Role,
        rails: &[LocalRail],
        route: &Route,
    ) -> Option<String> {
        if self.last {
            return self.tried.iter().find(|tried| tried.route == *route).map(|tried| tried.why.clone());
        }
        self.missing(role, rails, route).or_else(|| {
            let key = self.key(role, rails, route).filter(|_| !process.failed_routes.is_empty())?;
            process.failed_routes.why(Instant::now(), &key).map(untried)
        })
    }

    /// Learns from an attempt whose probes have ended; `stripes` are its routes. Returns for each
    /// why it does not work.
    pub(crate) fn learn(
        &mut self,
        process: &Process,
        role: Role,
        rails: &[LocalRail],
        stripes: &[Route],
        endpoint: &Endpoint,
    ) -> Vec<Result<(), String>> {
        let mut results = Vec::with_capacity(stripes.len());
        for (i, (route, result)) in stripes.iter().zip(&endpoint.rails).enumerate() {
            let key = || self.key(role, rails, route);
            results.push(match result {
                Ok(_) => {
                    if !process.failed_routes.is_empty() {
                        key().iter().for_each(|key| process.failed_routes.forget(key));
                    }
                    Ok(())
                }
                Err(e) if endpoint.untried >> i & 1 == 1 => Err(e.to_string()),
                Err(e) => {
                    // Other errors concern this handshake alone, as an address that was removed.
                    let of_network = is_of_network(e);
                    let (why, key) = (e.to_string(), key().filter(|_| of_network));
                    let missing = self.missing(role, rails, route).filter(|_| self.last);
                    let text = missing.map_or(why.clone(), |missing| format!("{why}; {missing}"));
                    self.tried.push(Tried { route: *route, why, key });
                    Err(text)
                }
            });
        }
        results
    }

    /// Forgets what this handshake has learnt of these routes.
    pub(crate) fn forget(&mut self, routes: &[Route]) {
        self.tried.retain(|tried| !routes.contains(&tried.route));
    }

    /// Remembers the failures for later connections. Called once the peer has reported its probes
    /// too: before, it may have ended.
    pub(crate) fn remember(&mut self, process: &Process) {
        for Tried { why, key, .. } in &mut self.tried {
            let Some(key) = key.take() else { continue };
            let (from, to, secs) = (gid_addr(key.gid), gid_addr(key.peer), EXPIRY.as_secs());
            tracing::info!(
                target: "net",
                "{} from {from} to {to} on {} does not work, and is a last resort for {secs} s: {why}",
                key.port, key.host
            );
            process.failed_routes.remember(Instant::now(), self.changes, key, why.clone());
        }
    }

    /// Returns why the kernel leads from no address of the route to the other, if so.
    fn missing(&self, role: Role, rails: &[LocalRail], route: &Route) -> Option<String> {
        let local = rails.get(*route.rails.local(role))?;
        // Addresses of one subnet have a route by definition.
        if route.one_subnet || local.port.link != LinkLayer::Ethernet {
            return None;
        }
        let (gid, interface) = local.interface(*route.addrs.local(role))?;
        unrouted(gid, interface, self.peer_gid(role, route)?)
    }

    fn peer_gid(&self, role: Role, route: &Route) -> Option<[u8; 16]> {
        let rail = self.peer.get(*route.rails.remote(role))?;
        Some(rail.addrs.get(*route.addrs.remote(role))?.gid)
    }

    fn key(&self, role: Role, rails: &[LocalRail], route: &Route) -> Option<RouteKey> {
        let local = rails.get(*route.rails.local(role))?;
        let gid = local.gids.get(*route.addrs.local(role))?;
        Some(RouteKey {
            port: local.nic.name().to_owned(),
            gid: gid.raw,
            kind: gid.kind,
            host: self.host.clone(),
            peer: self.peer_gid(role, route)?,
        })
    }
}

/// Whether the network is the cause, rather than a limit of this process or adapter.
fn is_of_network(e: &Error) -> bool {
    const ERRNOS: [i32; 3] = [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH];
    match e {
        Error::Peer(_) => true,
        Error::Verbs { source, .. } => source.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno)),
        _ => false,
    }
}
