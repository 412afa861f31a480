//! Shares of plain rails follow the speeds of this end's ports while connections exist.

use mpib_tests::code::Success;
use mpib_tests::log::{LOG, has_logged};
use mpib_tests::pair::until;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, by_the_rule, carried, newest_device};
use mpib_tests::{BY_SPEED, here, isolated};

const RATES: (&str, &str) =
    ("SOFTVERBS_DEVICES", "r0:addr=10.0.0.1/24,rate=40Gb;r1:addr=10.0.1.1/24,rate=40Gb");
const LEN: usize = 4 << 20;

/// Bytes per second of 10 Gb/s.
const TEN: u64 = 1_250_000_000;

/// Waits for a line of the log with all of `parts`.
fn logged(parts: &[&str]) {
    let has = |line: &str| parts.iter().all(|part| line.contains(part));
    until("the line of an event", || LOG.lock().unwrap().iter().any(|(_, l)| has(l)).then_some(()));
}

/// One message goes by these weights.
fn goes_by(rig: &mut Rig, weights: &[u64]) {
    let before = carried(2);
    rig.exchange(&[LEN]);
    let now: Vec<u64> = carried(2).iter().zip(before).map(|(now, then)| now.bytes - then.bytes).collect();
    let expected: Vec<u64> = by_the_rule(&[LEN], weights, 0).iter().map(|rail| rail.bytes).collect();
    assert_eq!(now, expected, "{weights:?}");
}

//= fused-devices.md: shares follow the speeds of this end's ports
//= adapters.md: A16: weights follow the speeds of ports
#[test]
fn a_port_that_becomes_slower_carries_less_of_existing_connections() {
    // With failover a link that goes down costs the rail.
    isolated(here!(), &[RATES, BY_SPEED, ("MPIB_FAILOVER", "0")], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, LEN);
        goes_by(&mut rig, &[1, 1]);
        softverbs::set_rate("r1", TEN).unwrap();
        logged(&["r1: a port's speed changed (IBV_EVENT_DEVICE_SPEED_CHANGE)", "r1:1 now has 10000 Mb/s"]);
        goes_by(&mut rig, &[4, 1]);
        softverbs::set_rate("r1", 2 * TEN).unwrap();
        logged(&["r1:1 now has 20000 Mb/s"]);
        goes_by(&mut rig, &[2, 1]);
        // A link that comes up may have another width. This one has not.
        softverbs::set_link("r0", false).unwrap();
        softverbs::set_link("r0", true).unwrap();
        logged(&["r0:1: the link is up"]);
        goes_by(&mut rig, &[2, 1]);
        assert!(!has_logged("r0:1 now has"));
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= configuration.md: MPIB_RAIL_SPEED
#[test]
fn a_speed_that_is_set_stays() {
    isolated(here!(), &[RATES, BY_SPEED, ("MPIB_RAIL_SPEED", "r1:40000")], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, LEN);
        softverbs::set_rate("r1", TEN).unwrap();
        logged(&["r1: a port's speed changed (IBV_EVENT_DEVICE_SPEED_CHANGE)"]);
        goes_by(&mut rig, &[1, 1]);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
