//! The CQs of an attempt at one end. Routes on one adapter share a CQ: one poll serves all stripes of
//! a rail.

use std::sync::Arc;

use crate::error::Result;
use crate::verbs::{Context, Cq};

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
pub(crate) fn completion_queues(routes: &[CqNeeds<'_>]) -> Result<Vec<RouteCq>> {
    let mut cqs: Vec<RouteCq> = Vec::with_capacity(routes.len());
    for (i, route) in routes.iter().enumerate() {
        let here = |other: &&CqNeeds<'_>| other.context.id() == route.context.id();
        let sum = routes.iter().filter(here).fold(0_u32, |sum, other| sum.saturating_add(other.completions));
        let shared = routes.iter().filter(here).count() > 1 && sum <= route.max_cqe;
        let first = routes[..i].iter().position(|other| here(&other));
        let cq = match first.filter(|_| shared) {
            Some(first) => Arc::clone(&cqs[first].cq),
            None => Arc::new(Cq::new(route.context, if shared { sum } else { route.completions })?),
        };
        cqs.push(RouteCq { cq, shared });
    }
    Ok(cqs)
}
