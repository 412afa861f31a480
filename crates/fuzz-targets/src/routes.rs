//! The routes that two HELLOs result in.

use arbitrary::{Arbitrary, Unstructured};
use mpib_proto::{Ends, Hello};
use nccl_net_mpib::simulation::route::{Choice, End};
use nccl_net_mpib::simulation::split::Plan;

use crate::hellos::{Hellos, over_the_wire};

/// Most bytes of a text about a choice.
const TEXT_MAX: usize = 64 << 10;

/// Chooses the routes of two HELLOs as each end does, which has its own HELLO and what the wire has
/// made of the other one. Both have the same routes in the same order.
pub fn routes(data: &[u8]) {
    let Ok(Hellos { connector, acceptor }) = Hellos::arbitrary(&mut Unstructured::new(data)) else { return };
    if !connector.terms.differences(&acceptor.terms).is_empty() {
        return;
    }
    let (connector_there, acceptor_there) = (over_the_wire(&connector), over_the_wire(&acceptor));
    let here = choose(&connector, &acceptor_there);
    let there = choose(&connector_there, &acceptor);
    assert_eq!(here.0, there.0, "the plans of the connector and of the acceptor");
    let pairs = |choice: &Choice| choice.refused.iter().map(|refused| refused.rails).collect::<Vec<_>>();
    assert_eq!((&here.1.first, &here.1.rest), (&there.1.first, &there.1.rest));
    assert_eq!((pairs(&here.1), here.1.width), (pairs(&there.1), there.1.width));
    check(&here.1, &connector, &acceptor_there);
}

fn choose(connector: &Hello, acceptor: &Hello) -> (Plan, Choice) {
    let plan = Plan::new(&connector.terms, &acceptor.terms, &connector.rails, &acceptor.rails);
    let choice = plan.choose(connector.terms.route, connector, acceptor, connector.rotation);
    (plan, choice)
}

/// Checks what holds for every choice.
fn check(choice: &Choice, connector: &Hello, acceptor: &Hello) {
    let ends = Ends { connector: End::from(connector), acceptor: End::from(acceptor) };
    let routes = || choice.first.iter().chain(&choice.rest);
    for route in routes() {
        let (c, a) = (&connector.rails[route.rails.connector], &acceptor.rails[route.rails.acceptor]);
        assert!(route.addrs.connector < c.addrs.len() && route.addrs.acceptor < a.addrs.len());
        assert_eq!(route.requested, u8::from(c.requested) + u8::from(a.requested));
        let text = route.describe(&ends);
        assert!(text.len() < 400, "{text}");
    }
    for (i, route) in choice.first.iter().enumerate() {
        for other in &choice.first[..i] {
            assert_ne!(route.rails.connector, other.rails.connector);
            assert_ne!(route.rails.acceptor, other.rails.acceptor);
        }
    }
    assert!(choice.first.len() <= choice.width);
    for route in &choice.down {
        let (c, a) = (&connector.rails[route.rails.connector], &acceptor.rails[route.rails.acceptor]);
        assert!((c.is_down || a.is_down) && route.requested == 2);
    }
    // Each pair of rails is a route, down or refused.
    for c in 0..connector.rails.len() {
        for a in 0..acceptor.rails.len() {
            let pair = Ends { connector: c, acceptor: a };
            let refused = choice.refused.iter().filter(|refused| refused.rails == pair).count();
            let joined = routes().chain(&choice.down).any(|route| route.rails == pair);
            assert_eq!(refused, usize::from(!joined), "rails {c} and {a}");
        }
    }
    let mut texts = choice.unmatched(&ends, |_| true);
    texts.push(choice.table(&ends, &[]));
    texts.extend(choice.first.first().map(|route| choice.substitution(&ends, route, &[]).whole()));
    let longest = texts.iter().map(String::len).max().unwrap_or(0);
    assert!(longest <= TEXT_MAX, "a text of {longest} bytes");
}
