//! Bring-up: the queue pairs of a handshake go from RESET to RTS.
//!
//! A failed `ibv_modify_qp` is retried after a pause, since the kernel may still be resolving the
//! peer's address. Nothing here sleeps, and no route waits for another one.

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

/// The parameters that all routes of a handshake share.
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

/// The bring-up of all routes.
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
        Endpoint { rails, region: self.region, remote: self.remote, mtus: self.mtus, eces }
    }
}

impl RouteBringup {
    pub(crate) fn new(local: LocalRoute, remote: RouteWiring) -> Self {
        let now = Instant::now();
        Self::InProgress(InProgress { local, remote, started: now, next_try: now, changes: 0, failed: 0 })
    }

    fn step(&mut self, with: &BringupContext<'_>, name: &str, until: Instant) {
        let Self::InProgress(bringup) = self else { return };
        if Instant::now() < bringup.next_try {
            return;
        }
        let advanced = bringup.local.advance(with, &bringup.remote);
        match advanced.map_err(|e| bringup.retry(e, &with.settings.config, until)) {
            Err(None) => {}
            Err(Some(e)) => *self = Self::Done(Err(e)),
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
