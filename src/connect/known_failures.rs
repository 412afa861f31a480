//! What one end knows of a route before it tries the route: whether the kernel leads to the peer's
//! address, and whether the route has failed lately.
//!
//! Such a route is reported as failed at once. The peer sees only the failure, as that of a probe,
//! so both ends still choose alike.

use std::sync::Arc;
use std::time::Instant;

use mpib_proto::{LinkLayer, NO_ANSWER, PORT_CHANGED, RailInfo, Role};

use crate::connect::local_rails::LocalRail;
use crate::connect::local_work::LocalWork;
use crate::connect::machine::Learnt;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::failover::{EXPIRY, RouteKey};
use crate::route::{Route, gid_addr, unrouted, untried};
use crate::transport::Settings;

/// The failures that concern one handshake.
#[derive(Debug)]
pub(crate) struct KnownFailures {
    settings: Arc<Settings>,
    /// The rails of the peer's HELLO, and its host.
    peer: Vec<RailInfo>,
    host: String,
    /// Routes that this handshake has tried.
    tried: Vec<Tried>,
    /// Whether the attempt is the last one.
    last: bool,
    /// When the attempt began.
    began: Instant,
}

/// A route that does not work.
#[derive(Debug)]
struct Tried {
    route: Route,
    why: String,
    /// For later connections.
    key: Option<(Arc<Nic>, RouteKey)>,
    /// Whether they know.
    is_remembered: bool,
    /// Whether its probe had no time: it ended since nothing had answered.
    is_brief: bool,
}

