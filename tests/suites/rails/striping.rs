//! Several queue pairs on plain rails: `NCCL_IB_QPS_PER_CONNECTION`, `NCCL_IB_SPLIT_DATA_ON_QPS`.

use std::collections::BTreeMap;

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{assert_no_rnr, connect, init, until};
use mpib_tests::rng::Rng;
use mpib_tests::table::{TABLES, table};
use mpib_tests::vdevices::{Rig, carried, fits_immediate, newest_device, parts, rails, speeds};
use mpib_tests::{BY_SPEED, NO_PINGS, SPLIT_ALL, here, set, with_and_without_srq};

const MIB: usize = 1 << 20;

/// Writes with an immediate, by rail and queue pair, without those that have none.
type Signals = Vec<BTreeMap<u32, u64>>;

fn signals(n: usize) -> Signals {
    let counters = softverbs::counters();
    let rail = |i: usize| {
        let device = counters.iter().find(|d| d.name == format!("r{i}")).unwrap();
        let of = |qp: &softverbs::QpCounters| {
            (qp.counters.writes_with_imm > 0).then_some((qp.qpn, qp.counters.writes_with_imm))
        };
        device.qps.iter().filter_map(of).collect()
    };
    (0..n).map(rail).collect()
}

/// How many each queue pair did in `f`, in order of the queue pairs.
fn during(n: usize, f: impl FnOnce()) -> Vec<Vec<u64>> {
    let before = signals(n);
    f();
    let since = |(now, before): (BTreeMap<u32, u64>, BTreeMap<u32, u64>)| {
        let grown = now.into_iter().map(|(qpn, n)| n - before.get(&qpn).copied().unwrap_or(0));
        grown.filter(|n| *n > 0).collect()
    };
    signals(n).into_iter().zip(before).map(since).collect()
}

fn on_rails(test: &str, n: usize, qps: &str, split: &str, body: impl FnOnce()) {
    let (devices, speed) = (rails(n, 1), speeds(&[400_000, 200_000, 100_000, 100_000][..n]));
    let env = [
        ("SOFTVERBS_DEVICES", devices.as_str()),
        ("MPIB_RAIL_SPEED", speed.as_str()),
        ("NCCL_IB_QPS_PER_CONNECTION", qps),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", split),
        SPLIT_ALL,
        BY_SPEED,
        NO_PINGS,
    ];
    with_and_without_srq(test, &env, body);
}

