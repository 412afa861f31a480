//! Rails that swallow packets while nothing else shows that. The adapters would report no error for
//! longer than the tests' limit.

use mpib_tests::pair::until;
use mpib_tests::{SPLIT_ALL, here, isolated};
use nccl_net_mpib_agent_iface::stats::pages_of;
use softverbs::{Direction, Fault, Only, heal, inject, inject_at};

use super::points::{Ends, two_hosts};
use super::traffic::{Link, Traffic};

/// Runs `f` on a connection of two rails that moves one small message at a time, each on rail 0.
fn on_one_of_two_rails(test: &str, optional: bool, f: impl FnOnce(&mut Link)) {
    let devices = two_hosts(2);
    let env = [("SOFTVERBS_DEVICES", devices.as_str()), ("NCCL_IB_TIMEOUT", "22"), SPLIT_ALL];
    isolated(test, &env, || {
        let traffic = Traffic::of(&[&[8]], 4, 1);
        let mut link = Ends::two_hosts(12, 2).link(&if optional { traffic.optional() } else { traffic });
        link.run(|| {});
        f(&mut link);
        link.run(|| {});
        link.close();
    });
}

//= failover.md: fault: a port or switch that swallows packets without a sign
//= rail-life.md: pings
#[test]
fn a_lone_message_that_is_swallowed_goes_on_another_rail() {
    on_one_of_two_rails(here!(), false, |link| {
        inject_at("s0", Fault::Silence(Direction::Both), 1, Only::ALL).unwrap();
        link.run(|| {});
        let replayed = || pages_of(std::process::id()).unwrap()[0].summary().replayed;
        until("the message that was sent again to be counted", || (replayed() >= 8).then_some(()));
        heal("s0").unwrap();
    });
}

//= failover.md: fault: a rail that carries announcements of buffers (CTS)
//= rail-life.md: pings
#[test]
fn a_cts_write_that_is_swallowed_goes_on_another_rail() {
    on_one_of_two_rails(here!(), false, |link| {
        inject("r0", Fault::Silence(Direction::Both)).unwrap();
        link.run(|| {});
        heal("r0").unwrap();
    });
}

/// NCCL waits for the data, and calls neither irecv nor test.
//= rail-life.md: pings
#[test]
fn a_cts_write_of_an_optional_receive_that_is_swallowed_goes_on_another_rail() {
    on_one_of_two_rails(here!(), true, |link| {
        inject("r0", Fault::Silence(Direction::Both)).unwrap();
        link.run(|| {});
        heal("r0").unwrap();
    });
}