impl KnownFailures {
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        let (settings, began) = (Arc::clone(settings), Instant::now());
        Self { settings, peer: Vec::new(), host: String::new(), tried: Vec::new(), last: false, began }
    }

    /// Begins an attempt, or a search, with the rails and the host of the peer's HELLO. The host is the
    /// same for each. `last`: no other attempt follows.
    pub(crate) fn begin(&mut self, rails: &[RailInfo], host: &str, last: bool) {
        (self.last, self.began) = (last, Instant::now());
        // A second HELLO has more rails.
        if self.peer.len() < rails.len() {
            (self.peer, self.host) = (rails.to_vec(), host.to_owned());
        }
    }

    /// Returns why a route is not to be tried. In the last attempt only what this handshake has
    /// tried counts: anything else may be wrong or old, and nothing is left to fall back to.
    pub(crate) fn of(&self, role: Role, rails: &[LocalRail], route: &Route) -> Option<String> {
        if self.last {
            let is_it = |tried: &&Tried| tried.route == *route && !tried.is_brief;
            return self.tried.iter().find(is_it).map(|tried| tried.why.clone());
        }
        self.missing(role, rails, route).or_else(|| {
            let (nic, key) = self.key(role, rails, route)?;
            if let Some((at, why)) = self.settings.process.reach.take(&self.settings.config, &key) {
                nic.health().connect_failed(at, at, key.clone(), why);
            }
            nic.health().why_not(Instant::now(), &key).map(untried)
        })
    }

    /// Learns from an attempt whose probes have ended. Returns for each of its stripes why it does not
    /// work.
    pub(crate) fn learn(&mut self, work: &LocalWork) -> Result<Vec<Result<(), String>>> {
        let (endpoint, role, rails) = (work.endpoint()?, work.role, &work.rails);
        let mut results = Vec::with_capacity(work.routes.len());
        for (i, (route, result)) in work.routes.iter().zip(&endpoint.rails).enumerate() {
            let key = || self.key(role, rails, route);
            let text = match result {
                Ok(_) => {
                    key().iter().for_each(|(nic, key)| self.works(nic, key));
                    results.push(Ok(()));
                    continue;
                }
                Err(e) if endpoint.untried.contains(i) => e.to_string(),
                Err(e) => {
                    // Other errors concern this handshake alone, as an address that was removed.
                    let of_network = is_of_network(e);
                    let (why, key) = (e.to_string(), key().filter(|_| of_network));
                    let missing = self.missing(role, rails, route).filter(|_| self.last);
                    let text = missing.map_or(why.clone(), |missing| format!("{why}; {missing}"));
                    let is_brief = endpoint.brief.contains(i);
                    self.tried.push(Tried { route: *route, why, key, is_remembered: false, is_brief });
                    text
                }
            };
            // A route that the kernel does not have is not expected to work.
            let is_silent = || endpoint.silent.contains(i) && self.missing(role, rails, route).is_none();
            results.push(Err(match rails[*route.rails.local(role)].has_changed() {
                true => format!("{PORT_CHANGED}{text}"),
                false if is_silent() => format!("{NO_ANSWER}{text}"),
                false => text,
            }));
        }
        // What the HELLO had may be out of date.
        if results.iter().any(Result::is_err) {
            rails.iter().for_each(|rail| rail.nic.forget());
        }
        Ok(results)
    }

    /// Learns from a search.
    pub(crate) fn searched(&mut self, role: Role, rails: &[LocalRail], learnt: Vec<Learnt>) {
        for Learnt { route, why } in learnt {
            let Some((nic, key)) = self.key(role, rails, &route) else { continue };
            match why {
                None => {
                    self.tried.retain(|tried| tried.route != route);
                    self.works(&nic, &key);
                }
                Some(_) if self.tried.iter().any(|tried| tried.route == route) => {}
                Some(why) => {
                    let key = Some((nic, key));
                    self.tried.push(Tried { route, why, key, is_remembered: false, is_brief: true });
                }
            }
        }
    }

    /// Forgets what this handshake has learnt of these routes.
    pub(crate) fn forget(&mut self, routes: &[Route]) {
        self.tried.retain(|tried| !routes.contains(&tried.route));
    }

    /// Remembers the failures for later connections. Called once the peer has reported its probes
    /// too: before, it may have ended.
    pub(crate) fn remember(&mut self) {
        for Tried { why, key, is_remembered, .. } in &mut self.tried {
            let Some((nic, key)) = key.as_ref().filter(|_| !std::mem::replace(is_remembered, true)) else {
                continue;
            };
            let (from, to, secs) = (gid_addr(key.gid), gid_addr(key.peer), EXPIRY.as_secs());
            tracing::info!(
                target: "net",
                "{} from {from} to {to} on {} does not work, and is a last resort for {secs} s: {why}",
                nic.name(), key.host
            );
            nic.health().connect_failed(Instant::now(), self.began, key.clone(), why.clone());
            self.settings.process.reach.failed(&self.settings.config, key, why);
        }
    }

    /// Forgets that a route has failed for an earlier connect, in all processes.
    fn works(&self, nic: &Nic, key: &RouteKey) {
        if nic.health().connect_works(key) {
            self.settings.process.reach.works(&self.settings.config, key);
        }
    }

    /// Forgets everything, for this and later connections: the ends wait until a route works.
    pub(crate) fn clear(&mut self) {
        let remembered = std::mem::take(&mut self.tried).into_iter().filter(|tried| tried.is_remembered);
        remembered.filter_map(|tried| tried.key).for_each(|(nic, key)| self.works(&nic, &key));
        *self = Self::new(&self.settings);
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

    fn key(&self, role: Role, rails: &[LocalRail], route: &Route) -> Option<(Arc<Nic>, RouteKey)> {
        let local = rails.get(*route.rails.local(role))?;
        let gid = local.gids.get(*route.addrs.local(role))?;
        let (host, peer) = (self.host.clone(), self.peer_gid(role, route)?);
        Some((Arc::clone(&local.nic), RouteKey { gid: gid.raw, kind: gid.kind, host, peer }))
    }
}

/// Whether the network is the cause, rather than a limit of this process or adapter.
pub(super) fn is_of_network(e: &Error) -> bool {
    const ERRNOS: [i32; 3] = [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH];
    match e {
        Error::Peer(_) => true,
        Error::Verbs { source, .. } => source.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno)),
        _ => false,
    }
}
