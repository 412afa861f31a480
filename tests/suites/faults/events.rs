//! Asynchronous events of adapters, which softverbs raises on command: each is logged once and
//! counted, and ends the connections that it concerns.

use mpib_tests::code::{Success, SystemError};
use mpib_tests::holdings::threads;
use mpib_tests::log::{LOG, take_warning, take_warnings, without_code};
use mpib_tests::pair::{Pair, connect, init, until};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};
use nccl_net_mpib_agent_iface::stats::{Event, pages_of};
use softverbs::{EventTarget, raise_event};

/// Without failover, an event that costs a rail ends the connection.
const ALONE: (&str, &str) = ("MPIB_FAILOVER", "0");

const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const QP_REQ_ERR: u32 = 2;
const QP_ACCESS_ERR: u32 = 3;
const COMM_EST: u32 = 4;
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PKEY_CHANGE: u32 = 12;
const SRQ_ERR: u32 = 14;
const CLIENT_REREGISTER: u32 = 17;
const GID_CHANGE: u32 = 18;

/// Returns how often each kind of event was counted.
fn counted() -> [u64; 6] {
    let pages = pages_of(std::process::id()).unwrap();
    pages[0].summary().events
}

/// Waits until `events` events are counted and logged, and returns all lines of the log. The plugin
/// logs an event after it has counted the event.
fn log(events: u64) -> Vec<String> {
    until("the events", || (counted().iter().sum::<u64>() >= events).then_some(()));
    until("their lines", || {
        let lines: Vec<String> = LOG.lock().unwrap().iter().map(|(_, text)| text.clone()).collect();
        let reported = lines.iter().filter(|l| l.contains("IBV_EVENT_") && !l.contains("is over")).count();
        (reported as u64 >= events).then_some(lines)
    })
}

