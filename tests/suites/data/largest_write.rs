//! Messages that are larger than the largest write of an adapter (`max_msg_sz`).

use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::take_warning;
use mpib_tests::pair::init;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest};
use mpib_tests::{here, isolated};

const DEVICES: (&str, &str) =
    ("SOFTVERBS_DEVICES", "r0:addr=10.0.0.1/24,max_msg=65536;r1:addr=10.0.1.1/24,max_msg=131072");
/// The largest write of r0.
const ONE: usize = 65_536;
/// The largest message of r0: an eighth of a send queue of 128 work requests, less one.
const LONGEST: usize = 15 * ONE;

/// Returns the writes with and without an immediate of one group of messages of these lengths on
/// rail r0, without the CTS write.
fn writes(rig: &mut Rig, lens: &[usize]) -> (u64, u64) {
    let count = || {
        let counters = softverbs::counters();
        let total = &counters.iter().find(|device| device.name == "r0").unwrap().total;
        (total.writes, total.writes_with_imm)
    };
    let before = count();
    rig.exchange(lens);
    let now = count();
    (now.0 - before.0 - 1, now.1 - before.1)
}

//= fused-devices.md: messages above max_msg_sz go in several work requests
//= adapters.md: A15: messages above max_msg_sz go in several writes
#[test]
fn a_message_above_the_largest_write_goes_in_several() {
    isolated(here!(), &[DEVICES], || {
        let ctx = init(table(12));
        let props = table(12).properties(0).1.unwrap();
        assert_eq!((props.max_p2p_bytes, props.max_coll_bytes), (Some(ONE), Some(ONE)));
        let mut rig = Rig::new(table(12), ctx, 0, 8 * LONGEST);
        for (len, expected) in [
            (0, (0, 1)),
            (ONE, (0, 1)),
            (ONE + 1, (2, 1)),
            (200_000, (4, 1)),
            // More than one chain of work requests.
            (12 * ONE, (12, 1)),
            (LONGEST, (15, 1)),
        ] {
            assert_eq!(writes(&mut rig, &[len]), expected, "{len}");
        }
        assert_eq!(writes(&mut rig, &[1, ONE, 2 * ONE + 5, 0]), (1 + 1 + 3, 1));
        // Twice the longest group: the second one needs the send queue of the first.
        (0..2).for_each(|_| assert_eq!(writes(&mut rig, &[LONGEST; 8]), (8 * 15, 1)));
        let from = rig.pair.send_buffer(vec![0; LONGEST + 1]);
        let to = rig.pair.recv_buffer(LONGEST + 1);
        let recv = rig.pair.irecv(&[(to.addr(), LONGEST + 1, 1, to.mr)]);
        assert_eq!(rig.pair.refused(from.addr(), LONGEST + 1, 1, from.mr), InvalidUsage);
        take_warning(&["a send of 983041 bytes: the largest message of these ports is 983040"]);
        let send = rig.pair.isend(from.addr(), LONGEST, 1, from.mr);
        assert_eq!((rig.pair.wait(send)[0], rig.pair.wait(recv)[0]), (LONGEST as i32, LONGEST as i32));
        from.dereg();
        to.dereg();
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Each rail cuts its part at its own largest write.
#[test]
fn each_rail_has_its_own_largest_write() {
    isolated(here!(), &[DEVICES], || {
        let ctx = init(table(12));
        let dev = newest().fuse(&[0, 1]);
        let mut rig = Rig::new(table(12), ctx, dev, 8 << 20);
        for len in [1000, ONE, 2 * ONE, 2 * ONE + 1, 900_000] {
            rig.exchange(&[len]);
            rig.exchange(&[len, 5, 0, len / 3]);
        }
        let r1 = softverbs::counters().into_iter().find(|device| device.name == "r1").unwrap().total;
        assert!(r1.bytes / (r1.writes + r1.writes_with_imm) > ONE as u64 / 8, "{r1:?}");
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
