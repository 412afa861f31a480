//! Paths that lose all packets, without an event of a port.

use std::thread;

use mpib_tests::code::Success;
use mpib_tests::log::{assert_warned, has_logged};
use mpib_tests::pair::until;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device, rails};
use mpib_tests::{SHORT, here, isolated};
use softverbs::{Direction, Fault, inject};

const MIB: usize = 1 << 20;

/// The probes of all rails end without an answer. The paths work again once the connection waits.
//= failover.md: fault: no rail works, and a port is not active or has lost its link, or nothing answers on a pair of ports that the routing tables join
//= faults.md: 93: all rails are silent while a connection is made: it waits for one
//= failover.md: paths that are silent while a connection is made cost time and nothing else
#[test]
fn a_connection_is_made_once_a_silent_path_works() {
    let devices = rails(2, 1);
    let settings = [("SOFTVERBS_DEVICES", devices.as_str()), ("MPIB_FLUSH", "1")];
    isolated(here!(), &[&SHORT[..], &settings].concat(), || {
        let (ctx, dev) = newest_device(2);
        ["r0", "r1"].iter().for_each(|rail| inject(rail, Fault::Silence(Direction::Both)).unwrap());
        let helper = thread::spawn(|| {
            until("a wait", || has_logged("the connection waits up to").then_some(()));
            ["r0", "r1"].iter().for_each(|rail| softverbs::heal(rail).unwrap());
        });
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        helper.join().unwrap();
        assert_warned(&[
            "no rail works to",
            "the connection waits up to",
            "nothing answers: the probe failed",
        ]);
        rig.exchange(&[4 * MIB]);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
