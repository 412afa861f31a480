//! Modes and islands: which rails get queue pairs, which carry data and CTS writes, and which
//! settings both ends must share. A second process with other addresses plays another host.

use mpib_proto::Message;
use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{take_warnings, warnings};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, Misbehaviour};
use mpib_tests::pair::{Buffer, Pair, connect, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer, recv, send, to_peer, wait};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{SPLIT_ALL, TWO_RAILS, here, set, two_adapters, with_and_without_srq};
use softverbs::QpCounters;

/// This host and two others: one of this island, one of another.
const HERE: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16");
const NEAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16");
const FAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.1.3/16;soft1:addr=10.2.1.3/16");
/// Another host whose SOUT cannot be reached from here, since it is no RoCE port.
const NO_SOUT: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:link=ib;soft1:addr=10.2.1.4/16");

/// Another island's host whose SOUT is on a network that does not reach this one's.
const CUT_OFF: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.9.1.3/24;soft1:addr=10.2.1.3/16");

fn host(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&TWO_RAILS[..], &[HERE], more].concat()
}

/// Per rail, of this process: queue pairs ever made, writes with an immediate, other writes,
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    qps: usize,
    signals: u64,
    writes: u64,
    bytes: u64,
}

const NOTHING: Count = Count { qps: 0, signals: 0, writes: 0, bytes: 0 };

/// Queue pairs of each rail, in order of making, SOUT first.
fn qps() -> [Vec<QpCounters>; 2] {
    let counters = softverbs::counters();
    ["soft0", "soft1"].map(|name| counters.iter().find(|d| d.name == name).unwrap().qps.clone())
}

fn during<T>(f: impl FnOnce() -> T) -> ([Count; 2], T) {
    let now = || {
        qps().map(|qps| {
            let sum = |f: fn(&QpCounters) -> u64| qps.iter().map(f).sum();
            Count {
                qps: qps.len(),
                signals: sum(|q| q.counters.writes_with_imm),
                writes: sum(|q| q.counters.writes),
                bytes: sum(|q| q.counters.bytes),
            }
        })
    };
    let before = now();
    let value = f();
    let after = now();
    let less = |i: usize| Count {
        qps: after[i].qps - before[i].qps,
        signals: after[i].signals - before[i].signals,
        writes: after[i].writes - before[i].writes,
        bytes: after[i].bytes - before[i].bytes,
    };
    ([less(0), less(1)], value)
}

/// One message to the peer's latest comm, checked there.
fn to(peer: &mut Peer, comm: Ptr, len: usize) {
    let from = Buffer::new(newest(), comm, pattern(len, 5));
    peer.say(&format!("recv {len} 5"));
    assert_eq!(wait(newest(), send(newest(), comm, &from, len)), len);
    assert_eq!(peer.answer(), "ok");
    from.dereg();
}

/// One message from the peer's first comm, checked here.
fn from(peer: &mut Peer, comm: Ptr, len: usize) {
    let to = Buffer::new(newest(), comm, vec![0; len]);
    let request = recv(newest(), comm, &to, len);
    peer.must(&format!("send {len} 6"));
    assert_eq!(wait(newest(), request), len);
    assert!(to.bytes == pattern(len, 6), "{len} bytes differ");
    to.dereg();
}

/// What this host did for a connection each way to `other`: queue pairs of both rails, as a sender and
/// as a receiver, data that it sent, and CTS writes for what it received.
struct Expected {
    qps: [[usize; 2]; 2],
    data: usize,
    cts: usize,
}

