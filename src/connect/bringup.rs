//! A handshake's queue pairs on their way to the peer's. A change that failed is tried again when that is due: the kernel may just be
//! looking for the peer's address. Nothing here sleeps, and no route waits for another.

use std::time::Instant;

use crate::config::Config;
use crate::connect::endpoint::{Endpoint, LocalRoute};
use crate::connect::local_rails::LocalRail;
use crate::error::{Error, Result};
use crate::proto::{Ece, MAX_RAILS, RailInfo, Role, RouteWiring};
use crate::route::Route;
use crate::transport::Settings;
use crate::transport::comm::RemoteMemory;
use crate::transport::rail::Rail;
use crate::verbs::{Gid, Region};

/// What the routes of a handshake have in common.
#[derive(Debug)]
pub(crate) struct BringupContext<'a> {
    pub(crate) role: Role,
    pub(crate) settings: &'a Settings,
    pub(crate) local_rails: &'a [LocalRail],
    /// The peer's rails.
    pub(crate) peer: &'a [RailInfo],
}

impl BringupContext<'_> {
    /// Returns this end's rail of a route.
    pub(crate) fn local(&self, route: &Route) -> &LocalRail {
        &self.local_rails[*route.rails.local(self.role)]
    }

    /// Returns the peer's rail of a route.
    pub(crate) fn peer(&self, route: &Route) -> &RailInfo {
        &self.peer[*route.rails.remote(self.role)]
    }

    /// Returns this end's GID of a route and the peer's.
    pub(crate) fn gids(&self, route: &Route) -> (Gid, [u8; 16]) {
        let local = self.local(route).gids[*route.addrs.local(self.role)];
        (local, self.peer(route).addrs[*route.addrs.remote(self.role)].gid)
    }
}

/// Both ends' parts, being joined.
#[derive(Debug)]
pub(crate) struct Bringup {
    pub(crate) routes: Vec<RouteBringup>,
    /// The peer's rails.
    pub(crate) rails: Vec<RailInfo>,
    /// No change is retried later.
    pub(crate) retry_until: Instant,
    pub(crate) region: Region,
    pub(crate) remote: RemoteMemory,
    pub(crate) mtus: [u32; MAX_RAILS],
    /// The peer's name.
    pub(crate) name: String,
}

/// One route.
#[derive(Debug)]
pub(crate) enum RouteBringup {
    InProgress(InProgress),
    Done(Result<(Rail, Option<Ece>)>),
}

/// A route with changes of queue pairs to be made.
#[derive(Debug)]
pub(crate) struct InProgress {
    local: LocalRoute,
    theirs: RouteWiring,
    since: Instant,
    /// No try before this.
    from: Instant,
    /// Changes that were done when the last one failed.
    changes: u32,
    /// How often that one has failed.
    failed: u32,
}

impl Bringup {
    /// Makes the changes that are due; returns whether each route is connected or given up. Each change is tried once, whatever the
    /// time is.
    pub(crate) fn poll(&mut self, role: Role, settings: &Settings, local_rails: &[LocalRail]) -> bool {
        let with = BringupContext { role, settings, local_rails, peer: &self.rails };
        self.routes.iter_mut().for_each(|route| route.step(&with, &self.name, self.retry_until));
        self.routes.iter().all(|route| matches!(route, RouteBringup::Done(_)))
    }

    /// What came of it. A route that is not over is one that was given up.
    pub(crate) fn finish(self) -> Endpoint {
        let (mut rails, mut eces) = (Vec::with_capacity(self.routes.len()), Vec::new());
        for route in self.routes {
            let (rail, ece) = match route {
                RouteBringup::Done(Ok((rail, ece))) => (Ok(rail), ece),
                RouteBringup::Done(Err(e)) => (Err(e), None),
                RouteBringup::InProgress(_) => {
                    (Err(Error::Internal("a route was left on its way".into())), None)
                }
            };
            rails.push(rail);
            eces.push(ece);
        }
        Endpoint { rails, region: self.region, remote: self.remote, mtus: self.mtus, eces }
    }
}

impl RouteBringup {
    pub(crate) fn new(local: LocalRoute, theirs: RouteWiring) -> Self {
        let now = Instant::now();
        Self::InProgress(InProgress { local, theirs, since: now, from: now, changes: 0, failed: 0 })
    }

    fn step(&mut self, with: &BringupContext<'_>, name: &str, until: Instant) {
        let Self::InProgress(bringup) = self else { return };
        if Instant::now() < bringup.from {
            return;
        }
        let advanced = bringup.local.advance(with, &bringup.theirs);
        match advanced.map_err(|e| bringup.again(e, &with.settings.config, until)) {
            Err(None) => {}
            Err(Some(e)) => *self = Self::Done(Err(e)),
            Ok(()) => {
                let lost = Self::Done(Err(Error::Internal("a route was lost".into())));
                let Self::InProgress(bringup) = std::mem::replace(self, lost) else { return };
                *self = Self::Done(bringup.local.rail(with, &bringup.theirs, name));
            }
        }
    }
}

impl InProgress {
    /// `None` where another try will be due; else why the route is given up.
    fn again(&mut self, mut e: Error, config: &Config, until: Instant) -> Option<Error> {
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
            self.from = next;
            return None;
        };
        let (times, ms) = (self.failed, self.since.elapsed().as_millis());
        *detail += &format!("; failed {times} times in {ms} ms, tried no longer than {limit} allows");
        Some(e)
    }
}
