//! The WIRING of simulated ends.

use mpib_proto::{Memory, QpWiring, Role, RouteWiring, Wiring, written_bytes};

use crate::connect::machine::Stripes;
use crate::route::Route;

/// The WIRING of an end with these stripes.
pub(super) fn wiring(role: Role, stripes: &Stripes) -> Wiring {
    let route = |(route, qps): &(Route, usize)| RouteWiring {
        local_rail: *route.rails.local(role) as u8,
        remote_rail: *route.rails.remote(role) as u8,
        qps: vec![QpWiring { qpn: 7, psn: 8 }; *qps],
        service_level: 0,
        traffic_class: 0,
        ece: None,
    };
    let rkeys = (0..stripes.each.len() as u32).collect();
    let memory = Memory { addr: 1 << 20, len: written_bytes(stripes.has_mailbox) as u64, rkeys };
    Wiring { routes: stripes.each.iter().map(route).collect(), memory }
}

/// Asserts that the lists of WIRING have the expected lengths: the driver indexes into them. A route
/// without queue pairs is one that its sender could not make.
pub(super) fn fits(role: Role, stripes: &Stripes, found: &Wiring) {
    let expected = wiring(role.other(), stripes);
    let rails = |w: &Wiring| -> Vec<_> { w.routes.iter().map(|r| (r.local_rail, r.remote_rail)).collect() };
    assert_eq!(rails(found), rails(&expected));
    for (route, expected) in found.routes.iter().zip(&expected.routes) {
        assert!([0, expected.qps.len()].contains(&route.qps.len()), "{route:?}");
    }
    assert_eq!(found.memory.rkeys.len(), stripes.each.len());
    assert!(found.memory.len >= expected.memory.len);
    assert!(found.memory.addr.checked_add(expected.memory.len).is_some());
}
