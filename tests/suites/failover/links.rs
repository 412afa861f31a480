//! A link that goes down and stays down, before and under transfers of each kind.

use mpib_tests::code::Success;
use mpib_tests::here;
use mpib_tests::log::{assert_warned, take_warnings};
use mpib_tests::pair::until;
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

//= failover.md: fault: a link that goes down, a cable that is pulled, a switch that restarts
//= faults.md: 16: a link goes down under load: another rail sends again what is missing
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

/// Objects of an adapter that the plugin would only poll, or that could still write memory.
#[test]
fn nothing_of_a_dead_rail_is_left() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let count = || {
            let objects = softverbs::objects().unwrap();
            [objects.qps, objects.cqs, objects.srqs]
        };
        let before = count();
        let mut rig = Rig::new(table(12), ctx, dev, MIB);
        let of = |now: [usize; 3]| [0, 1, 2].map(|i| now[i] - before[i]);
        let all = of(count());
        softverbs::set_link("r0", false).unwrap();
        rig.exchange(&[MIB]);
        until("the queues of r0 to be destroyed", || (of(count()) == all.map(|n| n / 2)).then_some(()));
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