fn with_other_host(other: (&str, &str), expected: &Expected) {
    let table = newest();
    let ctx = init(table);
    let mut peer = Peer::start_with(&[other]);
    let (made, sender) = during(|| to_peer(table, ctx, &mut peer));
    assert_eq!(made.map(|c| c.qps), expected.qps[0], "queue pairs of a sender");
    let (made, receiver) = during(|| from_peer(table, ctx, &mut peer));
    assert_eq!(made.map(|c| c.qps), expected.qps[1], "queue pairs of a receiver");
    for len in [1, 4096, 1 << 20] {
        let (counted, ()) = during(|| to(&mut peer, sender, len));
        let mut rails = [NOTHING; 2];
        rails[expected.data] = Count { signals: 1, bytes: len as u64, ..NOTHING };
        assert_eq!(counted, rails, "{len} bytes sent");
        let (counted, ()) = during(|| from(&mut peer, receiver, len));
        let mut rails = [NOTHING; 2];
        rails[expected.cts] = Count { writes: 1, bytes: 64, ..NOTHING };
        assert_eq!(counted, rails, "{len} bytes received");
    }
    peer.must("close");
    assert_eq!((table.close_send(sender), table.close_recv(receiver)), (Success, Success));
    peer.finish();
}

//= mpib.md: vanilla, intra-island: all data on SUP
#[test]
fn vanilla_within_an_island_is_all_on_sup() {
    with_and_without_srq(here!(), &host(&[]), || {
        with_other_host(NEAR, &Expected { qps: [[2, 4]; 2], data: 1, cts: 1 });
        assert!(take_warnings().is_empty());
    });
}

//= mpib.md: vanilla, intra-island, without failover: no queue pair on SOUT
#[test]
fn vanilla_without_failover_has_no_queue_pair_on_sout() {
    with_and_without_srq(here!(), &host(&[("MPIB_FAILOVER", "0")]), || {
        with_other_host(NEAR, &Expected { qps: [[0, 4]; 2], data: 1, cts: 1 });
        assert!(take_warnings().is_empty());
    });
}

//= mpib.md: vanilla, inter-island: all data on SOUT, no queue pair on SUP
#[test]
fn vanilla_between_islands_has_no_queue_pair_on_sup() {
    with_and_without_srq(here!(), &host(&[]), || {
        with_other_host(FAR, &Expected { qps: [[2, 0]; 2], data: 0, cts: 0 });
        assert!(take_warnings().is_empty());
    });
}

//= mpib.md: the island is the prefix of both SOUT addresses
//= configuration.md: MPIB_ISLAND_PREFIX_LEN
#[test]
fn the_prefix_length_draws_the_islands() {
    with_and_without_srq(here!(), &host(&[("MPIB_ISLAND_PREFIX_LEN", "23")]), || {
        with_other_host(FAR, &Expected { qps: [[2, 4]; 2], data: 1, cts: 1 });
    });
}

#[test]
fn a_prefix_of_32_makes_each_host_an_island() {
    with_and_without_srq(here!(), &host(&[("MPIB_ISLAND_PREFIX_LEN", "32")]), || {
        with_other_host(NEAR, &Expected { qps: [[2, 0]; 2], data: 0, cts: 0 });
    });
}

//= mpib.md: one process has connections of both classes
#[test]
fn one_process_has_connections_of_both_classes() {
    with_and_without_srq(here!(), &host(&[]), || {
        let pair = Pair::new(newest());
        let (counted, ()) = during(|| pair.message(5000, 5000, 1));
        assert_eq!(counted, [NOTHING, Count { signals: 1, writes: 1, bytes: 5064, ..NOTHING }]);
        with_other_host(FAR, &Expected { qps: [[2, 0]; 2], data: 0, cts: 0 });
        let (counted, ()) = during(|| pair.message(5000, 5000, 2));
        assert_eq!(counted, [NOTHING, Count { signals: 1, writes: 1, bytes: 5064, ..NOTHING }]);
        pair.close();
    });
}

