//! Which rail carries what, counted by the software devices for each message.

use mpib_tests::code::Success;
use mpib_tests::pair::{HOST, Pair, assert_no_rnr, pattern};
use mpib_tests::table::newest;
use mpib_tests::{TWO_RAILS, here, isolated, mpib, two_adapters, with_and_without_srq};

/// Since the process began, per rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    /// RDMA writes with an immediate.
    signals: u64,
    /// RDMA writes without.
    writes: u64,
    doorbells: u64,
    send_cqes: u64,
    recv_cqes: u64,
    bytes: u64,
}

const NOTHING: Count = Count { signals: 0, writes: 0, doorbells: 0, send_cqes: 0, recv_cqes: 0, bytes: 0 };

fn rails() -> [Count; 2] {
    let counters = softverbs::counters();
    ["soft0", "soft1"].map(|name| {
        let c = &counters.iter().find(|d| d.name == name).unwrap().total;
        Count {
            signals: c.writes_with_imm,
            writes: c.writes,
            doorbells: c.doorbells,
            send_cqes: c.send_cqes,
            recv_cqes: c.recv_cqes,
            bytes: c.bytes,
        }
    })
}

fn during(f: impl FnOnce()) -> [Count; 2] {
    let before = rails();
    f();
    let after = rails();
    [0, 1].map(|i| {
        let (a, b) = (after[i], before[i]);
        Count {
            signals: a.signals - b.signals,
            writes: a.writes - b.writes,
            doorbells: a.doorbells - b.doorbells,
            send_cqes: a.send_cqes - b.send_cqes,
            recv_cqes: a.recv_cqes - b.recv_cqes,
            bytes: a.bytes - b.bytes,
        }
    })
}

/// One work request, one doorbell and one completion per side; `bytes` of payload.
fn fast(bytes: usize) -> Count {
    Count { signals: 1, doorbells: 1, send_cqes: 1, recv_cqes: 1, bytes: bytes as u64, ..NOTHING }
}

/// And the receiver's CTS write of `entries`, which asks for no completion.
fn with_cts(count: Count, entries: u64) -> Count {
    Count {
        writes: count.writes + 1,
        doorbells: count.doorbells + 1,
        bytes: count.bytes + 64 * entries,
        ..count
    }
}

/// What SUP should carry of `size` bytes.
fn sup_part(size: usize, share: usize) -> usize {
    if share == 1024 { size } else { ((size * share) >> 10) & !127 }
}

fn fast_path(share: usize) {
    let pair = Pair::new(newest());
    // Fewer than 128 messages: no CTS write requests a completion.
    for size in [0, 1, 255, 256, 4096, 100_000, 1 << 20, 4 << 20] {
        let sup = sup_part(size, share);
        let counted = during(|| pair.message(size, size, 3));
        let sout_active = size == 0 || sup < size;
        let sout = if sout_active { fast(size - sup) } else { NOTHING };
        let expected = [with_cts(sout, 1), if sup > 0 { fast(sup) } else { NOTHING }];
        assert_eq!(counted, expected, "{size} bytes, share {share}");
    }
    pair.close();
}

//= protocol.md: data: one work request per active rail on the fast path
#[test]
fn the_fast_path_at_share_0() {
    with_and_without_srq(here!(), &mpib("0", &[]), || fast_path(0));
}

#[test]
fn the_fast_path_at_share_256() {
    with_and_without_srq(here!(), &mpib("256", &[]), || fast_path(256));
}

#[test]
fn the_fast_path_at_share_512() {
    with_and_without_srq(here!(), &mpib("512", &[]), || fast_path(512));
}

//= protocol.md: data: one work request per active rail on the fast path
#[test]
fn the_fast_path_at_share_1024() {
    with_and_without_srq(here!(), &mpib("1024", &[]), || fast_path(1024));
}

/// A size that the immediate cannot say takes a record: one more write request, still one doorbell.
#[test]
fn an_inexpressible_size_takes_a_record() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let size = (2 << 20) + 1;
        let sup = sup_part(size, 512);
        let counted = during(|| pair.message(size, size, 3));
        let sout = Count { writes: 1, ..fast(size - sup + 64) };
        assert_eq!(counted, [with_cts(sout, 1), Count { writes: 1, ..fast(sup) }]);
        pair.close();
    });
}

