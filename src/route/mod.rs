//! The routes of a connection: which rail of the connector is joined to which rail of the acceptor,
//! and why not.
//!
//! Both ends run [`choose`] or [`choose_roles`] on the same two lists and obtain the same routes in
//! the same order. All texts about a choice or a refusal are here. `docs/guide/reach.md` has the
//! rules.

mod address;
mod choice;
mod explain;
mod infiniband;
mod island;
mod kernel;
mod local;
mod rank;

pub(crate) use address::gid_addr;
pub use choice::{Choice, End};
pub(crate) use choice::{Refused, Route};
pub(crate) use explain::{is_untried, joined, untried};
pub(crate) use infiniband::dlid;
pub(crate) use island::Class;
pub(crate) use island::class;
pub(crate) use kernel::{is_unrouted, unrouted};
pub(crate) use local::{LocalRail, host_name, prefix_len, rail_info};

use mpib_proto::{Ends, RailInfo, RoutePolicy};

use crate::device::INACTIVE;
pub(crate) use choice::is_disjoint;

/// Chooses the routes between two devices, at least one of them of plain rails. `rotation` selects
/// which of several equal routes comes first.
pub(crate) fn choose(
    policy: RoutePolicy,
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    rotation: u32,
) -> Choice {
    let (mut routes, mut down, refused) = survey(connector, acceptor, |c, a, one_subnet| match policy {
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
    rank::sort(&mut down, policy, connector, acceptor, rotation);
    let requested = |rails: &[RailInfo]| rails.iter().filter(|r| r.requested).count();
    let width = requested(connector).min(requested(acceptor)).max(1);
    let Some(best) = routes.first().copied() else {
        return Choice { down, refused, width, ..Choice::default() };
    };
    // Requested rails are joined as far as possible. Of the others, only those equal to the best
    // one are.
    let fits =
        |r: &Route| r.requested == best.requested && (best.requested == 2 || r.one_subnet == best.one_subnet);
    let (first, rest) = select(routes, width, fits);
    Choice { first, rest, down, refused, width, by_role: false }
}

/// Chooses the routes between two devices that are SOUT and SUP: SOUT to SOUT and SUP to SUP, also
/// if an end offers only one of them. Rails that were not requested are ignored.
pub(crate) fn choose_roles(connector: &[RailInfo], acceptor: &[RailInfo]) -> Choice {
    let (routes, down, refused) = survey(connector, acceptor, |c, a, _| {
        if c.role != a.role || !c.requested || !a.requested {
            return Err(format!("{} is {}, {} is {}", c.name, c.role, a.name, a.role));
        }
        Ok(())
    });
    let width = connector.len().max(acceptor.len());
    let (first, rest) = select(routes, width, |_| true);
    Choice { first, rest, down, refused, width, by_role: true }
}

/// Returns the route that joins two rails again after both were read again: by the addresses of
/// `before` if both still have them, else by the best ones.
///
/// # Errors
/// The reason why they cannot be joined.
pub(crate) fn rejoin(
    policy: RoutePolicy,
    connector: &RailInfo,
    acceptor: &RailInfo,
    before: &Ends<[u8; 16]>,
) -> Result<Route, String> {
    let mut pairs = addresses(connector, acceptor)?;
    pairs.retain(|pair| policy != RoutePolicy::Subnet || pair.one_subnet);
    let is_known = |pair: &&address::Best| {
        connector.addrs[pair.at.connector].gid == before.connector
            && acceptor.addrs[pair.at.acceptor].gid == before.acceptor
    };
    let pair = pairs.iter().find(is_known).or(pairs.first()).ok_or_else(|| explain::no_subnet(policy))?;
    Ok(Route { addrs: pair.at, one_subnet: pair.one_subnet, ..Route::ONLY })
}

/// Divides all pairs of rails into those that can be joined and that `permit` accepts, in order,
/// each with all its pairs of addresses, the requested ones of these with a port that is down, and
/// the others.
fn survey(
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    permit: impl Fn(&RailInfo, &RailInfo, bool) -> Result<(), String>,
) -> (Vec<Route>, Vec<Route>, Vec<Refused>) {
    let (mut routes, mut down, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (c, ours) in connector.iter().enumerate() {
        for (a, theirs) in acceptor.iter().enumerate() {
            let rails = Ends { connector: c, acceptor: a };
            let is_down = ours.is_down || theirs.is_down;
            if is_down && !(ours.requested && theirs.requested) {
                refused.push(Refused { rails, why: INACTIVE.to_owned() });
                continue;
            }
            let pairs = match addresses(ours, theirs) {
                Ok(pairs) => pairs,
                Err(why) => {
                    refused.push(Refused { rails, why });
                    continue;
                }
            };
            let (mut alternate, mut objection) = (0, None);
            for pair in pairs {
                if let Err(why) = permit(ours, theirs, pair.one_subnet) {
                    objection.get_or_insert(why);
                    continue;
                }
                if is_down && alternate > 0 {
                    break;
                }
                let list = if is_down { &mut down } else { &mut routes };
                list.push(Route {
                    rails,
                    addrs: pair.at,
                    alternate,
                    one_subnet: pair.one_subnet,
                    requested: u8::from(ours.requested) + u8::from(theirs.requested),
                });
                alternate += 1;
            }
            refused.extend(objection.filter(|_| alternate == 0).map(|why| Refused { rails, why }));
        }
    }
    (routes, down, refused)
}

/// Returns the addresses by which two rails can be joined, the best first, or why they cannot. MTUs
/// may differ: a queue pair uses the smaller one.
fn addresses(a: &RailInfo, b: &RailInfo) -> Result<Vec<address::Best>, String> {
    if a.link_layer != b.link_layer {
        return Err(format!("{} is {:?}, {} is {:?}", a.name, a.link_layer, b.name, b.link_layer));
    }
    address::pairs(a, b)
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

#[cfg(any(test, feature = "simulation"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests use all of it"))]
pub(crate) mod tests;
