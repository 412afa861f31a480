//! Calls of libibverbs that fail while a rail is made again.

use mpib_tests::here;
use softverbs::{Call, fail, faults_struck, set_link};

use crate::MIB;
use crate::failback::{between_hosts, exchange_all, exchange_until, sent};

/// What makes a rail at each end.
const RECEIVER: [Call; 2] = [Call::CreateSrq, Call::ModifyInit];
const SENDER: [Call; 2] = [Call::CreateQp, Call::ModifyRts];

/// At both ends, one attempt after the other.
//= faults.md: 96: calls that make a rail again fail once: the rail returns all the same
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