/// A group: its payload writes and one signalling write per active rail, one doorbell each.
#[test]
fn a_group_rings_each_active_rail_once() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        // Large ones have parts on both rails, small ones on SOUT only, the empty one on none.
        let lens = [4096, 100, 0, 8192];
        let to: Vec<_> = lens.iter().map(|_| pair.recv_buffer(8192)).collect();
        let from: Vec<_> = lens.iter().map(|len| pair.send_buffer(pattern(8192.min(len + 1), 1))).collect();
        let group: Vec<_> = to.iter().zip(0..).map(|(b, tag)| (b.addr(), 8192, tag, b.mr)).collect();
        let counted = during(|| {
            let recv = pair.irecv(&group);
            let sends: Vec<_> =
                (0..4).map(|i| pair.isend(from[i].addr(), lens[i], i as i32, from[i].mr)).collect();
            for send in sends {
                pair.wait(send);
            }
            assert_eq!(pair.wait(recv)[..4], [4096, 100, 0, 8192]);
        });
        let sout = Count { writes: 3, ..fast(2048 + 100 + 4096 + 64) };
        let sup = Count { writes: 2, ..fast(2048 + 4096) };
        assert_eq!(counted, [with_cts(sout, 4), sup]);
        to.into_iter().chain(from).for_each(|b| b.dereg());
        pair.close();
    });
}

#[test]
fn a_group_of_empty_sends_uses_sout_only() {
    with_and_without_srq(here!(), &mpib("1024", &[]), || {
        let pair = Pair::new(newest());
        let to = pair.recv_buffer(64);
        let from = pair.send_buffer(vec![1; 64]);
        let counted = during(|| {
            let recv = pair.irecv(&[(to.addr(), 64, 1, to.mr), (to.addr(), 64, 2, to.mr)]);
            let sends = [1, 2].map(|tag| pair.isend(from.addr(), 0, tag, from.mr));
            for send in sends {
                pair.wait(send);
            }
            assert_eq!(pair.wait(recv)[..2], [0, 0]);
        });
        assert_eq!(counted, [with_cts(fast(64), 2), NOTHING]);
        to.dereg();
        from.dereg();
        pair.close();
    });
}

/// The send queue of SOUT has 32 entries.
//= receives.md: one CTS write in half of the send queue requests a completion
#[test]
fn a_cts_write_asks_for_a_completion_now_and_then() {
    let devices = two_adapters("max_qp_wr=32");
    with_and_without_srq(here!(), &mpib("1024", &[("SOFTVERBS_DEVICES", &devices)]), || {
        let pair = Pair::new(newest());
        let counted = during(|| (0..160).for_each(|i| pair.message(512, 512, i)));
        // All data is on SUP: SOUT's completions are those of CTS writes. The last completion may
        // not be polled yet.
        assert!((9..=10).contains(&counted[0].send_cqes), "{counted:?}");
        assert_eq!((counted[0].writes, counted[1].signals), (160, 160));
        pair.close();
    });
}

/// 64 receives are taken, the next is not; all of them are met in the end.
fn a_full_house() {
    let pair = Pair::new(newest());
    // Some receives of the shared queues are used up, and the low mark is not reached.
    (0..100).for_each(|i| pair.message(256, 256, i));
    let to = pair.recv_buffer(64 * 256);
    let data = pattern(64 * 256, 9);
    let from = pair.send_buffer(data.clone());
    for round in 0..12 {
        let recvs: Vec<_> =
            (0..64).map(|i| pair.irecv(&[(to.addr() + 256 * i, 256, i as i32, to.mr)])).collect();
        let (rc, none) = newest().irecv(pair.recv, &[(to.addr(), 256, 0, to.mr)]);
        assert_eq!((rc, none.is_null()), (Success, true), "receive 65, round {round}");
        let sends: Vec<_> =
            (0..64).map(|i| pair.isend(from.addr() + 256 * i, 256, i as i32, from.mr)).collect();
        let (rc, none) = newest().isend(pair.send, from.addr(), 256, 0, from.mr);
        assert_eq!((rc, none.is_null()), (Success, true), "send 65, round {round}");
        // Newest first: completion does not follow the order of asking.
        for (i, (recv, send)) in recvs.into_iter().zip(sends).enumerate().rev() {
            assert_eq!(pair.wait(recv)[0], 256, "receive {i}");
            assert_eq!(pair.wait(send)[0], 256, "send {i}");
        }
        assert!(to.bytes == data);
    }
    assert_no_rnr();
    to.dereg();
    from.dereg();
    pair.close();
}

