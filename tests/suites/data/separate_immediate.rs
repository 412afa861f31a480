//! Adaptive routing: `NCCL_IB_ADAPTIVE_ROUTING`, `NCCL_IB_AR_THRESHOLD`.

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::table::{TABLES, table};
use mpib_tests::vdevices::{Rig, newest_device};
use mpib_tests::{BY_SPEED, NO_PINGS, SPLIT_ALL, here, with_and_without_srq};

const MIB: usize = 1 << 20;
const IB: &str = "r0:link=ib;r1:link=ib";
const ROCE: &str = "r0:addr=10.0.0.1/24;r1:addr=10.0.1.1/24";

/// Writes without and with an immediate, doorbells and bytes of one rail.
type Count = (u64, u64, u64, u64);

fn counts() -> [Count; 2] {
    let counters = softverbs::counters();
    ["r0", "r1"].map(|name| {
        let c = &counters.iter().find(|d| d.name == name).unwrap().total;
        (c.writes, c.writes_with_imm, c.doorbells, c.bytes)
    })
}

fn during(f: impl FnOnce()) -> [Count; 2] {
    let before = counts();
    f();
    let less = |(a, b): (Count, Count)| (a.0 - b.0, a.1 - b.1, a.2 - b.2, a.3 - b.3);
    let [first, second] = counts();
    [less((first, before[0])), less((second, before[1]))]
}

/// One message of each size on a device of two equal rails: which go apart, from how many bytes.
fn apart_above(test: &str, env: &[(&str, &str)], threshold: Option<usize>) {
    with_and_without_srq(test, &[env, &[SPLIT_ALL, BY_SPEED, NO_PINGS]].concat(), || {
        let (ctx, dev) = newest_device(2);
        for table in TABLES {
            let mut rig = Rig::new(
                table,
                if table.version() == 12 { ctx } else { mpib_tests::pair::init(table) },
                dev,
                4 * MIB,
            );
            for len in [0, 1, 100, 8191, 8192, 8193, 65_536, 100_000, MIB, MIB + 1, 4 * MIB, 3 * MIB + 1] {
                let second = len / 2 / 128 * 128;
                let apart = u64::from(threshold.is_some_and(|t| len > t));
                // What the immediate has no room for has a record, and goes apart in any case.
                let record = len >= 2 * MIB && len % 128 != 0;
                let apart = if record { 1 } else { apart };
                let part = |len: usize| (apart, 1, 1, len as u64);
                let mut expected = [part(len - second), if second > 0 { part(second) } else { (0, 0, 0, 0) }];
                // The CTS entry, and the record.
                expected[0].0 += 1;
                expected[0].2 += 1;
                expected[0].3 += 64 + if record { 64 } else { 0 };
                let counted = during(|| rig.exchange(&[len]));
                assert_eq!(counted, expected, "v{}, {len} bytes", table.version());
            }
            // A group goes apart in any case.
            let counted = during(|| rig.exchange(&[100, 100]));
            assert_eq!((counted[0].0, counted[0].1), (2 + 1, 1), "v{}", table.version());
            rig.close();
        }
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

//= configuration.md: NCCL_IB_AR_THRESHOLD
//= configuration.md: NCCL_IB_ADAPTIVE_ROUTING
#[test]
fn infiniband_rails_send_large_data_and_its_immediate_separately() {
    apart_above(here!(), &[("SOFTVERBS_DEVICES", IB)], Some(8192));
}

#[test]
fn roce_rails_send_them_together() {
    apart_above(here!(), &[("SOFTVERBS_DEVICES", ROCE)], None);
}

#[test]
fn roce_rails_send_them_separately_if_configured() {
    let env =
        [("SOFTVERBS_DEVICES", ROCE), ("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "65536")];
    apart_above(here!(), &env, Some(65_536));
}

#[test]
fn infiniband_rails_send_them_together_if_configured() {
    apart_above(here!(), &[("SOFTVERBS_DEVICES", IB), ("NCCL_IB_ADAPTIVE_ROUTING", "0")], None);
}

#[test]
fn the_default_may_be_written() {
    let env = [("SOFTVERBS_DEVICES", IB), ("NCCL_IB_ADAPTIVE_ROUTING", "-2"), ("NCCL_IB_AR_THRESHOLD", "-2")];
    apart_above(here!(), &env, Some(8192));
}