/// Without a hint all data is on SOUT with `MPIB_SPLIT=share`, and SUP is ready for it.
//= mpib.md: advanced: both rails are joined, the hint splits each transfer
//= configuration.md: MPIB_MODE
#[test]
fn advanced_joins_both_rails_in_either_class() {
    with_and_without_srq(
        here!(),
        &host(&[("MPIB_MODE", "1"), ("MPIB_SPLIT", "share"), ("MPIB_SOUT_QP", "3"), ("MPIB_SUP_QP", "1")]),
        || {
            for other in [NEAR, FAR] {
                with_other_host(other, &Expected { qps: [[3, 1]; 2], data: 0, cts: 0 });
            }
            // The log says that no agent runs here, and nothing else.
            let others: Vec<_> = take_warnings().into_iter().filter(|w| !w.contains("agent")).collect();
            assert!(others.is_empty(), "{others:?}");
        },
    );
}

//= mpib.md: MPIB_SUP_SHARE joins both rails in either mode
#[test]
fn a_fixed_share_joins_both_rails_in_either_class() {
    with_and_without_srq(here!(), &host(&[("MPIB_SUP_SHARE", "1024")]), || {
        for other in [NEAR, FAR] {
            with_other_host(other, &Expected { qps: [[2, 4]; 2], data: 1, cts: 0 });
        }
    });
}

//= mpib.md: an empty message uses SOUT where SOUT may carry data
#[test]
fn an_empty_message_keeps_to_the_rail_of_its_class() {
    with_and_without_srq(here!(), &host(&[]), || {
        let pair = Pair::new(newest());
        let (counted, ()) = during(|| pair.message(0, 100, 1));
        assert_eq!(counted, [NOTHING, Count { signals: 1, writes: 1, bytes: 64, ..NOTHING }]);
        pair.close();
    });
}

//= mpib.md: a rail that is missing at connect is replaced with one warning
#[test]
fn a_rail_of_the_class_without_a_route_is_replaced_with_one_warning() {
    with_and_without_srq(here!(), &host(&[]), || {
        with_other_host(NO_SOUT, &Expected { qps: [[0, 4]; 2], data: 1, cts: 1 });
        // One for each connection.
        let said = take_warnings();
        assert_eq!(said.len(), 2, "{said:?}");
        for line in said {
            for part in [
                "rails without a route to",
                "soft0:1 is ",
                "inter-island data belongs on SOUT (MPIB_MODE=0)",
                "goes on with SUP alone",
            ] {
                assert!(line.contains(part), "{part:?} is not in {line:?}");
            }
        }
    });
}

/// A peer without SUP, in the island of this host.
fn without_sup() -> Misbehaviour {
    Misbehaviour {
        hello: Some(|hello| hello.rails.truncate(1)),
        wiring: Some(|wiring| {
            wiring.routes.truncate(1);
            wiring.memory.rkeys.truncate(1);
        }),
        probed: Some(Message::Probed { mask: 1, reasons: Vec::new(), accepts: false }),
        ..Misbehaviour::default()
    }
}

//= mpib.md: a rail that is missing at connect is replaced with one warning
#[test]
fn within_an_island_sout_stands_in_for_sup() {
    with_and_without_srq(here!(), &host(&[]), || {
        let (table, listener) = (newest(), MisbehavingPeer::listen());
        let ctx = init(table);
        let mut handle = listener.handle().encode();
        let liar = std::thread::spawn(move || MisbehavingPeer::accept(&listener, &without_sup()).unwrap());
        let comm = mpib_tests::peer::connected(table, ctx, &mut handle);
        let said = warnings();
        assert_eq!(said.len(), 1, "{said:?}");
        for part in [
            "the connector's soft1:1: the other end has no SUP to offer",
            "intra-island data belongs on SUP",
            "goes on with SOUT alone",
        ] {
            assert!(said[0].contains(part), "{part:?} is not in {said:?}");
        }
        assert_eq!(table.close_send(comm), Success);
        drop(liar.join().unwrap());
    });
}

