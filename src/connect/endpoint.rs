//! Queues and memory of one end: created, described to the peer in WIRING, and connected to the
//! peer's.

use mpib_proto::{
    Ece, MAX_RAILS, MAX_RECVS, MAX_WRITES, Memory, QpWiring, RailSet, Role, RouteWiring, SCRATCH, SLOTS,
    Wiring, memory_bytes, written_bytes,
};

use crate::connect::local_rails::LocalRail;
use crate::connect::local_route::{FormerLife, LocalRoute, RouteQueues};
use crate::connect::machine::Stripes;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::route::Route;
use crate::stats::Traffic;
use crate::transport::Settings;
use crate::transport::rail::Rail;
use crate::transport::recv::flush::{COPY_REQUESTS, FLUSHES};
use crate::transport::recv::receives::{MAX_DEPTH, slots_per_queue};
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::{Context, Cq, Pd, Region};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Work requests of all groups in flight: a write and the signaled write on each rail.
const SEND_DEPTH: u32 = 2 * SLOTS as u32;
/// CTS writes: those of all groups in flight, and as many before them whose completion is not known
/// yet, because one in half the depth is signalled.
const CTS_DEPTH: u32 = 2 * SLOTS as u32;
/// The longest chain of a group.
pub(crate) const MIN_DEPTH: u32 = MAX_RECVS as u32 + 1;

// The first queue pair of each rail also carries the writes of the mailbox, as it has room.
const _: () = assert!(MAX_WRITES <= MIN_DEPTH as usize);

/// The local objects of an attempt, before the peer's WIRING has arrived.
#[derive(Debug)]
pub(crate) struct LocalEndpoint {
    pub(crate) routes: Vec<Result<LocalRoute, Unmade>>,
    pub(crate) region: Region,
    has_mailbox: bool,
}

/// A route whose queues or memory could not be made.
#[derive(Debug)]
pub(crate) struct Unmade {
    pub(crate) route: Route,
    pub(crate) why: Error,
}

/// The local objects after bring-up. A route that could not be made or connected has the reason in its
/// place.
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
    /// Those of them whose probes ended before their time.
    pub(crate) brief: RailSet,
}

impl LocalEndpoint {
    /// Creates the queue pairs of each route, in the number given, and registers the memory that
    /// the peer writes: that of the former life of the rails, if they have one.
    ///
    /// # Errors
    /// No route could be made; or one of rails with a former life, which join the same ports.
    pub(crate) fn new(
        role: Role,
        settings: &Settings,
        local_rails: &[LocalRail],
        stripes: &Stripes,
        former: Option<&FormerLife>,
    ) -> Result<Self> {
        let Stripes { each, has_mailbox } = stripes;
        let rail = |route: &Route| &local_rails[*route.rails.local(role)];
        let (region, registered) = control_memory(role, settings, local_rails, stripes, former)?;
        let mut queues: Vec<Result<RouteQueues>> = Vec::with_capacity(each.len());
        for (i, ((route, qps), registered)) in each.iter().zip(registered).enumerate() {
            let leads = i == 0 || each[i - 1].0 != *route;
            let n = u32::try_from(*qps.max(&1)).map_err(|_| Error::Internal(format!("{qps} queue pairs")))?;
            let depths = registered.and_then(|()| Depths::new(role, settings, &rail(route).nic, n, leads));
            queues.push(depths.map(|depths| RouteQueues { n, leads, depths }));
        }
        let needs = |((route, _), queues): (&(Route, usize), &Result<RouteQueues>)| CqNeeds {
            context: rail(route).pd.context(),
            completions: queues.as_ref().map_or(0, |queues| queues.depths.completions(queues.n)),
            max_cqe: rail(route).nic.limits().max_cqe,
        };
        let needs: Vec<_> = each.iter().zip(&queues).map(needs).collect();
        let cqs = completion_queues(&needs);
        let mut routes = Vec::with_capacity(each.len());
        for (((route, _), queues), cq) in each.iter().zip(queues).zip(cqs) {
            let made = queues.and_then(|queues| {
                LocalRoute::new((role, settings), rail(route), *route, queues, cq?, former)
            });
            routes.push(made.map_err(|why| Unmade { route: *route, why }));
        }
        // Without any route nothing is left to try. Rails with a former life return together.
        let needs_all = former.is_some() || routes.iter().all(Result::is_err);
        if let Some(unmade) = routes.iter().position(Result::is_err).filter(|_| needs_all)
            && let Err(Unmade { why, .. }) = routes.swap_remove(unmade)
        {
            return Err(why);
        }
        Ok(Self { routes, region, has_mailbox: *has_mailbox })
    }