/// Device and number of a queue pair.
type QueuePair = (&'static str, u32);

/// Returns the queue pairs that were made since the last call.
fn made(known: &mut Vec<QueuePair>) -> Vec<QueuePair> {
    let all: Vec<_> = softverbs::qp_attributes().iter().map(|qp| (qp.device, qp.qpn)).collect();
    let new = all.iter().copied().filter(|qp| !known.contains(qp)).collect();
    *known = all;
    new
}

/// Calls both ends until an event has failed one end, and the other end has learned of the failure.
fn ended(pair: &Pair) {
    let to = pair.recv_buffer(100);
    let mut codes = [Success; 2];
    until("both ends to fail", || {
        codes[0] = if codes[0] == Success {
            pair.table.isend(pair.send, to.addr(), 0, 1, Default::default()).0
        } else {
            codes[0]
        };
        codes[1] = if codes[1] == Success {
            pair.table.irecv(pair.recv, &[(to.addr(), 100, 1, to.mr)]).0
        } else {
            codes[1]
        };
        codes.contains(&SystemError).then_some(())
    });
    to.dereg();
}

/// The event of one connection's queue ends that one; the other, on the same adapters, goes on.
fn ends_one(kind: u32, words: &'static str) {
    let table = newest();
    let ctx = init(table);
    let mut known = Vec::new();
    let first = connect(table, ctx, 0);
    let queues = made(&mut known);
    let second = connect(table, ctx, 0);
    first.message(5000, 5000, 1);
    second.message(5000, 5000, 2);
    LOG.lock().unwrap().clear();
    // A sender's queue pairs have no SRQ, and raise none of its events.
    assert!(queues.into_iter().any(|(device, qpn)| raise_event(kind, EventTarget::Qp(device, qpn)).is_ok()));
    let lines = log(1);
    let reported: Vec<_> = lines.iter().filter(|l| l.contains(words)).collect();
    assert!(reported.len() == 1 && reported[0].contains("; it ends the connection with "), "{lines:?}");
    ended(&first);
    let said: Vec<_> = take_warnings()
        .into_iter()
        .filter(|l| {
            l.contains("is over, since an adapter reported: soft") && !l.contains("gave the connection up")
        })
        .collect();
    assert!(said.len() == 1 && said[0].contains(words), "once: {said:?}");
    (0..20).for_each(|i| second.message(5000, 5000, i));
    first.close();
    second.close();
    assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
}

//= faults.md: 25: a queue fails: its connection fails by name, no other does
//= configuration.md: NCCL_IB_RETURN_ASYNC_EVENTS
#[test]
fn a_fatal_event_ends_the_connections_that_it_concerns_and_no_others() {
    for (kind, words) in [
        (QP_FATAL, "a queue pair failed (IBV_EVENT_QP_FATAL, QP "),
        (QP_REQ_ERR, "IBV_EVENT_QP_REQ_ERR, QP "),
        (QP_ACCESS_ERR, "IBV_EVENT_QP_ACCESS_ERR, QP "),
        (CQ_ERR, "a completion queue failed, or ran over (IBV_EVENT_CQ_ERR)"),
    ] {
        let kind_of_child = kind.to_string();
        isolated(here!(), &mpib("512", &[("TEST_KIND", &kind_of_child), ALONE]), || {
            if std::env::var("TEST_KIND").unwrap() == kind.to_string() {
                ends_one(kind, words);
            }
        });
    }
}

//= faults.md: 25
#[test]
fn a_failed_receive_queue_ends_the_connection_that_receives_from_it() {
    isolated(here!(), &mpib("512", &[ALONE]), || {
        ends_one(SRQ_ERR, "a shared receive queue failed (IBV_EVENT_SRQ_ERR)");
    });
}

//= faults.md: 26: an adapter fails: its rails fail over, or its connections end by name
#[test]
fn a_failed_adapter_ends_every_connection_on_it_and_none_on_others() {
    isolated(here!(), &[ALONE], || {
        let table = newest();
        let ctx = init(table);
        let lost: Vec<_> = (0..3).map(|_| connect(table, ctx, 0)).collect();
        let left = connect(table, ctx, 1);
        LOG.lock().unwrap().clear();
        raise_event(DEVICE_FATAL, EventTarget::Device("soft0")).unwrap();
        let lines = log(1);
        let reported: Vec<_> = lines.iter().filter(|l| l.contains("IBV_EVENT_DEVICE_FATAL")).collect();
        // Three connections have six ends.
        assert!(
            reported.len() == 1
                && reported[0].contains("soft0: the adapter failed, or was removed")
                && without_code(reported[0]).ends_with(" and 2 more"),
            "{lines:?}"
        );
        lost.iter().for_each(ended);
        left.message(5000, 5000, 1);
        assert_eq!(counted()[usize::from(Event::Device.code())], 1);
        lost.into_iter().for_each(Pair::close);
        left.close();
        assert_eq!(table.finalize(ctx), Success);
    });
}

#[test]
fn a_fatal_event_is_only_logged_if_configured() {
    isolated(here!(), &mpib("512", &[("NCCL_IB_RETURN_ASYNC_EVENTS", "0"), ALONE]), || {
        let pair = Pair::new(newest());
        for qp in softverbs::qp_attributes() {
            raise_event(QP_FATAL, EventTarget::Qp(qp.device, qp.qpn)).unwrap();
        }
        raise_event(DEVICE_FATAL, EventTarget::Device("soft1")).unwrap();
        let qps = softverbs::qp_attributes().len() as u64;
        let lines = log(qps + 1);
        assert!(lines.iter().any(|l| l.contains("; it concerns the connection with ")), "{lines:?}");
        (0..20).for_each(|i| pair.message(5000, 5000, i));
        let [queue, device] = [Event::Queue, Event::Device].map(|event| counted()[usize::from(event.code())]);
        assert_eq!((queue, device), (qps, 1));
        pair.close();
    });
}

/// An event that is no failure is logged with the connections that it concerns, and ends none.
//= faults.md: 18: ports report events: each is logged and counted once, connections stay
#[test]
fn events_of_ports_are_logged_once_and_counted_by_kind() {
    isolated(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        LOG.lock().unwrap().clear();
        softverbs::set_link("soft1", false).unwrap();
        log(1);
        softverbs::set_link("soft1", true).unwrap();
        log(2);
        for (n, kind) in (3..).zip([GID_CHANGE, PKEY_CHANGE, CLIENT_REREGISTER]) {
            raise_event(kind, EventTarget::Device("soft0")).unwrap();
            log(n);
        }
        // Events of a queue pair's normal life are not logged. Another event shows that it has
        // passed.
        let qp = softverbs::qp_attributes()[0];
        raise_event(COMM_EST, EventTarget::Qp(qp.device, qp.qpn)).unwrap();
        raise_event(PORT_ACTIVE, EventTarget::Device("soft0")).unwrap();
        let lines: Vec<String> = log(6).into_iter().filter(|l| l.contains("IBV_EVENT_")).collect();
        let words = [
            "soft1:1: the link went down (IBV_EVENT_PORT_ERR); it concerns the connection with ",
            "soft1:1: the link is up (IBV_EVENT_PORT_ACTIVE)",
            "soft0:1: the GID table changed (IBV_EVENT_GID_CHANGE); it concerns ",
            "soft0:1: the P_Key table changed (IBV_EVENT_PKEY_CHANGE); it concerns ",
            "soft0:1: the subnet manager asks for new registrations (IBV_EVENT_CLIENT_REREGISTER); it concerns ",
            "soft0:1: the link is up (IBV_EVENT_PORT_ACTIVE); it concerns ",
        ];
        assert!(lines.len() == 6 && lines.iter().zip(words).all(|(l, w)| l.contains(w)), "{lines:?}");
        // Down, up, tables, queues, adapters, others.
        assert_eq!(counted(), [1, 2, 2, 0, 0, 1]);
        take_warning(&["went down"]);
        (0..20).for_each(|i| pair.message(5000, 5000, i));
        pair.close();
    });
}

/// Threads of this process that wait for events.
fn watching() -> usize {
    threads().iter().filter(|name| *name == "mpib-events").count()
}

/// So many do, or soon will: a thread gives itself its name, and leaves the list a moment after it
/// was joined.
fn watched_by(threads: usize) {
    until("the threads", || (watching() == threads).then_some(()));
}

#[test]
fn one_thread_watches_from_the_first_init_to_the_last_finalize() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        watched_by(0);
        let (first, second) = (init(table), init(table));
        watched_by(1);
        let pair = connect(table, first, 0);
        assert_eq!(table.finalize(second), Success);
        watched_by(1);
        raise_event(GID_CHANGE, EventTarget::Device("soft0")).unwrap();
        log(1);
        pair.close();
        assert_eq!(table.finalize(first), Success);
        watched_by(0);
        // The next watcher logs an event that came while nobody watched.
        raise_event(GID_CHANGE, EventTarget::Device("soft0")).unwrap();
        let third = init(table);
        watched_by(1);
        log(2);
        assert_eq!(table.finalize(third), Success);
        watched_by(0);
    });
}
