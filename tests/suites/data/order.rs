//! Memory that becomes visible late, and in another order than it was written (softverbs' `order=`):
//! CTS entries, completion records, and what the immediates of several rails cover.

use mpib_tests::code::Success;
use mpib_tests::here;
use mpib_tests::process::with_and_without_srq;
use mpib_tests::rng::Rng;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device};

/// Groups of each size and messages of many lengths over three rails whose memory has this order.
fn every_byte_arrives(test: &str, order: &str, inline: &str) {
    let rails: Vec<_> = (0..3).map(|i| format!("r{i}:addr=10.0.{i}.1/24,order={order}")).collect();
    let rails = rails.join(";");
    let env = [("SOFTVERBS_DEVICES", &*rails), ("MPIB_SPLIT_MIN", "0"), ("NCCL_IB_USE_INLINE", inline)];
    with_and_without_srq(test, &env, || {
        let (ctx, dev) = newest_device(3);
        let mut rig = Rig::new(table(12), ctx, dev, 8 * 100_000);
        let (_, mut rng) = Rng::from_env();
        for round in 0..64 {
            let group: Vec<_> = (0..1 + round % 8).map(|_| rng.below(100_000)).collect();
            rig.exchange(&group);
        }
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= adapters.md: A20: data that lands late or in any order is read when its completion covers it
#[test]
fn every_byte_arrives_where_lines_land_in_any_order() {
    every_byte_arrives(here!(), "relaxed", "1");
}

//= adapters.md: A20: data that lands late or in any order is read when its completion covers it
#[test]
fn every_byte_arrives_where_rails_land_late() {
    every_byte_arrives(here!(), "late", "0");
}
