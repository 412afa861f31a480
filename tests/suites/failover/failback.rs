//! Rails that die and come back: their queue pairs are made anew, and they carry data again.

use std::time::{Duration, Instant};

use mpib_tests::code::Success;
use mpib_tests::here;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, carried, newest_device};

use crate::{MIB, on_rails};

/// Limit of a failing test.
const LIMIT: Duration = Duration::from_secs(60);

/// The messages that are exchanged while something is to happen: sizes of groups.
const TRAFFIC: [&[usize]; 4] = [&[3 * MIB + 1], &[1000], &[0], &[70_000, 5, 200_000, 0]];

/// Exchanges messages until `f` holds.
fn exchange_until(rig: &mut Rig, what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        TRAFFIC.iter().for_each(|lens| rig.exchange(lens));
        assert!(start.elapsed() < LIMIT, "{what}");
    }
}

fn bytes(rails: usize, rail: usize) -> u64 {
    carried(rails)[rail].bytes
}

/// Takes a rail down under traffic until it carries nothing, and up until it carries data again.
fn flap(rig: &mut Rig, rails: usize, rail: usize) {
    let name = format!("r{rail}");
    let before = bytes(rails, rail);
    TRAFFIC.iter().for_each(|lens| rig.exchange(lens));
    assert!(bytes(rails, rail) > before, "{name} carries nothing at first");
    softverbs::set_link(&name, false).unwrap();
    // The first exchange ends once the connection has given the rail up.
    rig.exchange(&[3 * MIB + 1]);
    let during = bytes(rails, rail);
    TRAFFIC.iter().for_each(|lens| rig.exchange(lens));
    assert_eq!(bytes(rails, rail), during, "{name} carries data while it is down");
    softverbs::set_link(&name, true).unwrap();
    exchange_until(rig, "the rail does not come back", || bytes(rails, rail) > during + MIB as u64);
    TRAFFIC.iter().for_each(|lens| rig.exchange(lens));
}

#[test]
fn a_rail_comes_back_and_carries_data_again() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        for rail in [0, 1, 0] {
            flap(&mut rig, 2, rail);
        }
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