//= mpib.md: MPIB_STRICT=1 refuses a connection that lacks its rail
#[test]
fn strict_refuses_to_do_without_the_rail_of_the_class() {
    with_and_without_srq(here!(), &host(&[("MPIB_STRICT", "1")]), || {
        let (table, listener) = (newest(), MisbehavingPeer::listen());
        let ctx = init(table);
        let mut handle = listener.handle().encode();
        let liar = std::thread::spawn(move || MisbehavingPeer::accept(&listener, &without_sup()));
        let code =
            until("connect", || Some(table.connect(ctx, 0, &mut handle).0).filter(|rc| *rc != Success));
        assert_eq!(code, InvalidUsage);
        let said = warnings().pop().unwrap();
        assert!(said.contains("belongs on SUP (MPIB_MODE=0) (MPIB_STRICT=1)"), "{said}");
        let refusal = liar.join().unwrap().err().expect("the peer has the reason");
        assert!(refusal.contains("MPIB_STRICT=1"), "{refusal}");
    });
}

/// Between islands SUP has no queue pair; when SOUT's probe fails it gets them after all, in a
/// second round.
//= mpib.md: a rail that is missing at connect is replaced with one warning
#[test]
fn a_rail_of_the_class_that_fails_its_probe_is_replaced() {
    with_and_without_srq(here!(), &host(&mpib_tests::SHORT), || {
        let (table, listener) = (newest(), MisbehavingPeer::listen());
        let ctx = init(table);
        let mut handle = listener.handle().encode();
        let misbehaviour = Misbehaviour {
            // An address that nobody has, in another island.
            hello: Some(|hello| hello.rails[0].addrs[0].gid[12..].copy_from_slice(&[10, 1, 99, 9])),
            wiring: Some(|wiring| {
                wiring.routes.truncate(1);
                wiring.memory.rkeys.truncate(1);
            }),
            probed: Some(Message::Probed { mask: 0, reasons: vec![(0, "no answer".into())], accepts: false }),
            ..Misbehaviour::default()
        };
        let liar = std::thread::spawn(move || MisbehavingPeer::accept(&listener, &misbehaviour).unwrap());
        let second = |liar: MisbehavingPeer| {
            // SOUT, on which nothing has answered, and SUP.
            let search = until("SEARCH", || liar.channel.try_recv().unwrap());
            let Message::Search(search) = search else { panic!("{search:?}") };
            let _answered = liar.answer(&search, 1, 1);
            let found = until("FOUND", || liar.channel.try_recv().unwrap());
            assert!(matches!(&found, Message::Found(found) if found.answers == 0b10), "{found:?}");
            let wiring = until("the second WIRING", || liar.channel.try_recv().unwrap());
            let Message::Wiring(wiring) = wiring else { panic!("{wiring:?}") };
            let route = &wiring.routes[..][0];
            assert_eq!(
                (wiring.routes.len(), route.local_rail, route.remote_rail, route.qps.len()),
                (1, 1, 1, 4)
            );
        };
        let done = std::thread::spawn(move || second(liar.join().unwrap()));
        let code = until("connect", || {
            Some(table.connect(ctx, 0, &mut handle).0).filter(|rc| *rc != Success || done.is_finished())
        });
        done.join().unwrap();
        let said = warnings();
        assert!(
            said[0].contains("rails that do not work to")
                && said[0].contains("inter-island data belongs on SOUT"),
            "{said:?}"
        );
        assert!(said[0].contains("goes on with SUP alone"), "{said:?}");
        let _ = code;
    });
}

/// The same with two honest ends: data and CTS writes move over the rail of the second round, and
/// over it alone.
//= mpib.md: a rail that is missing at connect is replaced with one warning
#[test]
fn data_moves_over_the_rail_that_was_held_in_reserve() {
    // With failover, attempts to bring SOUT back would be among what is counted.
    let env = [&mpib_tests::SHORT[..], &[("MPIB_FAILOVER", "0")]].concat();
    with_and_without_srq(here!(), &host(&env), || {
        // A search has one more for each route that is not known to fail.
        with_other_host(CUT_OFF, &Expected { qps: [[3, 5], [2, 5]], data: 1, cts: 1 });
        // One for each connection.
        let said = take_warnings();
        assert_eq!(said.len(), 2, "{said:?}");
        for line in said {
            for part in
                ["rails that do not work to", "inter-island data belongs on SOUT", "goes on with SUP alone"]
            {
                assert!(line.contains(part), "{part:?} is not in {line:?}");
            }
        }
    });
}

