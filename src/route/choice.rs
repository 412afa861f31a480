//! Routes, refused pairs, and the choice among them.

use mpib_proto::{Ends, Hello, RailInfo, UnusableRail};

/// A rail of the connector joined to one of the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The rail of each end: an index into its list.
    pub rails: Ends<usize>,
    /// The address of each rail: an index into the rail's list.
    pub addrs: Ends<usize>,
    /// Number of better pairs of addresses that join the same rails.
    pub(crate) alternate: u8,
    /// Whether both ends regard the addresses as one subnet.
    pub(crate) one_subnet: bool,
    /// The number of ends, 0 to 2, whose NCCL requested the rail.
    pub requested: u8,
}

impl Route {
    /// The route of the only rails of both ends, by their first addresses.
    pub(crate) const ONLY: Self = Self {
        rails: Ends { connector: 0, acceptor: 0 },
        addrs: Ends { connector: 0, acceptor: 0 },
        alternate: 0,
        one_subnet: true,
        requested: 2,
    };

    /// Returns whether two routes have the same rail at one end.
    pub(super) fn shares_a_rail(&self, other: &Self) -> bool {
        self.rails.connector == other.rails.connector || self.rails.acceptor == other.rails.acceptor
    }
}

/// A pair that is no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The rail of each end: an index into its list.
    pub rails: Ends<usize>,
    /// The reason.
    pub(crate) why: String,
}

/// The rails of one end, as in its HELLO.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Rails that can be used.
    pub rails: &'a [RailInfo],
    /// Rails that cannot be used.
    pub(crate) unusable: &'a [UnusableRail],
}

impl<'a> From<&'a Hello> for End<'a> {
    fn from(hello: &'a Hello) -> Self {
        Self { rails: &hello.rails, unusable: &hello.unusable }
    }
}

/// The choice for two lists: every pair of rails is in one of the four. A pair that several pairs
/// of addresses join is several routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Routes of the first attempt, in order of the connector's rails. A rail is in one of them at
    /// most.
    pub first: Vec<Route>,
    /// Routes of later attempts, the best first. A rail may be in several.
    pub rest: Vec<Route>,
    /// Requested pairs with a port that is not active, the best first, each with its best pair of
    /// addresses. A rail may be in several.
    pub down: Vec<Route>,
    /// Pairs that are never tried.
    pub refused: Vec<Refused>,
    /// The maximum number of routes of a connection: the number of rails of the smaller device.
    pub width: usize,
    /// Whether both devices are SOUT and SUP.
    pub(super) by_role: bool,
}

impl Choice {
    /// Returns the routes of an attempt that the connection uses, as indices: the first ones that
    /// work at both ends and share no rail, up to the width.
    pub(crate) fn keep(&self, tried: &[Route], works: impl Fn(usize) -> bool) -> Vec<usize> {
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

/// Returns whether `route` shares no rail with the others.
pub(crate) fn is_disjoint(others: &[Route], route: &Route) -> bool {
    !others.iter().any(|r| r.shares_a_rail(route))
}
