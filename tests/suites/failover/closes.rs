//! Receivers that have everything and close while the sender waits for acknowledgements, which are
//! lost.

use mpib_tests::code::Success;
use mpib_tests::pair::{pattern, until};
use mpib_tests::{NO_PINGS, here, with_and_without_srq};
use softverbs::{Fault, Only, Then, faults_struck, inject_at};

use super::points::{Ends, env, two_hosts};

const LEN: usize = 100_000;

/// The receiver gets a message, whose acknowledgement on a rail is lost, and closes. The sender closes
/// when its send has completed.
fn the_send_completes(test: &str, rails: usize, then: Then) {
    let devices = two_hosts(rails);
    with_and_without_srq(test, &env(&devices, &[NO_PINGS]), || {
        let pair = Ends::two_hosts(12, rails).connect();
        let table = pair.table;
        let (from, to) = (pair.send_buffer(pattern(LEN, 1)), pair.recv_buffer(LEN));
        inject_at("s0", Fault::LostAck(then), 1, Only::WRITES).unwrap();
        let recv = pair.irecv(&[(to.addr(), LEN, 7, to.mr)]);
        let send = pair.isend(from.addr(), LEN, 7, from.mr);
        assert_eq!(pair.wait(recv)[0] as usize, LEN, "size at the receiver");
        until("the fault", || (faults_struck("s0").unwrap() > 0).then_some(()));
        assert!(to.bytes == from.bytes, "{LEN} bytes differ");
        to.dereg();
        assert_eq!(table.close_recv(pair.recv), Success, "closeRecv");
        assert_eq!(pair.wait(send)[0] as usize, LEN, "size at the sender");
        from.dereg();
        assert_eq!(table.close_send(pair.send), Success, "closeSend");
    });
}

//= protocol.md: a send whose data a closing receiver has completes, acknowledged or not
#[test]
fn a_send_completes_whose_acknowledgement_is_lost_with_the_link() {
    the_send_completes(here!(), 2, Then::Down);
}

//= protocol.md: a send whose data a closing receiver has completes, acknowledged or not
#[test]
fn a_send_completes_whose_acknowledgement_never_comes() {
    the_send_completes(here!(), 2, Then::Silent);
}

//= protocol.md: a send whose data a closing receiver has completes, acknowledged or not
#[test]
fn a_send_completes_whose_acknowledgement_is_lost_alone() {
    the_send_completes(here!(), 2, Then::Alive);
}

//= protocol.md: a send whose data a closing receiver has completes, acknowledged or not
#[test]
fn a_send_over_the_only_rail_completes_whose_acknowledgement_is_lost() {
    the_send_completes(here!(), 1, Then::Down);
}
