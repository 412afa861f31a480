//! Receives in a shared receive queue, and in a queue of each queue pair where the adapter has no
//! shared ones. Most tests of this suite run in both forms; these are about the difference.

use mpib_proto::ImmLayout;
use mpib_tests::code::{Code, RemoteError, Success, SystemError};
use mpib_tests::log::{LOG, take_warnings, warnings};
use mpib_tests::pair::{Buffer, Pair, assert_no_rnr, connect, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer, recv, send, to_peer, wait};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{has_srq, here, isolated, misbehaving_peer, mpib, provider, with_and_without_srq};
use softverbs::Capability;

/// Two hosts, each with and without shared receive queues.
const HOSTS: [[&str; 2]; 2] = [
    ["soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16"],
    [
        "soft0:addr=10.1.0.1/16,without=srq;soft1:addr=10.2.0.1/16,without=srq",
        "soft0:addr=10.1.0.2/16,without=srq;soft1:addr=10.2.0.2/16,without=srq",
    ],
];

/// Moves messages both ways between this host and another. More than fill any receive queue.
fn both_ways(other: &str) {
    let (table, ctx) = (newest(), init(newest()));
    let mut peer = Peer::start_with(&[("SOFTVERBS_DEVICES", other)]);
    let (sender, receiver) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
    for n in 0..700 {
        let len = [1, 8, 4096, 100_000][n % 4];
        let from = Buffer::new(table, sender, pattern(len, n as u64));
        peer.say(&format!("recv {len} {n}"));
        assert_eq!(wait(table, send(table, sender, &from, len)), len);
        assert_eq!(peer.answer(), "ok");
        from.dereg();
        let to = Buffer::new(table, receiver, vec![0; len]);
        let request = recv(table, receiver, &to, len);
        peer.must(&format!("send {len} {n}"));
        assert_eq!(wait(table, request), len);
        assert!(to.bytes == pattern(len, n as u64), "{len} bytes differ");
        to.dereg();
    }
    assert_no_rnr();
    peer.must("no-rnr");
    peer.must("close");
    assert_eq!((table.close_send(sender), table.close_recv(receiver)), (Success, Success));
    peer.finish();
    assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
}

//= receives.md: each end chooses its receive queues without the other
//= adapters.md: A2: adapters without shared receive queues work
#[test]
fn an_end_with_shared_queues_meets_one_without() {
    let env = mpib("512", &[("SOFTVERBS_DEVICES", HOSTS[0][0])]);
    isolated(here!(), &env, || both_ways(HOSTS[1][1]));
}

//= receives.md: each end chooses its receive queues without the other
#[test]
fn an_end_without_shared_queues_meets_one_with_them() {
    let env = mpib("512", &[("SOFTVERBS_DEVICES", HOSTS[1][0])]);
    isolated(here!(), &env, || both_ways(HOSTS[0][1]));
}

//= receives.md: each end chooses its receive queues without the other
#[test]
fn rails_with_and_without_shared_queues_carry_one_message() {
    let mixed = [
        "soft0:addr=10.1.0.1/16,without=srq;soft1:addr=10.2.0.1/16",
        "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16,without=srq",
    ];
    isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", mixed[0])]), || both_ways(mixed[1]));
}

/// Returns what the log of init and connections contains on receive queues.
fn choices() -> Vec<String> {
    let log = LOG.lock().unwrap();
    log.iter().filter(|(_, line)| line.contains("receive queue")).map(|(_, line)| line.clone()).collect()
}

/// One adapter with shared queues, one that reports none, and one that cannot create those that it
/// reports.
//= receives.md: the log names the form once for each adapter
#[test]
fn the_log_names_the_receive_queues_of_each_adapter_once() {
    let devices = "a:addr=10.0.0.1/24,max_srq_wr=101;b:addr=10.0.1.1/24,without=srq;c:addr=10.0.2.1/24,without=srq_calls";
    let env = [("SOFTVERBS_DEVICES", devices), ("NCCL_IB_QPS_PER_CONNECTION", "3")];
    isolated(here!(), &env, || {
        if !softverbs::devices()[0].has(Capability::Srq) {
            return;
        }
        let (table, ctx) = (newest(), init(newest()));
        for dev in [0, 1, 2, 0, 1, 2] {
            let pair = connect(table, ctx, dev);
            (0..400).for_each(|n| pair.message(1000, 1000, n));
            pair.close();
        }
        let lines = choices();
        let [a, b, c] = &lines[..] else { panic!("{lines:?}") };
        let shared = "shared receive queues on a: the queue pairs of a rail receive from one (100 entries)";
        assert!(a.contains(shared), "{a}");
        let own = "each queue pair receives from its own (44 entries)";
        for (line, why) in [
            (b, "no shared receive queues on b (max_srq of ibv_devinfo -v is 0): "),
            (c, "no shared receive queues on c (ibv_create_srq: Operation not supported (os error 95)): "),
        ] {
            assert!(line.contains(why) && line.contains(own), "{line}");
        }
        assert_no_rnr();
        assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
    });
}

