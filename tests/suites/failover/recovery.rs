//! Connections whose only rail fails and comes back while something else is lost, too.

use std::time::Instant;

use mpib_proto::Handle;
use mpib_tests::code::Success;
use mpib_tests::log::{LOG, has_logged};
use mpib_tests::pair::{Pair, connect_both, init, until};
use mpib_tests::proxy::{Proxy, Side};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated};
use softverbs::{Direction, Fault, Only, heal, inject_at, set_link};

use super::points::{Ends, env, two_hosts};
use super::traffic::{Link, Traffic};

/// The sender gives the rail up, and the receiver, whose port is in order, does not notice. The lost
/// part can come over the new rail alone.
//= protocol.md: failback: UP waits for no part that is sent again
#[test]
fn a_part_of_an_optional_receive_that_is_lost_with_the_only_rail_arrives() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[]), || {
        let traffic = Traffic::of(&[&[8], &[100_000]], 4, 2).optional();
        let mut link = Ends::two_hosts(12, 1).link(&traffic);
        for at in 1..=4 {
            link.run(|| {});
            LOG.lock().unwrap().clear();
            inject_at("s0", Fault::Silence(Direction::Both), at, Only::WRITES).unwrap();
            let mut healed = false;
            link.run(|| {
                if !healed && has_logged("no rail left") {
                    heal("s0").unwrap();
                    healed = true;
                }
            });
            assert!(healed, "the rail was in order");
        }
        link.close();
    });
}

/// The receiver's port is down when the sender tries to bring the rail back. What the receiver says of
/// that, and that the port works again, is lost with the control connection.
//= protocol.md: numbers: what is not acknowledged is repeated
#[test]
fn messages_that_are_lost_with_a_control_connection_are_repeated() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[]), || {
        let (table, ctx) = (newest(), init(newest()));
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        let direct = Handle::decode(&handle).unwrap();
        let proxy = Proxy::before(&direct);
        let mut through = proxy.handle(&direct).encode();
        let (send, recv) = connect_both(table, ctx, 1, &mut through, listen);
        let mut link = Link::new(Pair { table, send, recv }, &Traffic::of(&[&[100_000]], 4, 2));
        link.run(|| {});
        set_link("r0", false).unwrap();
        let (mut step, mut lost) = (0, 0);
        link.run(|| match step {
            0 if has_logged("stay dead") => {
                proxy.swallow_of(Side::Acceptor);
                step = 1;
            }
            1 if proxy.swallowed(Side::Acceptor) > 0 => {
                lost = proxy.swallowed(Side::Acceptor);
                set_link("r0", true).unwrap();
                step = 2;
            }
            2 if proxy.swallowed(Side::Acceptor) > lost => {
                proxy.reset(&[Side::Connector, Side::Acceptor]);
                step = 3;
            }
            _ => {}
        });
        assert_eq!(step, 3, "the rail came back before the control connection was lost");
        assert!(has_logged("works again"), "the control connection was not replaced");
        link.run(|| {});
        link.close();
        assert_eq!(table.close_listen(listen), Success);
    });
}

/// Returns the longest stall of a line of the log on the end of an episode, in milliseconds.
fn longest_stall() -> Option<f64> {
    let log = LOG.lock().unwrap();
    let stalls = log.iter().filter_map(|(_, line)| {
        let (_, rest) = line.split_once("on average and ")?;
        rest.split_once(" ms at most")?.0.parse().ok()
    });
    stalls.min_by(f64::total_cmp)
}

/// Nothing was lost, and nothing moved without a rail.
//= rail-life.md: an episode is over when a rail lives
#[test]
fn the_stall_of_a_connection_lasts_until_a_rail_lives() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[]), || {
        let mut link = Ends::two_hosts(12, 1).link(&Traffic::of(&[&[1000]], 4, 1));
        link.run(|| {});
        set_link("r0", false).unwrap();
        let mut down = None;
        link.run(|| {
            if has_logged("stay dead") && down.is_none() {
                down = Some(Instant::now());
            }
            if down.is_some_and(|since: Instant| since.elapsed().as_millis() > 1500) {
                set_link("r0", true).unwrap();
            }
        });
        let stall = until("a line on the stall", longest_stall);
        assert!(stall > 1500.0, "a stall of {stall} ms");
        link.close();
    });
}

/// Each queue pair of one rail takes two seconds to be destroyed.
//= failover.md: fault: an adapter that takes long to destroy queue pairs, or never does
//= rail-life.md: an adapter that is slow to destroy queue pairs holds up no data that it does not carry
#[test]
fn an_adapter_that_is_slow_to_destroy_queue_pairs_delays_no_other_data() {
    let devices = two_hosts(2)
        .replace("r1:", "r1:verb_time=destroy_qp:2s,")
        .replace("s1:", "s1:verb_time=destroy_qp:2s,");
    isolated(here!(), &env(&devices, &[]), || {
        let ends = Ends::two_hosts(12, 2);
        let mut link = ends.link(&Traffic::of(&[&[100_000]], 8, 2));
        link.run(|| {});
        let slow = ends.queue_pairs(&["s1"]);
        let left = || ends.queue_pairs(&["s1"]).iter().filter(|qp| slow.contains(qp)).count();
        set_link("s1", false).unwrap();
        until("the rail to be given up", || has_logged("over other rails").then_some(()));
        link.run(|| {});
        assert!(left() > 0, "the traffic has waited for queue pairs of the dead rail");
        link.close();
    });
}

/// A part is on the rail whose queue pairs are not destroyed in time, at both ends.
//= failover.md: fault: an adapter that takes long to destroy queue pairs, or never does
//= rail-life.md: an adapter that hangs is left alone, and lost data goes over other rails
#[test]
fn an_adapter_that_hangs_costs_no_data() {
    let devices = two_hosts(2)
        .replace("r1:", "r1:verb_time=destroy_qp:never,")
        .replace("s1:", "s1:verb_time=destroy_qp:never,");
    isolated(here!(), &env(&devices, &[]), || {
        let mut link = Ends::two_hosts(12, 2).link(&Traffic::of(&[&[100_000]], 8, 2));
        link.run(|| {});
        inject_at("s1", Fault::Silence(Direction::Both), 1, Only::WRITES).unwrap();
        link.run(|| {});
        assert!(has_logged("does not destroy queue pairs"), "the adapter does not hang");
        link.close();
    });
}

//= failover.md: fault: an adapter that takes long to destroy queue pairs, or never does
//= rail-life.md: no call that closes or deregisters waits for an adapter that hangs
#[test]
fn an_adapter_that_hangs_does_not_hold_up_a_close() {
    let devices = two_hosts(2).replace("s1:", "s1:verb_time=destroy_qp:never+dereg_mr:never,");
    isolated(here!(), &env(&devices, &[]), || {
        let mut link = Ends::two_hosts(12, 2).link(&Traffic::of(&[&[100_000]], 8, 2));
        link.run(|| {});
        link.close();
        assert!(has_logged("does not destroy queue pairs"), "the adapter does not hang");
    });
}
