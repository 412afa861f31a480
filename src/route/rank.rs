//! The order in which routes are tried.

use std::cmp::Reverse;

use super::Route;
use crate::proto::{RailInfo, RoutePolicy};

/// Sorts by the policy, the best first: subnet and what NCCL asked for, or the other way round; then, among rails that
/// somebody did not ask for, the faster; then the order of the lists. Of rails that somebody did not ask for and that are
/// equal in all this, another route comes first at each `turn`, on other rails as long as there are any.
pub(super) fn sort(
    routes: &mut [Route],
    policy: RoutePolicy,
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    turn: u32,
) {
    let kind = |r: &Route| {
        let (far, strange) = (u8::from(!r.one_subnet), 2 - r.requested);
        let kind = if policy == RoutePolicy::Any { (strange, far) } else { (far, strange) };
        let speed = connector[r.rails.connector].speed_mbps.min(acceptor[r.rails.acceptor].speed_mbps);
        (kind, Reverse(if r.requested == 2 { 0 } else { speed }))
    };
    let crossed = |r: &Route| connector[r.rails.connector].role != acceptor[r.rails.acceptor].role;
    routes.sort_by_key(|r| (kind(r), r.requested == 2 && crossed(r), r.rails.connector, r.rails.acceptor));
    for equal in routes.chunk_by_mut(|a, b| kind(a) == kind(b)) {
        if equal[0].requested < 2 {
            take_turns(equal, turn);
        }
    }
}

/// Puts routes that are as good as each other in an order in which neighbours have no rail in common, where that can be,
/// and begins with the one whose turn it is.
fn take_turns(routes: &mut [Route], turn: u32) {
    let places = |rail: fn(&Route) -> usize| {
        let mut all: Vec<usize> = routes.iter().map(rail).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (ours, theirs) = (places(|r| r.rails.connector), places(|r| r.rails.acceptor));
    let place = |all: &[usize], rail| all.binary_search(&rail).unwrap_or(0);
    routes.sort_by_key(|r| {
        let (c, a) = (place(&ours, r.rails.connector), place(&theirs, r.rails.acceptor));
        ((a + theirs.len() - c % theirs.len()) % theirs.len(), c)
    });
    routes.rotate_left(turn as usize % routes.len());
}
