//! The order in which routes are tried.

use std::cmp::Reverse;

use mpib_proto::{RailInfo, RoutePolicy};

use super::choice::Route;

/// Sorts routes by the policy, the best first. The criteria are the number of requested rails, the
/// better pairs of addresses for the same rails, and the common subnet, in the order of the policy;
/// then, unless both rails were requested, the speed; then the order of the lists. Equal routes
/// with a rail that was not requested rotate with `rotation`, on different rails as long as there
/// are any.
pub(super) fn sort(
    routes: &mut [Route],
    policy: RoutePolicy,
    connector: &[RailInfo],
    acceptor: &[RailInfo],
    rotation: u32,
) {
    let kind = |r: &Route| {
        let (far, unrequested) = (u8::from(!r.one_subnet), 2 - r.requested);
        let kind = match policy {
            RoutePolicy::Any | RoutePolicy::Strict => (unrequested, r.alternate, far),
            RoutePolicy::PreferSubnet | RoutePolicy::Subnet => (far, unrequested, r.alternate),
        };
        let speed = connector[r.rails.connector].speed_mbps.min(acceptor[r.rails.acceptor].speed_mbps);
        (kind, Reverse(if r.requested == 2 { 0 } else { speed }))
    };
    let crossed = |r: &Route| connector[r.rails.connector].role != acceptor[r.rails.acceptor].role;
    routes.sort_by_key(|r| (kind(r), r.requested == 2 && crossed(r), r.rails.connector, r.rails.acceptor));
    for equal in routes.chunk_by_mut(|a, b| kind(a) == kind(b)) {
        if equal[0].requested < 2 {
            rotate(equal, rotation);
        }
    }
}

/// Orders equal routes: neighbours share no rail if possible, and the first one depends on
/// `rotation`.
fn rotate(routes: &mut [Route], rotation: u32) {
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
    routes.rotate_left(rotation as usize % routes.len());
}
