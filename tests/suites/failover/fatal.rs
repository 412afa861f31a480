//! Adapters whose driver reports their failure as one of each queue pair, as bnxt_re does.

use mpib_tests::log::{assert_warned, has_logged, take_warnings, warnings};
use mpib_tests::pair::{Pair, until};
use mpib_tests::{NO_PINGS, here, with_and_without_srq};
use softverbs::{Direction, Fault, QUIRKS_VAR, heal, inject};

use super::points::{Ends, env, exists, two_hosts};

const CONNECTIONS: usize = 8;

/// Nobody sends meanwhile, so no completion shows the failure.
//= failover.md: an adapter that fails by events of its queue pairs is one fault
//= faults.md: 26
//= rail-life.md: what a sign of a fault costs
#[test]
fn an_adapter_that_fails_by_events_of_its_queue_pairs_is_one_fault() {
    let devices = two_hosts(2);
    with_and_without_srq(here!(), &env(&devices, &[(QUIRKS_VAR, "bnxt_re")]), || {
        let ends = Ends::two_hosts(12, 2);
        for device in ["r1", "s1"] {
            let pairs: Vec<Pair> = (0..CONNECTIONS).map(|_| ends.connect()).collect();
            pairs.iter().zip(0..).for_each(|(pair, seed)| pair.message(5000, 5000, seed));
            let on_it = ends.queue_pairs(&[device]);
            take_warnings();
            inject(device, Fault::DeviceFatal).unwrap();
            let cost = format!("{CONNECTIONS} connections carry on over other rails");
            let down = format!("{device}:1 is down since ");
            assert_warned(&[&down, &cost]);
            // The rails of all connections are given up, at both ends.
            until("the last connection", || (!exists(&on_it)).then_some(()));
            pairs.iter().zip(0..).for_each(|(pair, seed)| pair.message(5000, 5000, seed));
            let of_it = format!(" : {device}:1 ");
            let about: Vec<_> = warnings().into_iter().filter(|line| line.contains(&of_it)).collect();
            assert_eq!(about.len(), 1, "{about:?}");
            pairs.into_iter().for_each(Pair::close);
            heal(device).unwrap();
            until("the adapter", || has_logged("was opened as ").then_some(()));
        }
    });
}

/// The driver of irdma raises `QP_FATAL` where the retries are over. The event costs its connection
/// alone; the completion costs the route, and the idle connections need no timeout. Either may be
/// noticed first.
//= rail-life.md: the event of a queue pair does not hide that its route is silent
#[test]
fn an_event_of_a_queue_pair_does_not_hide_that_its_route_is_silent() {
    let devices = two_hosts(2);
    with_and_without_srq(here!(), &env(&devices, &[(QUIRKS_VAR, "irdma"), NO_PINGS]), || {
        let ends = Ends::two_hosts(12, 2);
        let pairs: Vec<Pair> = (0..CONNECTIONS).map(|_| ends.connect()).collect();
        pairs.iter().zip(0..).for_each(|(pair, seed)| pair.message(5000, 5000, seed));
        let on_it = ends.queue_pairs(&["s1"]);
        inject("s1", Fault::Silence(Direction::Both)).unwrap();
        pairs[0].message(5000, 5000, 1);
        until("the last connection", || (!exists(&on_it)).then_some(()));
        pairs.into_iter().for_each(Pair::close);
    });
}