    /// Returns whether the endpoint is one for these stripes: on the same rails of this end, with the
    /// same numbers of queue pairs. The peer's rails make no difference before bring-up.
    pub(crate) fn serves(&self, role: Role, Stripes { each, has_mailbox }: &Stripes) -> bool {
        let is_one = |(made, (route, qps)): (&Result<LocalRoute, Unmade>, &(Route, usize))| {
            let rail = |route: &Route| *route.rails.local(role);
            made.as_ref().is_ok_and(|made| rail(&made.route) == rail(route) && made.qps.len() == *qps)
        };
        // Different routes have different rails.
        *has_mailbox == self.has_mailbox
            && each.len() == self.routes.len()
            && self.routes.iter().zip(each).all(is_one)
    }

    /// Sets the addresses of the routes, which were not known when the queue pairs were created. The
    /// rails are the same.
    pub(crate) fn adopt(&mut self, routes: &[Route]) {
        for (made, route) in self.routes.iter_mut().zip(routes) {
            match made {
                Ok(local) => local.route = *route,
                Err(unmade) => unmade.route = *route,
            }
        }
    }

    /// Describes the endpoint to the peer. An acceptor's ECE options are known after bring-up.
    pub(crate) fn message(&self, role: Role, settings: &Settings) -> Result<Wiring> {
        let rkeys = self.region.mrs().iter().map(|mr| mr.rkey()).collect();
        let route = |made: &Result<LocalRoute, Unmade>| {
            let (route, qps, ece) = match made {
                Ok(local) if role == Role::Connector => (&local.route, &local.qps[..], local.ece(settings)?),
                Ok(local) => (&local.route, &local.qps[..], None),
                Err(unmade) => (&unmade.route, &[][..], None),
            };
            Ok(RouteWiring {
                local_rail: *route.rails.local(role) as u8,
                remote_rail: *route.rails.remote(role) as u8,
                qps: qps.iter().map(|(qp, psn)| QpWiring { qpn: qp.number(), psn: *psn }).collect(),
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

/// Registers the memory that the peer writes on the ports of these routes, or that of the former life
/// of the rails. Returns the result for each route, too.
fn control_memory(
    role: Role,
    settings: &Settings,
    local_rails: &[LocalRail],
    Stripes { each, has_mailbox }: &Stripes,
    former: Option<&FormerLife>,
) -> Result<(Region, Vec<Result<()>>)> {
    let rail = |route: &Route| &local_rails[*route.rails.local(role)];
    if let Some(former) = former {
        let mut region = former.region.clone();
        // An adapter that was opened again has another protection domain.
        each.first().map_or(Ok(()), |(route, _)| region.move_to(&rail(route).pd))?;
        return Ok((region, each.iter().map(|_| Ok(())).collect()));
    }
    let pds: Vec<Arc<Pd>> = each.iter().map(|(route, _)| Arc::clone(&rail(route).pd)).collect();
    let flushes = |(route, _): &(Route, usize)| rail(route).nic.flushes(&settings.config);
    let reads = role == Role::Acceptor && each.iter().any(flushes);
    let (region, registered) = Region::new(&pds, memory_bytes(*has_mailbox) / 8, reads)?;
    // The probes read and write the scratch memory. If it is read first, the kernel maps its page of
    // zeros, and must interrupt the CPUs of all threads to replace it.
    region.words()[SCRATCH / 8].store(0, Ordering::Relaxed);
    Ok((region, registered))
}

/// Entries of the queues of one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// SRQ of a receiver; 0 if the adapter has none.
    pub(crate) srq: u32,
    /// Receive queue of each queue pair of a receiver; 0 if they share an SRQ.
    pub(crate) receives: u32,
    /// Send queue of the first queue pair.
    first: u32,
    /// Send queue of each other queue pair.
    others: u32,
    /// Send queue of the queue pair for flushes; 0 if there is none.
    pub(crate) flush: u32,
}

/// Returns the depth of a queue pair for flushes. A flush is one read; only one-sided traffic copies.
fn flush_depth(traffic: Traffic) -> u32 {
    let each = match traffic {
        Traffic::Messages => 1,
        Traffic::Windows => COPY_REQUESTS,
    };
    (each * FLUSHES) as u32
}

impl Depths {
    /// Returns the depths for `n` queue pairs, within the limits of the device. The groups of a
    /// sender use its queue pairs in rotation. The CTS writes of a receiver are all on the first
    /// queue pair of one rail, which may be any; the other queue pairs carry a probe and nothing
    /// else.
    pub(crate) fn new(role: Role, settings: &Settings, nic: &Nic, n: u32, leads: bool) -> Result<Self> {
        let limits = nic.limits();
        let too_small = |what: &str, has: u32, needs: u32| {
            Error::Usage(format!("{}: {what} of {has} entries, and a connection needs {needs}", nic.name()))
        };
        let allowed = settings.queue_depth.min(limits.max_qp_wr);
        let depths = match role {
            Role::Connector => {
                let wanted = SEND_DEPTH.div_ceil(n).max(MIN_DEPTH);
                let each = wanted.min(allowed).min(limits.max_cqe / n);
                Self { srq: 0, receives: 0, first: each, others: each, flush: 0 }
            }
            Role::Acceptor => {
                let shared = MAX_DEPTH.min(limits.max_srq_wr).min(limits.max_cqe / 2);
                let own = (2 * slots_per_queue(n)).min(limits.max_qp_wr).min(limits.max_cqe / 2 / n);
                let (srq, receives) = if nic.has_srq().is_ok() { (shared, 0) } else { (0, own) };
                let flush =
                    if leads && nic.flushes(&settings.config) { flush_depth(settings.traffic) } else { 0 };
                let first = CTS_DEPTH
                    .min(allowed)
                    .min(limits.max_cqe.saturating_sub(srq + n * receives + flush + n - 1));
                Self { srq, receives, first, others: 1, flush }
            }
        };
        if depths.first < MIN_DEPTH {
            return Err(too_small("a send or completion queue", depths.first, MIN_DEPTH));
        }
        if depths.flush > limits.max_qp_wr {
            return Err(too_small("a send queue", limits.max_qp_wr, depths.flush));
        }
        if role == Role::Acceptor && depths.srq + depths.receives == 0 {
            return Err(too_small("a receive queue", 0, 1));
        }
        Ok(depths)
    }

    pub(crate) fn send(&self, queue: u32) -> u32 {
        if queue == 0 { self.first } else { self.others }
    }

    /// Returns the depth of the completion queue: after a failure every request completes, signaled
    /// or not.
    pub(crate) fn completions(&self, n: u32) -> u32 {
        self.srq + n * self.receives + self.first + (n - 1) * self.others + self.flush
    }
}

/// What a route needs of a CQ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CqNeeds<'a> {
    pub(crate) context: &'a Arc<Context>,
    /// The most completions of the route at one time.
    pub(crate) completions: u32,
    /// The most entries of a CQ of this context.
    pub(crate) max_cqe: u32,
}

/// The CQ of a route.
#[derive(Debug, Clone)]
pub(crate) struct RouteCq {
    pub(crate) cq: Arc<Cq>,
    /// Whether other routes of the attempt use it, too.
    pub(crate) shared: bool,
}

/// Creates the CQs of the routes, in their order. Routes on one context share a CQ if it can hold
/// the completions of all of them. Otherwise each has its own.
pub(crate) fn completion_queues(routes: &[CqNeeds<'_>]) -> Vec<Result<RouteCq>> {
    let mut cqs: Vec<Result<RouteCq>> = Vec::with_capacity(routes.len());
    for route in routes {
        let here = |other: &&CqNeeds<'_>| other.context.id() == route.context.id();
        let sum = routes.iter().filter(here).fold(0_u32, |sum, other| sum.saturating_add(other.completions));
        let shared = routes.iter().filter(here).count() > 1 && sum <= route.max_cqe;
        let known = routes.iter().zip(&cqs).find_map(|(other, cq)| cq.as_ref().ok().filter(|_| here(&other)));
        let cq = match known.filter(|_| shared) {
            Some(known) => Ok(Arc::clone(&known.cq)),
            None => Cq::new(route.context, if shared { sum } else { route.completions }).map(Arc::new),
        };
        cqs.push(cq.map(|cq| RouteCq { cq, shared }));
    }
    cqs
}