//= faults.md: 81: settings of the two ends differ: both refuse and name both values
//= mpib.md: ends with different settings refuse each other and name both values
#[test]
fn ends_that_differ_refuse_each_other_and_name_both_values() {
    with_and_without_srq(here!(), &host(&[]), || {
        let table = newest();
        for (variable, value, here, there) in [
            ("MPIB_MODE", "1", "0", "1"),
            ("MPIB_ISLAND_PREFIX_LEN", "16", "24", "16"),
            ("MPIB_SOUT_QP", "1", "2", "1"),
            ("MPIB_SUP_QP", "8", "4", "8"),
            ("MPIB_SUP_SHARE", "512", "unset", "set"),
        ] {
            let ctx = init(table);
            let mut handle = [0; 128];
            let (_, listen) = table.listen(ctx, 0, &mut handle);
            set(variable, Some(value));
            let other = init(table);
            let before = warnings().len();
            let mut code = Success;
            until("both ends to refuse", || {
                if code == Success {
                    code = table.connect(other, 0, &mut handle).0;
                }
                assert!(table.accept(listen).1.is_null());
                (warnings().len() >= before + 2).then_some(())
            });
            assert_eq!(code, InvalidUsage, "{variable}");
            let said = warnings().split_off(before);
            let refusal = |call: &str, a: &str, b: &str| {
                let difference = format!("{variable} is {a} here and {b} there");
                assert!(
                    said.iter().any(|l| l.contains(call) && l.contains(&difference)),
                    "{difference}: {said:?}"
                );
            };
            refusal("connect", there, here);
            refusal("accept", here, there);
            set(variable, None::<&str>);
            assert_eq!(
                (table.close_listen(listen), table.finalize(ctx), table.finalize(other)),
                (Success, Success, Success)
            );
        }
        // And with nothing to differ on they meet.
        let pair = connect(table, init(table), 0);
        pair.message(1000, 1000, 1);
        pair.close();
    });
}

/// The queue pairs of a sender take turns on each rail by slot; CTS writes keep to one.
//= mpib.md: messages use queue pairs round-robin; CTS writes use one
//= configuration.md: MPIB_SUP_QP
//= configuration.md: MPIB_SOUT_QP
#[test]
fn messages_alternate_between_queue_pairs_and_cts_writes_do_not() {
    with_and_without_srq(
        here!(),
        &host(&[SPLIT_ALL, ("MPIB_SUP_SHARE", "512"), ("MPIB_SOUT_QP", "2"), ("MPIB_SUP_QP", "3")]),
        || {
            let pair = Pair::new(newest());
            let made = qps();
            // Which queue pairs carried each message, by number.
            let mut used: [Vec<u32>; 2] = Default::default();
            let mut cts = Vec::new();
            let mut before = qps();
            for i in 0..24 {
                pair.message(4096, 4096, i);
                let after = qps();
                for rail in 0..2 {
                    for (a, b) in after[rail].iter().zip(&before[rail]) {
                        if a.counters.writes_with_imm > b.counters.writes_with_imm {
                            used[rail].push(a.qpn);
                        }
                        if a.counters.writes > b.counters.writes {
                            cts.push((rail, a.qpn));
                        }
                    }
                }
                before = after;
            }
            assert_eq!(made.map(|q| q.len()), [4, 6], "both ends are in this process");
            for (rail, n) in [(0, 2), (1, 3)] {
                assert_eq!(used[rail].len(), 24, "one queue pair for each message");
                // In order of making; slots begin with 1.
                let mut lanes = used[rail].clone();
                lanes.sort_unstable();
                lanes.dedup();
                let turns: Vec<u32> = (1..=24).map(|slot| lanes[slot % n]).collect();
                assert_eq!(used[rail], turns, "rail {rail}");
            }
            assert!(cts.len() == 24 && cts.iter().all(|at| *at == cts[0] && at.0 == 0), "{cts:?}");
            pair.close();
        },
    );
}