/// Each queue pair that carries a part posts one write with an immediate, and no other queue pair
/// does.
//= fused-devices.md: with striping, each queue pair that carries a part signals once
//= configuration.md: NCCL_IB_SPLIT_DATA_ON_QPS
#[test]
fn one_rail_of_four_queue_pairs_is_striped() {
    on_rails(here!(), 1, "4", "1", || {
        let ctx = init(table(12));
        let mut rig = Rig::new(table(12), ctx, 0, 8 * MIB);
        for (len, expected) in [
            (0, vec![1]),
            (1, vec![1]),
            (511, vec![1]),
            (512, vec![1; 4]),
            (MIB, vec![1; 4]),
            (MIB + 1, vec![1; 4]),
            (8 * MIB, vec![1; 4]),
        ] {
            let mut bytes = 0;
            let events = during(1, || {
                let before = carried(1)[0].bytes;
                rig.exchange(&[len]);
                bytes = carried(1)[0].bytes - before;
            });
            assert_eq!(events, [expected], "{len} bytes");
            let record = if len == MIB + 1 { 64 } else { 0 };
            assert_eq!(bytes, len as u64 + 64 + record, "{len} bytes: payload, CTS entry, record");
        }
        let events = during(1, || rig.exchange(&[4096, 100, 0, 65_537, 1, 512, 127, 128]));
        assert_eq!(events, [[1; 4]], "one for the whole group on each");
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

//= fused-devices.md: without striping, messages use the queue pairs round-robin
//= configuration.md: NCCL_IB_QPS_PER_CONNECTION
#[test]
fn messages_alternate_between_plain_queue_pairs() {
    on_rails(here!(), 2, "3", "0", || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, MIB);
        let events = during(2, || (0..30).for_each(|_| rig.exchange(&[100_000])));
        assert_eq!(events, [[10; 3], [10; 3]]);
        // Each message once on each rail.
        let events = during(2, || rig.exchange(&[100_000]));
        assert_eq!(events, [[1], [1]]);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Each rail gets its part by its speed, however many stripes the rail has.
//= fused-devices.md: several rails are striped by their speeds
#[test]
fn several_rails_are_striped_by_their_speeds() {
    on_rails(here!(), 4, "2", "1", || {
        let (ctx, dev) = newest_device(4);
        let mut rig = Rig::new(table(12), ctx, dev, 8 * MIB);
        for len in [0, 1, 4096, 100_000, MIB, 8 * MIB] {
            let mut bytes = Vec::new();
            let events = during(4, || {
                let before = carried(4);
                rig.exchange(&[len]);
                bytes = carried(4).iter().zip(before).map(|(a, b)| a.bytes - b.bytes).collect();
            });
            let stripes = parts(len, &[4, 4, 2, 2, 1, 1, 1, 1]);
            let mut by_rail: Vec<u64> = stripes.chunks(2).map(|c| c.iter().sum::<usize>() as u64).collect();
            by_rail[0] += 64 + if fits_immediate(len, 8) { 0 } else { 64 };
            assert_eq!(bytes, by_rail, "{len} bytes");
            let mut active: Vec<_> =
                stripes.chunks(2).map(|c| vec![1; c.iter().filter(|p| **p > 0).count()]).collect();
            if len == 0 {
                active[0] = vec![1];
            }
            assert_eq!(events, active, "{len} bytes");
        }
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// A mask has eight bits: sixteen queue pairs carry a message on eight, in turn.
//= fused-devices.md: more than eight queue pairs take turns within the stripes
#[test]
fn more_queue_pairs_than_a_mask_has_bits_alternate() {
    on_rails(here!(), 1, "16", "1", || {
        let ctx = init(table(12));
        let mut rig = Rig::new(table(12), ctx, 0, MIB);
        assert_eq!(during(1, || rig.exchange(&[MIB])), [[1; 8]]);
        assert_eq!(during(1, || (0..20).for_each(|_| rig.exchange(&[MIB]))), [[10; 16]]);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// One poll serves all stripes of a rail at one end, in messages and in groups.
//= fused-devices.md: the stripes of a rail share a completion queue
#[test]
fn the_stripes_of_a_rail_share_a_completion_queue() {
    on_rails(here!(), 2, "8", "1", || {
        for (n, qps) in [(1, "8"), (1, "16"), (2, "8")] {
            set("NCCL_IB_QPS_PER_CONNECTION", Some(qps));
            let (ctx, dev) = newest_device(n);
            let cqs = || softverbs::objects().unwrap().cqs;
            let before = cqs();
            let mut rig = Rig::new(table(12), ctx, dev, MIB);
            assert_eq!(cqs() - before, 2 * n, "one for each rail at each end");
            assert_eq!(during(n, || rig.exchange(&[MIB])).concat(), [1; 8]);
            for lens in [&[0][..], &[1], &[5000, 0, 70_000]] {
                rig.exchange(lens);
            }
            rig.close();
            assert_eq!(cqs(), before);
            assert_eq!(table(12).finalize(ctx), Success);
        }
    });
}

//= fused-devices.md: striping: every table, any number of queue pairs, full load
#[test]
fn every_table_is_striped() {
    on_rails(here!(), 2, "4", "1", || {
        let (ctx, dev) = newest_device(2);
        for table in TABLES {
            let ctx = init(table);
            let mut rig = Rig::new(table, ctx, dev, 2 * MIB);
            for lens in [&[100_000][..], &[MIB + 1], &[0], &[5000, 0, 70_000]] {
                rig.exchange(lens);
            }
            assert_eq!(during(2, || rig.exchange(&[MIB])), [[1; 4], [1; 4]], "v{}", table.version());
            rig.close();
            assert_eq!(table.finalize(ctx), Success);
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= fused-devices.md: striping: every table, any number of queue pairs, full load
#[test]
fn any_number_of_queue_pairs_carries_anything() {
    let devices = rails(4, 1);
    with_and_without_srq(here!(), &[("SOFTVERBS_DEVICES", &devices)], || {
        let (_, mut rng) = Rng::from_env();
        for _ in 0..15 {
            let (n, qps, split) = (1 + rng.below(4), 1 + rng.below(20), rng.below(2));
            set("NCCL_IB_QPS_PER_CONNECTION", Some(qps.to_string()));
            set("NCCL_IB_SPLIT_DATA_ON_QPS", Some(split.to_string()));
            set("MPIB_FLUSH", Some(rng.below(2).to_string()));
            let (ctx, dev) = newest_device(n);
            let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
            for _ in 0..10 {
                let largest = rng.pick(&[200, 5000, 70_000, MIB / 2]);
                let lens: Vec<usize> = (0..1 + rng.below(8)).map(|_| rng.below(largest)).collect();
                eprintln!("{n} rails, {qps} queue pairs, split {split}: {lens:?}");
                rig.exchange(&lens);
            }
            rig.close();
            assert_eq!(table(12).finalize(ctx), Success);
        }
    });
}

/// 64 messages under way, each on eight queue pairs.
//= fused-devices.md: striping: every table, any number of queue pairs, full load
#[test]
fn a_full_house_is_striped() {
    on_rails(here!(), 2, "4", "1", || {
        let (ctx, dev) = newest_device(2);
        let pair = connect(table(12), ctx, dev);
        let to = pair.recv_buffer(64 * 2048);
        let data = mpib_tests::pair::pattern(64 * 2048, 3);
        let from = pair.send_buffer(data.clone());
        for _ in 0..12 {
            let recvs: Vec<_> =
                (0..64).map(|i| pair.irecv(&[(to.addr() + 2048 * i, 2048, i as i32, to.mr)])).collect();
            let sends: Vec<_> =
                (0..64).map(|i| pair.isend(from.addr() + 2048 * i, 2048, i as i32, from.mr)).collect();
            for request in recvs.into_iter().chain(sends) {
                assert_eq!(pair.wait(request)[0], 2048);
            }
            assert!(to.bytes == data);
        }
        assert_no_rnr();
        to.dereg();
        from.dereg();
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Ends that would make other queue pairs refuse each other, and say which setting has which value
/// where.
//= fused-devices.md: ends with different striping refuse each other
#[test]
fn ends_that_stripe_otherwise_refuse_each_other() {
    on_rails(here!(), 1, "2", "1", || {
        for (variable, here, there) in
            [("NCCL_IB_QPS_PER_CONNECTION", "2", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1", "0")]
        {
            let ctx = init(table(12));
            let mut handle = [0; 128];
            let (_, listen) = table(12).listen(ctx, 0, &mut handle);
            set(variable, Some(there));
            let other = init(table(12));
            take_warnings();
            let (mut code, mut said) = (Success, Vec::new());
            until("both ends to refuse", || {
                if code == Success {
                    code = table(12).connect(other, 0, &mut handle).0;
                }
                assert!(table(12).accept(listen).1.is_null());
                said.extend(take_warnings());
                (said.len() >= 2).then_some(())
            });
            for (call, a, b) in [("connect", there, here), ("accept", here, there)] {
                let difference = format!("{variable} is {a} here and {b} there");
                assert!(
                    said.iter().any(|l| l.contains(call) && l.contains(&difference)),
                    "{difference}: {said:?}"
                );
            }
            set(variable, Some(here));
            assert_eq!(table(12).close_listen(listen), Success);
            assert_eq!((table(12).finalize(ctx), table(12).finalize(other)), (Success, Success));
        }
    });
}

/// A rail that is down takes all of its queue pairs with it; the other has no more of them than
/// before.
//= fused-devices.md: a rail that is down drops all its queue pairs
#[test]
fn a_rail_that_is_down_takes_its_queue_pairs_with_it() {
    on_rails(here!(), 2, "2", "1", || {
        let (ctx, dev) = newest_device(2);
        softverbs::set_link("r0", false).unwrap();
        let mut rig = Rig::new(table(12), ctx, dev, MIB);
        // One line for each end, beside the line of the adapter's event.
        let lines = take_warnings();
        let lost = lines.iter().filter(|l| l.contains("r0:1") && l.contains("goes on with r1:1 alone"));
        assert_eq!(lost.count(), 2, "{lines:?}");
        let events = during(2, || rig.exchange(&[MIB]));
        assert!(events[0].is_empty() && events[1].len() >= 2, "{events:?}");
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// A device supports as many connections as its properties say.
//= fused-devices.md: maxComms shrinks with the number of queues of a connection
//= adapters.md: A17: maxComms counts all queues
#[test]
fn fewer_connections_fit_with_more_queue_pairs() {
    on_rails(here!(), 1, "4", "1", || {
        let ctx = init(table(12));
        let device = nccl_net_mpib::simulation::process::Process::global().devices.get(0).unwrap();
        let limits = device.rails[0].limits();
        // The four stripes share a completion queue. Each has an SRQ if the adapter has them.
        let mut most = limits.max_qp.min(4 * limits.max_cq);
        if device.rails[0].has_srq().is_ok() {
            assert!(limits.max_srq < most, "SRQs are the scarcest");
            most = limits.max_srq;
        }
        assert_eq!(table(12).properties(0).1.unwrap().max_comms, most as i32 / 4);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
