//! Queues and memory of one end: created, described to the peer in WIRING, and connected to the
//! peer's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::connect::completion_queues::{CqNeeds, completion_queues};
use crate::connect::local_rails::LocalRail;
use crate::connect::local_route::{FormerLife, LocalRoute, RouteQueues};
use crate::connect::machine::Stripes;
use crate::connect::queue_depths::Depths;
use crate::error::{Error, Result};
use crate::proto::{
    Ece, MAX_RAILS, Memory, QpWiring, RailSet, Role, RouteWiring, SCRATCH, Wiring, memory_bytes,
    written_bytes,
};
use crate::route::Route;
use crate::transport::Settings;
use crate::transport::rail::Rail;
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::{Pd, Region};

/// The local objects of an attempt, before the peer's WIRING has arrived.
#[derive(Debug)]
pub(crate) struct LocalEndpoint {
    pub(crate) routes: Vec<LocalRoute>,
    pub(crate) region: Region,
    has_mailbox: bool,
}

/// The local objects after bring-up. A route whose bring-up failed has the reason in its place.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) rails: Vec<Result<Rail>>,
    pub(crate) region: Region,
    pub(crate) remote: RemoteMemory,
    /// Payload bytes of a full packet, for each route.
    pub(crate) mtus: [u32; MAX_RAILS],
    /// The ECE options in effect on the queue pairs of each route.
    pub(crate) eces: Vec<Option<Ece>>,
    /// Routes that this end has not tried to the end: their failure proves nothing.
    pub(crate) untried: RailSet,
    /// Routes on which no packet has got through. Some fault may have ended by the next attempt.
    pub(crate) silent: RailSet,
}

impl LocalEndpoint {
    /// Creates the queue pairs of each route, in the number given, and registers the memory that
    /// the peer writes: that of the former life of the rails, if they have one.
    pub(crate) fn new(
        role: Role,
        settings: &Settings,
        local_rails: &[LocalRail],
        stripes: &Stripes,
        former: Option<&FormerLife>,
    ) -> Result<Self> {
        let Stripes { each: routes, has_mailbox } = stripes;
        let rail = |route: &Route| &local_rails[*route.rails.local(role)];
        let region = match former {
            Some(former) => {
                let mut region = former.region.clone();
                // An adapter that was opened again has another protection domain.
                routes.first().map_or(Ok(()), |(route, _)| region.move_to(&rail(route).pd))?;
                region
            }
            None => {
                let pds: Vec<Arc<Pd>> = routes.iter().map(|(route, _)| Arc::clone(&rail(route).pd)).collect();
                let flushes = |(route, _): &(Route, usize)| rail(route).nic.flushes(&settings.config);
                let reads = role == Role::Acceptor && routes.iter().any(flushes);
                let region = Region::new(&pds, memory_bytes(*has_mailbox) / 8, reads)?;
                // The probes read and write the scratch memory. If it is read first, the kernel maps
                // its page of zeros, and must interrupt the CPUs of all threads to replace it.
                region.words()[SCRATCH / 8].store(0, Ordering::Relaxed);
                region
            }
        };
        let mut queues = Vec::with_capacity(routes.len());
        for (i, (route, qps)) in routes.iter().enumerate() {
            let leads = i == 0 || routes[i - 1].0 != *route;
            let n = u32::try_from(*qps.max(&1)).map_err(|_| Error::Internal(format!("{qps} queue pairs")))?;
            queues.push(RouteQueues {
                n,
                leads,
                depths: Depths::new(role, settings, &rail(route).nic, n, leads)?,
            });
        }
        let needs = |((route, _), queues): (&(Route, usize), &RouteQueues)| CqNeeds {
            context: rail(route).pd.context(),
            completions: queues.depths.completions(queues.n),
            max_cqe: rail(route).nic.limits().max_cqe,
        };
        let needs: Vec<_> = routes.iter().zip(&queues).map(needs).collect();
        let cqs = completion_queues(&needs)?;
        let locals = routes.iter().zip(queues).zip(cqs);
        let locals = locals
            .map(|(((route, _), queues), cq)| {
                LocalRoute::new((role, settings), rail(route), *route, queues, cq, former)
            })
            .collect::<Result<_>>()?;
        Ok(Self { routes: locals, region, has_mailbox: *has_mailbox })
    }

    /// Sets the addresses of the routes, which were not known when the queue pairs were created. The
    /// rails are the same.
    pub(crate) fn adopt(&mut self, routes: &[Route]) {
        self.routes.iter_mut().zip(routes).for_each(|(local, route)| local.route = *route);
    }

    /// Describes the endpoint to the peer. An acceptor's ECE options are known after bring-up.
    pub(crate) fn message(&self, role: Role, settings: &Settings) -> Result<Wiring> {
        let rkeys = self.region.mrs().iter().map(|mr| mr.rkey()).collect();
        let route = |r: &LocalRoute| {
            let ece = if role == Role::Connector { r.ece(settings)? } else { None };
            Ok(RouteWiring {
                local_rail: *r.route.rails.local(role) as u8,
                remote_rail: *r.route.rails.remote(role) as u8,
                qps: r.qps.iter().map(|(qp, psn)| QpWiring { qpn: qp.number(), psn: *psn }).collect(),
                service_level: settings.service_level().unwrap_or(0),
                traffic_class: settings.traffic_class().unwrap_or(0),
                ece,
            })
        };
        let len = written_bytes(self.has_mailbox) as u64;
        let memory = Memory { addr: self.region.addr(0) as u64, len, rkeys };
        Ok(Wiring { routes: self.routes.iter().map(route).collect::<Result<_>>()?, memory })
    }
}