/// 64 empty messages under way, again and again: no write ever finds the shared queue empty.
fn empty_bursts() {
    let signals = || softverbs::counters().iter().map(|d| d.total.writes_with_imm).sum::<u64>();
    let pair = Pair::new(newest());
    let probes = signals();
    // Some receives of the shared queues are used up, and the low mark is not reached.
    (0..100).for_each(|i| pair.message(0, 256, i));
    let to = pair.recv_buffer(256);
    for round in 0..80 {
        let recvs: Vec<_> = (0..64).map(|i| pair.irecv(&[(to.addr(), 256, i, to.mr)])).collect();
        let sends: Vec<_> = (0..64).map(|i| pair.isend(to.addr(), 0, i, Ptr::default())).collect();
        for request in sends.into_iter().chain(recvs) {
            assert_eq!(pair.wait(request)[0], 0, "round {round}");
        }
    }
    let rnr: u64 = softverbs::counters().iter().map(|d| d.total.rnr).sum();
    assert_eq!((rnr, signals() - probes), (0, 100 + 80 * 64));
    to.dereg();
    pair.close();
}

//= faults.md: 24
//= protocol.md: a write with immediate always finds a receive in the SRQ
#[test]
fn bursts_of_empty_messages_on_four_queue_pairs_find_receives() {
    with_and_without_srq(here!(), &host(&[]), empty_bursts);
}

//= faults.md: 23: a burst comes while few receives are posted: no write finds the queue empty
//= protocol.md: a write with immediate always finds a receive in the SRQ
#[test]
fn bursts_of_empty_messages_find_receives_with_low_marks() {
    let devices = two_adapters("max_srq_wr=67");
    let marks = [("SOFTVERBS_DEVICES", devices.as_str()), ("MPIB_SUP_SHARE", "512"), ("MPIB_SOUT_QP", "4")];
    with_and_without_srq(here!(), &[&TWO_RAILS[..], &[HERE], &marks].concat(), empty_bursts);
}

/// Two rails of 4 and 2 GB/s.
const UNEVEN: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,rate=2GB;soft1:addr=10.2.0.1/16,rate=4GB");

fn speed(test: &str, more: &[(&'static str, &'static str)], expected: fn(&[u32]) -> u32) {
    with_and_without_srq(test, &[&TWO_RAILS[..], &[UNEVEN], more].concat(), || {
        init(newest());
        let props = newest().properties(0).1.unwrap();
        let rails = MisbehavingPeer::rail_speeds();
        if rails[0] == rails[1] {
            // hns reports one speed for every link.
            return eprintln!("not run: the driver reports {rails:?}");
        }
        assert!(rails[0] < rails[1], "{rails:?}");
        assert_eq!(props.speed, expected(&rails) as i32, "{rails:?}");
    });
}

//= mpib.md: speed is that of the rails in use
#[test]
fn vanilla_has_the_speed_of_the_faster_rail() {
    speed(here!(), &[], |rails| rails[1]);
}

//= mpib.md: speed is that of the rails in use
#[test]
fn advanced_has_the_speed_of_both_rails() {
    speed(here!(), &[("MPIB_MODE", "1")], |rails| rails[0] + rails[1]);
}

//= mpib.md: speed is that of the rails in use
#[test]
fn a_fixed_share_has_the_speed_of_the_rails_that_it_uses() {
    speed(here!(), &[("MPIB_SUP_SHARE", "0"), ("MPIB_MODE", "1")], |rails| rails[0]);
}
