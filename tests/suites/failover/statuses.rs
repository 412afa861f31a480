//! What a failed completion or a failed post costs.

use mpib_tests::code::Success;
use mpib_tests::log::{assert_warned, take_warnings, warnings};
use mpib_tests::{NO_PINGS, here, isolated};
use nccl_net_mpib::simulation::error::wc_status;
use softverbs::{Call, CompletionStatus, Fault, Only, fail, faults_struck, inject_at};

use super::points::{Ends, env, run_without, two_hosts};
use super::refusals::transfer;
use super::traffic::{Link, Traffic};

/// Statuses of the library, and numbers that no library knows. Without `IBV_WC_WR_FLUSH_ERR`: it
/// follows another failure, which has a completion or an event.
fn statuses() -> impl Iterator<Item = u32> {
    (1..=23).filter(|status| *status != 5).chain([24, 77, 1 << 31])
}

/// Fails one work request of each adapter with each status.
//= failover.md: fault: a completion with `IBV_WC_LOC_LEN_ERR`, `IBV_WC_LOC_PROT_ERR`, `IBV_WC_REM_INV_REQ_ERR` or `IBV_WC_REM_ACCESS_ERR` on a port that works
//= failover.md: four statuses end the connection, all others cost the rail
//= adapters.md: A18: failures of the peer's adapter cost a rail
#[test]
fn every_status_but_four_costs_the_rail_alone() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[NO_PINGS]), || {
        let ends = Ends::two_hosts(12, 2);
        for (status, device) in statuses().flat_map(|status| [(status, "s0"), (status, "r0")]) {
            let pair = ends.connect();
            take_warnings();
            let struck = faults_struck(device).unwrap();
            inject_at(device, Fault::Status(CompletionStatus { status, vendor_err: 0x51 }), 1, Only::ALL)
                .unwrap();
            let codes = transfer(&pair, 30);
            assert_eq!(faults_struck(device).unwrap(), struck + 1);
            let text = format!("status={status} {}, vendor error 0x51", wc_status(status).name);
            match [1, 4, 9, 10].contains(&status) {
                true => {
                    assert!(codes.iter().all(|code| !code.is_success()), "{text} on {device}: {codes:?}");
                    assert_warned(&[&text]);
                }
                false => assert_eq!(codes, [Success; 2], "{text} on {device}: {:?}", take_warnings()),
            }
            pair.close();
        }
    });
}

/// Each post of each kind of queue pair fails once: data, CTS entries, flushes, receives; and both
/// parts of a message.
//= failover.md: a call for the queues of a rail that fails costs the rail
#[test]
fn a_failed_post_costs_the_rail_alone() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[NO_PINGS, ("MPIB_FLUSH", "1")]), || {
        let ends = Ends::two_hosts(12, 2);
        let traffic = Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 30, 8).flushed();
        let posts: [(_, &[_]); 6] = [
            (Call::PostSend, &["s0"]),
            (Call::PostSend, &["s1"]),
            (Call::PostSend, &["s0", "s1"]),
            (Call::PostSend, &["r0"]),
            (Call::PostSend, &["r1"]),
            (Call::PostRecv, &["r0"]),
        ];
        for ((post, devices), after) in posts.into_iter().flat_map(|post| [(post, 0), (post, 2), (post, 5)]) {
            let mut link = Link::new(ends.connect(), &traffic);
            link.run(|| {});
            take_warnings();
            devices.iter().for_each(|device| fail(device, post.fails(libc::EIO).after(after)).unwrap());
            link.run(|| {});
            assert_warned(&["ibv_post_", "Input/output error"]);
            link.close();
        }
    });
}

/// A poll fails once, or from then on at a sender. A receiver that never polls again may not learn of
/// data that its sender has completed.
//= failover.md: fault: a completion queue that cannot be polled (`ibv_poll_cq` fails)
//= failover.md: a completion queue that cannot be polled costs its rail, in one line of the log
#[test]
fn a_failed_poll_costs_the_rail_alone() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[NO_PINGS]), || {
        let ends = Ends::two_hosts(12, 2);
        let traffic = Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 30, 8);
        // What mlx5 and hns, ionic, and irdma return.
        let fails = [(2, "returned -2. "), (libc::EIO, "returned -5. "), (libc::EINVAL, "returned -22. ")];
        let at = [("s0", 1), ("s1", 1), ("r0", 1), ("r1", 1), ("s0", u32::MAX), ("s1", u32::MAX)];
        for ((device, times), (errno, said)) in at.into_iter().flat_map(|at| fails.map(|how| (at, how))) {
            for after in [0, 3] {
                let (mut link, queue_pairs) = (ends.link(&traffic), ends.queue_pairs(&[device]));
                link.run(|| {});
                take_warnings();
                fail(device, Call::PollCq.fails(errno).after(after).times(times)).unwrap();
                link.run(|| {});
                assert_warned(&[
                    "ibv_poll_cq failed: ",
                    device,
                    said,
                    "1 connection carries on over other rails",
                ]);
                let of_the_poll = warnings().iter().filter(|line| line.contains("ibv_poll_cq")).count();
                assert_eq!(of_the_poll, 1, "{:?}", warnings());
                fail(device, Call::PollCq.fails(0).times(0)).unwrap();
                run_without(&mut link, &queue_pairs, std::time::Duration::ZERO);
                link.close();
            }
        }
    });
}

/// A provider that asks to try again soon is no fault: nothing is lost, and no rail.
//= receives.md: receives that a provider puts off are posted later
#[test]
fn a_post_that_is_put_off_costs_nothing() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[NO_PINGS]), || {
        let ends = Ends::two_hosts(12, 2);
        let traffic = Traffic::of(&[&[3000], &[8], &[1000, 0, 77], &[2000; 8]], 40, 16);
        for (post, device) in
            [(Call::PostSend, "s0"), (Call::PostSend, "r0"), (Call::PostRecv, "r0"), (Call::PostRecv, "r1")]
        {
            for after in [0, 1, 7] {
                let mut link = Link::new(ends.connect(), &traffic);
                take_warnings();
                fail(device, post.fails(libc::EAGAIN).after(after).times(5)).unwrap();
                link.run(|| {});
                assert_eq!(take_warnings(), Vec::<String>::new(), "{post:?} on {device} after {after}");
                link.close();
            }
        }
        mpib_tests::pair::assert_no_rnr();
    });
}
