//! A link that goes down and stays down, before and under transfers of each kind.

use mpib_tests::code::Success;
use mpib_tests::here;
use mpib_tests::log::{assert_warned, take_warnings};
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device};

use crate::{MIB, on_rails};

/// The messages of each kind: sizes of a group.
const KINDS: [&[usize]; 7] = [
    &[1000],
    &[MIB],
    &[0],
    &[(4 << 20) + 1],
    &[10, 20_000, 0],
    &[MIB, 5, 4096, 0, 70_000, 128, 127, 1],
    &[0; 8],
];

//= failover.md: a rail that goes down costs no message
#[test]
fn a_dead_rail_costs_no_message() {
    on_rails(here!(), 2, &[], || {
        for dead in ["r0", "r1"] {
            let (ctx, dev) = newest_device(2);
            let mut rig = Rig::new(table(12), ctx, dev, 8 * MIB);
            KINDS.iter().for_each(|lens| rig.exchange(lens));
            take_warnings();
            softverbs::set_link(dead, false).unwrap();
            for _ in 0..3 {
                KINDS.iter().for_each(|lens| rig.exchange(lens));
            }
            assert_warned(&["carr"]);
            rig.close();
            softverbs::set_link(dead, true).unwrap();
            assert_eq!(table(12).finalize(ctx), Success);
        }
    });
}
