//! Queues that fail at a responder. What its requester sees of that depends on the provider: a NAK,
//! silence, or that it has to wait for a receive.

use mpib_tests::log::{has_logged, take_warnings};
use mpib_tests::pair::until;
use mpib_tests::{has_srq, here, with_and_without_srq};
use softverbs::{CqOf, Fault, Only, QUIRKS_VAR, faults_struck, heal, inject_at};

use super::points::{Ends, Kind, at_once, env, every_point, run_without, two_hosts};
use super::traffic::Traffic;

const FAILURES: [Kind; 4] = [
    at_once(Fault::QpError),
    at_once(Fault::CqError(CqOf::Send)),
    at_once(Fault::CqError(CqOf::Recv)),
    at_once(Fault::SrqError),
];

fn traffic() -> Traffic {
    Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 3)
}

/// Fails the queues of each end at each work request.
fn on(test: &'static str, provider: &str) {
    let devices = two_hosts(2);
    with_and_without_srq(test, &env(&devices, &[(QUIRKS_VAR, provider)]), || {
        every_point(&Ends::two_hosts(12, 2), &traffic(), &FAILURES);
    });
}

//= failover.md: fault: a queue pair, completion queue or shared receive queue that fails, at either end
//= failover.md: a queue that fails costs its rail, and its peer gets a NAK
//= faults.md: 25
#[test]
fn a_queue_fails_and_its_peer_gets_a_nak() {
    on(here!(), "mlx5");
}

//= failover.md: a queue that fails costs its rail, and its peer gets no answer or waits for a receive
#[test]
fn a_queue_fails_and_its_peer_gets_no_answer_or_waits() {
    on(here!(), "rxe");
}

/// The line has the cause and what it costs, not what followed from it.
//= failover.md: the log names the queue of a responder that has failed
#[test]
fn the_log_names_the_queue_that_has_failed() {
    let devices = two_hosts(2);
    with_and_without_srq(here!(), &env(&devices, &[(QUIRKS_VAR, "mlx5")]), || {
        let ends = Ends::two_hosts(12, 2);
        for (fault, cause) in [
            (Fault::QpError, "r0: a queue pair failed (IBV_EVENT_QP_FATAL, QP "),
            (Fault::CqError(CqOf::Recv), "r0: a completion queue failed, or ran over (IBV_EVENT_CQ_ERR)"),
            (Fault::SrqError, "r0: a shared receive queue failed (IBV_EVENT_SRQ_ERR)"),
        ] {
            if fault == Fault::SrqError && !has_srq() {
                continue;
            }
            let (mut link, queue_pairs) = (ends.link(&traffic()), ends.queue_pairs(&["r0"]));
            take_warnings();
            let struck = faults_struck("r0").unwrap();
            inject_at("r0", fault, 1, Only::ALL).unwrap();
            while faults_struck("r0").unwrap() == struck {
                link.run(|| {});
            }
            // A warning, unless the peer has given the rail up before the event is read.
            until("the cause", || has_logged(cause).then_some(()));
            run_without(&mut link, &queue_pairs, std::time::Duration::ZERO);
            link.close();
            heal("r0").unwrap();
        }
    });
}