/// Adapters that take receives in a shared queue, and fail when an immediate consumes one. The probe
/// of the first connection shows that.
//= receives.md: shared queues that fail are replaced by those of the queue pairs
//= protocol.md: PROBED: a failed shared receive queue repeats the attempt
#[test]
fn shared_queues_that_fail_are_replaced_by_those_of_the_queue_pairs() {
    let faults = ("SOFTVERBS_FAULTS", "soft0:recv_status=2,vendor=0x88;soft1:recv_status=2");
    isolated(here!(), &mpib("512", &[faults, ("MPIB_STRICT", "1")]), || {
        if !has_srq() {
            return;
        }
        let (table, ctx) = (newest(), init(newest()));
        let pair = connect(table, ctx, 0);
        let warned = take_warnings();
        for (adapter, vendor) in [("soft0", "0x88"), ("soft1", "0x0")] {
            let why = format!("status=2 IBV_WC_LOC_QP_OP_ERR, vendor error {vendor}");
            let text = format!("a receive in a shared receive queue of {adapter} failed ({why})");
            assert!(warned.iter().any(|line| line.contains(&text)), "{warned:?}");
        }
        assert_eq!(warned.len(), 2, "{warned:?}");
        (0..300).for_each(|n| pair.message(100_000, 100_000, n));
        let sent = |device: &softverbs::DeviceCounters| device.total.bytes;
        assert!(
            softverbs::counters().iter().map(sent).all(|bytes| bytes > 10_000_000),
            "both rails carry data"
        );
        pair.close();
        // What a connection has seen, the next one knows.
        let pair = connect(table, ctx, 0);
        pair.message(100_000, 100_000, 1);
        pair.close();
        assert_no_rnr();
        assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
    });
}

/// All slots are in use again and again, and queue pairs have few of them or many.
//= receives.md: slots and receive queues hold with a late sender
//= adapters.md: A2: adapters without shared receive queues work
#[test]
fn every_slot_finds_a_receive_on_any_number_of_queue_pairs() {
    for qps in ["1", "3", "16", "128"] {
        let env = [("NCCL_IB_QPS_PER_CONNECTION", qps), ("TEST_QPS", qps)];
        with_and_without_srq(here!(), &env, || {
            if std::env::var("TEST_QPS").unwrap() != qps {
                return;
            }
            let pair = Pair::new(newest());
            let (to, from) = (pair.recv_buffer(64 * 64), pair.send_buffer(pattern(64 * 64, 9)));
            for _ in 0..20 {
                let recvs: Vec<_> =
                    (0..64).map(|i| pair.irecv(&[(to.addr() + 64 * i, 64, i as i32, to.mr)])).collect();
                let sends: Vec<_> =
                    (0..64).map(|i| pair.isend(from.addr() + 64 * i, 64, i as i32, from.mr)).collect();
                for request in sends.into_iter().chain(recvs) {
                    assert_eq!(pair.wait(request)[0], 64);
                }
                assert!(to.bytes == from.bytes);
            }
            assert_no_rnr();
            to.dereg();
            from.dereg();
            pair.close();
        });
    }
}

/// Tests a receive until it fails with this code; the last warning.
fn failure(request: Ptr, expected: Code) -> String {
    let code = until("a failure", || Some(newest().test(request).0).filter(|rc| *rc != Success));
    assert_eq!(code, expected);
    warnings().pop().unwrap()
}

/// The peer tries to read, and the queue pair fails. Without shared queues its receives are
/// flushed, which does not hide the cause.
//= receives.md: flushed receives do not hide the cause of a failure
#[test]
fn a_failed_queue_pair_is_reported_with_its_cause() {
    with_and_without_srq(here!(), &mpib("512", &[("MPIB_FAILOVER", "0")]), || {
        let (comm, liar) = misbehaving_peer::receiver(init(newest()));
        let to = Buffer::new(newest(), comm, vec![0; 1000]);
        let request = recv(newest(), comm, &to, 1000);
        // IBV_WC_REM_INV_REQ_ERR. erdma has only IBV_WC_GENERAL_ERR.
        assert_eq!(liar.read(1), if provider() == "erdma" { 21 } else { 9 });
        let said = failure(request, SystemError);
        assert!(said.contains("IBV_EVENT_QP_") && !said.contains("WR_FLUSH_ERR"), "{said}");
        to.dereg();
        assert_eq!(newest().close_recv(comm), Success);
    });
}

/// An immediate on another queue pair than its slot's uses up a receive there. With a shared queue
/// that is as good as any.
//= protocol.md: an immediate arrives on its slot's queue pair
#[test]
fn an_immediate_on_the_wrong_queue_pair_is_an_error_without_shared_queues() {
    let without =
        ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,without=srq;soft1:addr=10.2.0.1/16,without=srq");
    isolated(here!(), &mpib("512", &[without]), || {
        let (comm, liar) = misbehaving_peer::receiver(init(newest()));
        let to = Buffer::new(newest(), comm, vec![0; 1000]);
        let layout = ImmLayout::new(2).unwrap();
        // The first receive has slot 1, and SOUT two queue pairs.
        let request = recv(newest(), comm, &to, 1000);
        liar.signal_on(0, 1, layout.encode(1, 1, layout.size(9)));
        assert_eq!(wait(newest(), request), 9);
        let request = recv(newest(), comm, &to, 1000);
        liar.signal_on(0, 1, layout.encode(2, 1, layout.size(9)));
        let said = failure(request, RemoteError);
        assert!(said.contains("data for slot 2 arrived on a queue pair that does not carry it"), "{said}");
        to.dereg();
        assert_eq!(newest().close_recv(comm), Success);
    });
}
