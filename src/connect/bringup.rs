//! Bring-up: the queue pairs of a handshake go from RESET to RTS.
//!
//! A failed `ibv_modify_qp` is retried after a pause, since the kernel may still be resolving the
//! peer's address. Nothing here sleeps, and no route waits for another one.

use std::sync::Arc;
use std::time::Instant;

use mpib_proto::{Ece, MAX_RAILS, Mtu, RailInfo, RailSet, Role, RouteWiring};

use crate::config::Config;
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::local_rails::LocalRail;
use crate::connect::local_route::{BringupContext, LocalRoute, path_mtu};
use crate::connect::machine::BringUp;
use crate::error::{Error, Result};
use crate::route::{Route, untried};
use crate::transport::Settings;
use crate::transport::rail::Rail;
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;

/// The bring-up of all routes.
#[derive(Debug)]
pub(crate) struct Bringup {
    routes: Vec<RouteBringup>,
    /// The peer's rails.
    rails: Vec<RailInfo>,
    /// No change is retried later.
    retry_until: Instant,
    region: Region,
    remote: RemoteMemory,
    mtus: [u32; MAX_RAILS],
    /// The peer's name.
    name: Arc<str>,
    /// Routes that were given up without a try.
    untried: RailSet,
}

/// The bring-up of one route.
#[derive(Debug)]
pub(crate) enum RouteBringup {
    InProgress(InProgress),
    Done(Result<(Rail, Option<Ece>)>),
}

/// A route whose queue pairs are not in RTS yet.
#[derive(Debug)]
pub(crate) struct InProgress {
    local: LocalRoute,
    remote: RouteWiring,
    started: Instant,
    /// The earliest time of the next try.
    next_try: Instant,
    /// State changes that had succeeded when the last one failed.
    changes: u32,
    /// Failures of that one.
    failed: u32,
}

impl Bringup {
    /// Begins to connect the queue pairs of `local` to the peer's. The lists of WIRING fit the
    /// routes. A route that an end could not make, or for which `known` returns a reason, is given up at
    /// once.
    pub(crate) fn start(
        local: LocalEndpoint,
        role: Role,
        local_rails: &[LocalRail],
        name: Arc<str>,
        peer: BringUp,
        known: impl Fn(&Route) -> Option<String>,
    ) -> Self {
        let mut remote = RemoteMemory { addr: peer.wiring.memory.addr, rkeys: [0; MAX_RAILS] };
        remote.rkeys.iter_mut().zip(&peer.wiring.memory.rkeys).for_each(|(to, from)| *to = *from);
        let mut mtus = [0; MAX_RAILS];
        let (mut routes, mut untried_routes) = (Vec::with_capacity(local.routes.len()), RailSet::EMPTY);
        for (i, (made, remote)) in local.routes.into_iter().zip(peer.wiring.routes).enumerate() {
            let local = match made {
                Ok(local) => local,
                Err(unmade) => {
                    routes.push(RouteBringup::Done(Err(unmade.why)));
                    continue;
                }
            };
            let route = &local.route;
            let (ours, theirs) = (*route.rails.local(role), *route.rails.remote(role));
            let number = path_mtu(&local_rails[ours], &peer.rails[theirs]);
            mtus[i] = Mtu::from_raw(number.into()).map_or(0, Mtu::bytes);
            let unmade = || remote.qps.is_empty().then(|| untried("the peer could not make its queue pairs"));
            let why = known(route).or_else(unmade);
            if why.is_some() {
                untried_routes.insert(i);
            }
            routes.push(why.map_or_else(
                || RouteBringup::new(local, remote),
                |why| RouteBringup::Done(Err(Error::Peer(why))),
            ));
        }
        Self {
            routes,
            rails: peer.rails,
            retry_until: peer.retry_until,
            region: local.region,
            remote,
            mtus,
            name,
            untried: untried_routes,
        }
    }

    /// Makes the changes that are due; returns whether each route is connected or given up. Each
    /// change is tried at least once.
    pub(crate) fn poll(&mut self, role: Role, settings: &Settings, local_rails: &[LocalRail]) -> bool {
        let with = BringupContext { role, settings, local_rails, peer: &self.rails };
        self.routes.iter_mut().for_each(|route| route.step(&with, &self.name, self.retry_until));
        self.routes.iter().all(|route| matches!(route, RouteBringup::Done(_)))
    }

    /// Returns the endpoint, with an error in place of each route that was given up.
    pub(crate) fn finish(self) -> Endpoint {
        let (mut rails, mut eces) = (Vec::with_capacity(self.routes.len()), Vec::new());
        for route in self.routes {
            let (rail, ece) = match route {
                RouteBringup::Done(Ok((rail, ece))) => (Ok(rail), ece),
                RouteBringup::Done(Err(e)) => (Err(e), None),
                RouteBringup::InProgress(_) => {
                    (Err(Error::Internal("the bring-up of a route has not ended".into())), None)
                }
            };
            rails.push(rail);
            eces.push(ece);
        }
        let Self { region, remote, mtus, untried, .. } = self;
        Endpoint { rails, region, remote, mtus, eces, untried, silent: RailSet::EMPTY, brief: RailSet::EMPTY }
    }
}

impl RouteBringup {
    pub(crate) fn new(local: LocalRoute, remote: RouteWiring) -> Self {
        let now = Instant::now();
        Self::InProgress(InProgress { local, remote, started: now, next_try: now, changes: 0, failed: 0 })
    }

    fn step(&mut self, with: &BringupContext<'_>, name: &Arc<str>, until: Instant) {
        let Self::InProgress(bringup) = self else { return };
        if Instant::now() < bringup.next_try {
            return;
        }
        let advanced = bringup.local.advance(with, &bringup.remote);
        let advanced = match advanced.map_err(|e| bringup.retry(e, &with.settings.config, until)) {
            Err(None) => return,
            Err(Some(e)) => bringup.local.give_up_flush(with, e),
            Ok(()) => Ok(()),
        };
        match advanced {
            Err(e) => *self = Self::Done(Err(e)),
            Ok(()) => {
                let lost = Self::Done(Err(Error::Internal("a route is missing".into())));
                let Self::InProgress(bringup) = std::mem::replace(self, lost) else { return };
                *self = Self::Done(bringup.local.rail(with, &bringup.remote, name));
            }
        }
    }
}

impl InProgress {
    /// Schedules another try; returns the error if the route is given up instead.
    fn retry(&mut self, mut e: Error, config: &Config, until: Instant) -> Option<Error> {
        let Error::Verbs { call: "ibv_modify_qp", source, detail } = &mut e else { return Some(e) };
        if !config.mqp_retry_all && source.raw_os_error() != Some(libc::ETIMEDOUT) {
            return Some(e);
        }
        let changes = self.local.changes();
        if changes != self.changes {
            (self.changes, self.failed) = (changes, 0);
        }
        self.failed += 1;
        let wait = config.mqp_retry_sleep.saturating_mul(self.failed);
        let next = Instant::now() + wait;
        let limit = if self.failed > config.mqp_retry_cnt {
            "NCCL_IB_MQP_RETRY_CNT"
        } else if next > until {
            "half of MPIB_CONNECT_TIMEOUT_MS"
        } else {
            tracing::info!(
                target: "net",
                "ibv_modify_qp failed ({source}); try {} of {} follows in {wait:?}: {detail}", self.failed, config.mqp_retry_cnt
            );
            self.next_try = next;
            return None;
        };
        let (times, ms) = (self.failed, self.started.elapsed().as_millis());
        *detail += &format!("; failed {times} times in {ms} ms, tried no longer than {limit} allows");
        Some(e)
    }
}