#[test]
fn sixty_four_receives_are_under_way() {
    with_and_without_srq(here!(), &mpib("512", &[]), a_full_house);
}

#[test]
fn sixty_four_receives_with_low_marks() {
    let devices = two_adapters("max_srq_wr=67");
    with_and_without_srq(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", &devices)]), a_full_house);
}

/// Two comms, one each way, driven by one loop: neither waits for the other.
#[test]
fn both_directions_at_once() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pairs = [Pair::new(newest()), Pair::new(newest())];
        std::thread::scope(|scope| {
            for (i, pair) in pairs.iter().enumerate() {
                scope.spawn(move || {
                    for n in 0..200u64 {
                        let size = (n as usize * 7919) % 300_000;
                        pair.message(size, size, n + i as u64);
                    }
                });
            }
        });
        pairs.into_iter().for_each(Pair::close);
    });
}

/// NCCL's service thread registers while its progress thread transfers, on one comm.
#[test]
fn registration_runs_beside_transfers() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let shared = &pair;
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let service = scope.spawn(|| {
                let memory = vec![0u8; 1 << 16];
                let mut rounds = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for comm in shared.comms() {
                        let (rc, mr) = newest().reg_mr(comm, memory.as_ptr().addr(), memory.len(), HOST);
                        assert_eq!(rc, Success);
                        assert_eq!(newest().dereg_mr(comm, mr), Success);
                    }
                    rounds += 1;
                }
                rounds
            });
            (0..300).for_each(|i| pair.message(10_000, 10_000, i));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(service.join().unwrap() > 0);
        });
        pair.close();
    });
}

/// With rails of 2.5 Gb/s the default of `MPIB_SPLIT_MIN` is 1,638 bytes.
//= mpib.md: on slow rails, smaller messages are split
#[test]
fn smaller_messages_are_split_on_slow_rails() {
    let slow = ("MPIB_RAIL_SPEED", "soft0:2500,soft1:2000");
    let env = [&TWO_RAILS[..], &[("MPIB_SUP_SHARE", "512"), slow]].concat();
    isolated(here!(), &env, || {
        let pair = Pair::new(newest());
        for (size, requests) in [(1_024, 1), (1_637, 1), (1_638, 2), (16_384, 2)] {
            let [sout, sup] = during(|| pair.message(size, size, 1));
            assert_eq!(sout.signals + sup.signals, requests, "{size} bytes: {sout:?} {sup:?}");
        }
        pair.close();
    });
}

/// With the default of `MPIB_SPLIT_MIN` a message below 64 KiB is one work request, and of every four
/// messages one goes on SUP.
//= mpib.md: small messages go whole, and over many of them SUP carries its share
//= adapters.md: A8: small messages go whole on one rail
#[test]
fn small_messages_go_whole_and_keep_the_share() {
    let env = [&TWO_RAILS[..], &[("MPIB_SUP_SHARE", "256")]].concat();
    isolated(here!(), &env, || {
        let pair = Pair::new(newest());
        for size in [128, 512, 4096, 65_535] {
            let counted = during(|| {
                for i in 0..16 {
                    let [sout, sup] = during(|| pair.message(size, size, i));
                    assert_eq!(sout.signals + sup.signals, 1, "{size} bytes: {sout:?} {sup:?}");
                }
            });
            assert_eq!(counted.map(|rail| rail.signals), [12, 4], "{size} bytes");
            assert_eq!(counted[1].bytes as usize, 4 * size);
        }
        let [sout, sup] = during(|| pair.message(65_536, 65_536, 1));
        assert_eq!([sout.signals, sup.signals, sup.bytes], [1, 1, 16_384], "64 KiB are split");
        pair.close();
    });
}
