//! Which rail of the connector talks to which rail of the acceptor, and why not.
//!
//! Both ends run [`choose`] (or [`choose_roles`]) on the same lists and so come to the same routes, in the same order,
//! without asking each other. Every sentence about a choice or a refusal is made here. `docs/reach.md` has the rules.

mod address;
mod explain;
mod island;
mod rank;

pub use address::gid_addr;
pub use island::{Class, class};

use crate::proto::{Ends, Hello, LostRail, RailInfo, RoutePolicy};
use address::best;

/// A rail of the connector joined to one of the acceptor, as indices into their lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The rail of each end: an index into its list.
    pub rails: Ends<usize>,
    /// The address of each rail: an index into the rail's list.
    pub addrs: Ends<usize>,
    /// Whether these are on one subnet, as far as both ends tell.
    pub one_subnet: bool,
    /// Of how many ends, 0 to 2, NCCL asked for this rail.
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
    /// In words.
    pub why: String,
}

/// What one end brings, as its HELLO says.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// What can be used.
    pub rails: &'a [RailInfo],
    /// What cannot.
    pub lost: &'a [LostRail],
}

impl<'a> From<&'a Hello> for End<'a> {
    fn from(hello: &'a Hello) -> Self {
        Self { rails: &hello.rails, lost: &hello.lost }
    }
}

/// The outcome for two lists: every pair is in one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// What is tried first, in order of the connector's rails; a rail is in one of them at most.
    pub first: Vec<Route>,
    /// What is tried when nothing of that works, the best first; a rail may be in several.
    pub rest: Vec<Route>,
    /// What is not tried.
    pub refused: Vec<Refused>,
    /// Most routes of a connection: as many rails as the device of the end with fewer has.
    pub width: usize,
    /// SOUT was not to meet SUP.
    by_role: bool,
}

/// The routes between two devices of which one at least is not SOUT and SUP. `turn` says which of several routes that
/// are as good as each other comes first.
pub fn choose(policy: RoutePolicy, connector: &[RailInfo], acceptor: &[RailInfo], turn: u32) -> Choice {
    let (mut routes, refused) = survey(connector, acceptor, |c, a, one_subnet| match policy {
        RoutePolicy::Subnet if !one_subnet => Err(explain::no_subnet(policy)),
        RoutePolicy::Strict if !(c.requested && a.requested) => {
            let other = if c.requested { a } else { c };
            Err(format!(
                "NCCL did not ask for {}, and MPIB_ROUTE=strict keeps to what it asks for",
                other.name
            ))
        }
        _ => Ok(()),
    });
    rank::sort(&mut routes, policy, connector, acceptor, turn);
    let asked = |rails: &[RailInfo]| rails.iter().filter(|r| r.requested).count();
    let width = asked(connector).min(asked(acceptor)).max(1);
    let Some(best) = routes.first().copied() else { return Choice { refused, width, ..Choice::default() } };
    // Rails that were asked for are joined as far as they can be; others come in one kind at a time.
    let fits =
        |r: &Route| r.requested == best.requested && (best.requested == 2 || r.one_subnet == best.one_subnet);
    let (first, rest) = matching(routes, width, fits);
    Choice { first, rest, refused, width, by_role: false }
}

/// The routes between two devices that are SOUT and SUP: SOUT to SOUT and SUP to SUP, also where an end has but one of them
/// to offer. Rails that were not asked for are not looked at.
pub fn choose_roles(connector: &[RailInfo], acceptor: &[RailInfo]) -> Choice {
    let (routes, refused) = survey(connector, acceptor, |c, a, _| {
        if c.role != a.role || !c.requested || !a.requested {
            return Err(format!("{} is {}, {} is {}", c.name, c.role, a.name, a.role));
        }
        Ok(())
    });
    let width = connector.len().max(acceptor.len());
    let (first, rest) = matching(routes, width, |_| true);
    Choice { first, rest, refused, width, by_role: true }
}

/// Every pair: those that can be joined and that `judge` lets through, in order, and the others.
fn survey(
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    judge: impl Fn(&RailInfo, &RailInfo, bool) -> Result<(), String>,
) -> (Vec<Route>, Vec<Refused>) {
    let (mut routes, mut refused) = (Vec::new(), Vec::new());
    for (c, ours) in connector.iter().enumerate() {
        for (a, theirs) in acceptor.iter().enumerate() {
            let rails = Ends { connector: c, acceptor: a };
            let found = joint(ours, theirs);
            match found.and_then(|best| judge(ours, theirs, best.one_subnet).map(|()| best)) {
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

/// The addresses by which two rails can be joined, or why they cannot. Their MTUs need not be equal: a queue pair uses the
/// smaller one.
fn joint(a: &RailInfo, b: &RailInfo) -> Result<address::Best, String> {
    if a.link_layer != b.link_layer {
        return Err(format!("{} is {:?}, {} is {:?}", a.name, a.link_layer, b.name, b.link_layer));
    }
    best(a, b)
}

/// At most `width` of the routes that fit, the best first and no rail twice; and all others.
fn matching(routes: Vec<Route>, width: usize, fits: impl Fn(&Route) -> bool) -> (Vec<Route>, Vec<Route>) {
    let (mut first, mut rest): (Vec<Route>, Vec<Route>) = (Vec::new(), Vec::new());
    for route in routes {
        let good = first.len() < width && fits(&route) && apart(&first, &route);
        if good { &mut first } else { &mut rest }.push(route);
    }
    first.sort_by_key(|r| r.rails.connector);
    (first, rest)
}

/// Whether `route` has its rails for itself.
fn apart(others: &[Route], route: &Route) -> bool {
    !others.iter().any(|r| r.shares_a_rail(route))
}

impl Choice {
    /// Of routes that were tried at once, those that a connection uses, as indices: of all that work, the first, no rail
    /// twice, and no more than the connection is wide. Both ends know of each whether it works on both.
    pub fn keep(&self, tried: &[Route], works: impl Fn(usize) -> bool) -> Vec<usize> {
        let (mut kept, mut routes) = (Vec::new(), Vec::new());
        for (i, route) in tried.iter().enumerate() {
            if works(i) && kept.len() < self.width && apart(&routes, route) {
                kept.push(i);
                routes.push(*route);
            }
        }
        kept
    }
}

#[cfg(test)]
pub(crate) mod tests;
