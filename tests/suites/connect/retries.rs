//! Failed changes of queue pairs are retried within a part of the handshake's time, without a call
//! that waits. A rail that uses up its retries is dropped.

use std::time::Duration;

use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{LOG, take_warnings};
use mpib_tests::pair::{connect, init, until};
use mpib_tests::table::{Ptr, newest, table};
use mpib_tests::vdevices::{Rig, by_the_rule, carried, newest_device, rails, speeds};
use mpib_tests::{here, isolated};
use softverbs::Call;

const MIB: usize = 1 << 20;

/// Of three rails the second has a peer whose address the kernel never finds, and waits for it each
/// time.
fn one_is_dead(test: &str, more: &[(&str, &str)], body: impl FnOnce()) {
    let (devices, speed) = (rails(3, 1), speeds(&[100_000; 3]));
    let mut env = vec![
        ("SOFTVERBS_DEVICES", devices.as_str()),
        ("MPIB_RAIL_SPEED", speed.as_str()),
        ("MPIB_CONNECT_TIMEOUT_MS", "4000"),
        ("NCCL_IB_MQP_RETRY_CNT", "1000"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1"),
    ];
    env.extend_from_slice(more);
    isolated(test, &env, || {
        let slow = Call::ModifyRtr.fails(libc::ETIMEDOUT).times(u32::MAX).takes(Duration::from_millis(50));
        softverbs::fail("r1", slow).unwrap();
        body();
    });
}

fn logged(part: &str) -> Vec<String> {
    let log = LOG.lock().unwrap();
    log.iter().map(|(_, text)| text.clone()).filter(|text| text.contains(part)).collect()
}

/// The others make the connection, and the warning says why this one is missing.
//= faults.md: 15: a rail is dead at connect: it is dropped with a warning; an error with MPIB_STRICT=1
//= protocol.md: a dead rail does not use up the handshake's time
//= configuration.md: NCCL_IB_MQP_RETRY_SLEEP_MSEC
#[test]
fn a_rail_that_stays_dead_is_dropped_in_time() {
    one_is_dead(here!(), &[], || {
        let (ctx, dev) = newest_device(3);
        let mut rig = Rig::new(table(12), ctx, dev, MIB);
        let tries = logged("ibv_modify_qp failed").len();
        // Each failure takes 50 ms, and each wait is longer than the one before by 1 ms; all of an
        // end's take no more than 2 s.
        assert!((1..=60).contains(&tries), "{tries} more tries");
        // A long message is several lines.
        let said = take_warnings().join(" ").replace(" … NET/MPIB : …", "");
        for part in [
            "rails that do not work",
            "r1:1",
            "ibv_modify_qp failed",
            "ETIMEDOUT",
            "tried no longer than half of MPIB_CONNECT_TIMEOUT_MS allows",
            "goes on with r0:1, r2:1 alone",
        ] {
            assert!(said.matches(part).count() >= 2, "each end was to say {part:?}: {said:?}");
        }
        assert_eq!(said.matches("NET/MPIB").count(), 2, "{said:?}");
        let before: Vec<u64> = carried(3).iter().map(|c| c.bytes).collect();
        rig.exchange(&[MIB]);
        let moved: Vec<u64> = carried(3).iter().zip(before).map(|(c, b)| c.bytes - b).collect();
        let expected: Vec<u64> = by_the_rule(&[MIB], &[100, 0, 100], 0).iter().map(|c| c.bytes).collect();
        assert_eq!(moved, expected);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= faults.md: 15
//= protocol.md: a dead rail does not use up the handshake's time
#[test]
fn a_rail_that_stays_dead_fails_a_strict_connect() {
    one_is_dead(here!(), &[("MPIB_STRICT", "1")], || {
        let (ctx, dev) = newest_device(3);
        let mut handle = [0; 128];
        let (rc, listen) = table(12).listen(ctx, dev, &mut handle);
        assert_eq!(rc, Success);
        let code = until("connect to fail", || {
            let _ = table(12).accept(listen);
            Some(table(12).connect(ctx, dev, &mut handle).0).filter(|rc| *rc != Success)
        });
        assert_eq!(code, InvalidUsage);
        let said = take_warnings().join(" ").replace(" … NET/MPIB : …", "");
        for part in ["connect: ", "r1:1", "ETIMEDOUT", "(MPIB_STRICT=1)"] {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
        assert_eq!((table(12).close_listen(listen), table(12).finalize(ctx)), (Success, Success));
    });
}

/// One connection waits a minute for its next try; another is made meanwhile by the same thread.
//= faults.md: 60
//= protocol.md: a dead rail does not use up the handshake's time
#[test]
fn a_try_that_is_due_later_keeps_nobody_waiting() {
    let env = [("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "60000"), ("MPIB_CONNECT_TIMEOUT_MS", "3600000")];
    isolated(here!(), &mpib_tests::mpib("512", &env), || {
        let ctx = init(newest());
        let mut handle = [0; 128];
        let (rc, listen) = newest().listen(ctx, 0, &mut handle);
        assert_eq!(rc, Success);
        softverbs::fail("soft0", Call::ModifyRtr.fails(libc::ETIMEDOUT)).unwrap();
        let none_yet = |handle: &mut [u8; 128]| {
            assert_eq!(newest().accept(listen), (Success, Ptr::default()));
            assert_eq!(newest().connect(ctx, 0, handle), (Success, Ptr::default()));
        };
        until("the first try to fail", || {
            none_yet(&mut handle);
            logged("try 1 of 34 follows in 60s").first().cloned()
        });
        let pair = connect(newest(), ctx, 0);
        pair.message(5000, 5000, 1);
        pair.close();
        // It is as far as before, however often it is asked.
        (0..1000).for_each(|_| none_yet(&mut handle));
        assert_eq!((newest().close_listen(listen), newest().finalize(ctx)), (Success, Success));
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}
