//! Calls of libibverbs that fail while a rail is made again.

use std::time::Duration;

use mpib_tests::here;
use softverbs::{Call, fail, faults_struck, set_link};

use crate::MIB;
use crate::failback::{between_hosts, exchange_all, exchange_until, sent};

/// What makes a rail at each end.
const RECEIVER: [Call; 2] = [Call::CreateQp, Call::ModifyInit];
const SENDER: [Call; 2] = [Call::CreateCq, Call::ModifyRts];

/// At both ends, one attempt after the other.
//= failover.md: an attempt that fails is followed by others
#[test]
fn a_rail_returns_although_calls_that_make_it_fail_once() {
    between_hosts(here!(), |mut rig| {
        exchange_all(&mut rig);
        set_link("r1", false).unwrap();
        exchange_all(&mut rig);
        let before = sent("s1");
        let struck = || faults_struck("r1").unwrap() + faults_struck("s1").unwrap();
        let struck_before = struck();
        for (device, call) in
            RECEIVER.map(|call| ("r1", call)).into_iter().chain(SENDER.map(|call| ("s1", call)))
        {
            fail(device, call.fails(libc::EIO)).unwrap();
        }
        set_link("r1", true).unwrap();
        exchange_until(&mut rig, "the rail does not come back", || sent("s1") > before + MIB as u64);
        assert_eq!(struck() - struck_before, (RECEIVER.len() + SENDER.len()) as u64);
        rig.close();
    });
}

/// The other rail carries all data, and the connection closes.
//= failover.md: an adapter that hangs while a rail is made again costs that rail alone
#[test]
fn a_call_that_hangs_while_a_rail_is_made_again_costs_that_rail_alone() {
    between_hosts(here!(), |mut rig| {
        exchange_all(&mut rig);
        set_link("r1", false).unwrap();
        exchange_all(&mut rig);
        let struck = faults_struck("r1").unwrap();
        fail("r1", Call::ModifyRtr.fails(0).takes(Duration::MAX)).unwrap();
        set_link("r1", true).unwrap();
        exchange_until(&mut rig, "no attempt begins", || faults_struck("r1").unwrap() > struck);
        let during = sent("s1");
        (0..3).for_each(|_| exchange_all(&mut rig));
        assert_eq!(sent("s1"), during);
        rig.close();
    });
}
