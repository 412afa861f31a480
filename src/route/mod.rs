//! The routes of a connection: which rail of the connector is joined to which rail of the acceptor,
//! and why not.
//!
//! Both ends run [`choose`] or [`choose_roles`] on the same two lists and obtain the same routes in
//! the same order. All texts about a choice or a refusal are here. `docs/guide/reach.md` has the rules.

mod address;
mod explain;
mod island;
mod local;
mod rank;

pub use address::gid_addr;
pub use island::{Class, class};
pub(crate) use local::{LocalRail, host_name, prefix_len, rail_info};

use crate::proto::{Ends, Hello, RailInfo, RoutePolicy, UnusableRail};
use address::best;

/// A rail of the connector joined to one of the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The rail of each end: an index into its list.
    pub rails: Ends<usize>,
    /// The address of each rail: an index into the rail's list.
    pub addrs: Ends<usize>,
    /// Whether both ends regard the addresses as one subnet.
    pub one_subnet: bool,
    /// The number of ends, 0 to 2, whose NCCL requested the rail.
    pub requested: u8,
}

impl Route {
    /// Returns whether two routes have the same rail at one end.
    fn shares_a_rail(&self, other: &Self) -> bool {
        self.rails.connector == other.rails.connector || self.rails.acceptor == other.rails.acceptor
    }
}

/// A pair that is no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The rail of each end: an index into its list.
    pub rails: Ends<usize>,
    /// The reason.
    pub why: String,
}

/// The rails of one end, as in its HELLO.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Rails that can be used.
    pub rails: &'a [RailInfo],
    /// Rails that cannot be used.
    pub unusable: &'a [UnusableRail],
}

impl<'a> From<&'a Hello> for End<'a> {
    fn from(hello: &'a Hello) -> Self {
        Self { rails: &hello.rails, unusable: &hello.unusable }
    }
}

/// The choice for two lists: every pair is in one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Routes of the first attempt, in order of the connector's rails. A rail is in one of them at
    /// most.
    pub first: Vec<Route>,
    /// Routes of later attempts, the best first. A rail may be in several.
    pub rest: Vec<Route>,
    /// Pairs that are never tried.
    pub refused: Vec<Refused>,
    /// The maximum number of routes of a connection: the number of rails of the smaller device.
    pub width: usize,
    /// Whether both devices are SOUT and SUP.
    by_role: bool,
}

/// Chooses the routes between two devices, at least one of them of plain rails. `rotation` selects
/// which of several equal routes comes first.
pub fn choose(policy: RoutePolicy, connector: &[RailInfo], acceptor: &[RailInfo], rotation: u32) -> Choice {
    let (mut routes, refused) = survey(connector, acceptor, |c, a, one_subnet| match policy {
        RoutePolicy::Subnet if !one_subnet => Err(explain::no_subnet(policy)),
        RoutePolicy::Strict if !(c.requested && a.requested) => {
            let other = if c.requested { a } else { c };
            Err(format!(
                "NCCL did not request {}, and MPIB_ROUTE=strict uses only what it requests",
                other.name
            ))
        }
        _ => Ok(()),
    });
    rank::sort(&mut routes, policy, connector, acceptor, rotation);
    let requested = |rails: &[RailInfo]| rails.iter().filter(|r| r.requested).count();
    let width = requested(connector).min(requested(acceptor)).max(1);
    let Some(best) = routes.first().copied() else { return Choice { refused, width, ..Choice::default() } };
    // Requested rails are joined as far as possible. Of the others, only those equal to the best
    // one are.
    let fits =
        |r: &Route| r.requested == best.requested && (best.requested == 2 || r.one_subnet == best.one_subnet);
    let (first, rest) = select(routes, width, fits);
    Choice { first, rest, refused, width, by_role: false }
}

/// Chooses the routes between two devices that are SOUT and SUP: SOUT to SOUT and SUP to SUP, also
/// if an end offers only one of them. Rails that were not requested are ignored.
pub fn choose_roles(connector: &[RailInfo], acceptor: &[RailInfo]) -> Choice {
    let (routes, refused) = survey(connector, acceptor, |c, a, _| {
        if c.role != a.role || !c.requested || !a.requested {
            return Err(format!("{} is {}, {} is {}", c.name, c.role, a.name, a.role));
        }
        Ok(())
    });
    let width = connector.len().max(acceptor.len());
    let (first, rest) = select(routes, width, |_| true);
    Choice { first, rest, refused, width, by_role: true }
}

/// Divides all pairs into those that can be joined and that `permit` accepts, in order, and the
/// others.
fn survey(
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    permit: impl Fn(&RailInfo, &RailInfo, bool) -> Result<(), String>,
) -> (Vec<Route>, Vec<Refused>) {
    let (mut routes, mut refused) = (Vec::new(), Vec::new());
    for (c, ours) in connector.iter().enumerate() {
        for (a, theirs) in acceptor.iter().enumerate() {
            let rails = Ends { connector: c, acceptor: a };
            let found = addresses(ours, theirs);
            match found.and_then(|best| permit(ours, theirs, best.one_subnet).map(|()| best)) {
                Err(why) => refused.push(Refused { rails, why }),
                Ok(best) => routes.push(Route {
                    rails,
                    addrs: best.at,
                    one_subnet: best.one_subnet,
                    requested: u8::from(ours.requested) + u8::from(theirs.requested),
                }),
            }
        }
    }
    (routes, refused)
}

/// Returns the addresses by which two rails can be joined, or why they cannot. MTUs may differ: a
/// queue pair uses the smaller one.
fn addresses(a: &RailInfo, b: &RailInfo) -> Result<address::Best, String> {
    if a.link_layer != b.link_layer {
        return Err(format!("{} is {:?}, {} is {:?}", a.name, a.link_layer, b.name, b.link_layer));
    }
    best(a, b)
}

/// Divides routes into the first `width` that fit and do not share a rail, and all others.
fn select(routes: Vec<Route>, width: usize, fits: impl Fn(&Route) -> bool) -> (Vec<Route>, Vec<Route>) {
    let (mut first, mut rest): (Vec<Route>, Vec<Route>) = (Vec::new(), Vec::new());
    for route in routes {
        let good = first.len() < width && fits(&route) && is_disjoint(&first, &route);
        if good { &mut first } else { &mut rest }.push(route);
    }
    first.sort_by_key(|r| r.rails.connector);
    (first, rest)
}

/// Returns whether `route` shares no rail with the others.
fn is_disjoint(others: &[Route], route: &Route) -> bool {
    !others.iter().any(|r| r.shares_a_rail(route))
}

impl Choice {
    /// Returns the routes of an attempt that the connection uses, as indices: the first ones that
    /// work at both ends and share no rail, up to the width.
    pub fn keep(&self, tried: &[Route], works: impl Fn(usize) -> bool) -> Vec<usize> {
        let (mut kept, mut routes) = (Vec::new(), Vec::new());
        for (i, route) in tried.iter().enumerate() {
            if works(i) && kept.len() < self.width && is_disjoint(&routes, route) {
                kept.push(i);
                routes.push(*route);
            }
        }
        kept
    }
}

#[cfg(test)]
pub(crate) mod tests;
