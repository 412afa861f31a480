//! Data over plain devices of one to eight rails: each rail carries its part, every byte is
//! checked.

use std::ffi::c_int;

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Pair, connect, init, pattern, until};
use mpib_tests::peer::{self, Peer, accepted, connected_by, handle_of, word};
use mpib_tests::rng::Rng;
use mpib_tests::table::{Ptr, TABLES, table};
use mpib_tests::vdevices::{
    Carried, Rig, by_the_rule, carried, fits_immediate, newest, newest_device, rails, speeds,
};
use mpib_tests::{BY_SPEED, NO_PINGS, SPLIT_ALL, here, isolated, with_and_without_srq};

const MIB: usize = 1 << 20;
const SPEEDS: [u32; 8] = [400_000, 300_000, 200_000, 100_000, 100_000, 50_000, 25_000, 12_500];
/// As weights, by hand: SPEEDS is halved until it fits into 16 bits.
const WEIGHTS: [u64; 8] = [50_000, 37_500, 25_000, 12_500, 12_500, 6_250, 3_125, 1_562];

/// The weights of the first `n` of SPEEDS alone.
fn weights(n: usize) -> Vec<u64> {
    let mut all = WEIGHTS.to_vec();
    all[n..].fill(0);
    all
}

fn during(f: impl FnOnce()) -> Vec<Carried> {
    let before = carried(8);
    f();
    let since = |(now, before): (Carried, Carried)| Carried {
        bytes: now.bytes - before.bytes,
        signals: now.signals - before.signals,
    };
    carried(8).into_iter().zip(before).map(since).collect()
}

fn eight_rails() -> [(&'static str, String); 2] {
    [("SOFTVERBS_DEVICES", rails(8, 1)), ("MPIB_RAIL_SPEED", speeds(&SPEEDS))]
}

fn on_eight_rails(test: &str, more: &[(&str, &str)], body: impl FnOnce()) {
    let env = eight_rails();
    let mut env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    env.extend([SPLIT_ALL, BY_SPEED, NO_PINGS]);
    env.extend_from_slice(more);
    with_and_without_srq(test, &env, body);
}

/// Sizes around every edge, alone and in groups: each rail carries what the rule says.
fn split_by_speed(n: usize) {
    let (ctx, dev) = newest_device(n);
    let mut rig = Rig::new(table(12), ctx, dev, 16 * MIB);
    let weights = weights(n);
    for len in [
        0,
        1,
        127,
        128,
        255,
        256,
        511,
        512,
        1023,
        1024,
        4096,
        65_537,
        262_144,
        MIB,
        MIB + 1,
        4 * MIB,
        8 * MIB,
    ] {
        let counted = during(|| rig.exchange(&[len]));
        assert_eq!(counted, by_the_rule(&[len], &weights, 0), "{len} bytes on {n} rails");
    }
    for lens in [&[0; 8][..], &[1; 8], &[4096, 0, 100, 65_537, 1_000_000, 8192, 128, 127], &[MIB, MIB]] {
        let counted = during(|| rig.exchange(lens));
        assert_eq!(counted, by_the_rule(lens, &weights, 0), "{lens:?} on {n} rails");
    }
    rig.close();
    assert_eq!(table(12).finalize(ctx), Success);
    assert_eq!(take_warnings(), Vec::<String>::new());
}

//= fused-devices.md: messages are cut in proportion to the rails' speeds
#[test]
fn one_rail_carries_all() {
    on_eight_rails(here!(), &[], || split_by_speed(1));
}

//= fused-devices.md: messages are cut in proportion to the rails' speeds
#[test]
fn two_rails_carry_by_their_speeds() {
    on_eight_rails(here!(), &[], || split_by_speed(2));
}

//= fused-devices.md: messages are cut in proportion to the rails' speeds
#[test]
fn three_rails_carry_by_their_speeds() {
    on_eight_rails(here!(), &[], || split_by_speed(3));
}

//= fused-devices.md: messages are cut in proportion to the rails' speeds
//= configuration.md: MPIB_RAIL_SPEED
#[test]
fn four_rails_carry_by_their_speeds() {
    on_eight_rails(here!(), &[], || split_by_speed(4));
}

//= fused-devices.md: messages are cut in proportion to the rails' speeds
#[test]
fn eight_rails_carry_by_their_speeds() {
    on_eight_rails(here!(), &[], || split_by_speed(8));
}

/// A device belongs to the process: tables that cannot make one use it all the same.
//= fused-devices.md: every table moves data over a device of eight rails
#[test]
fn every_table_moves_data_over_a_device_of_eight() {
    on_eight_rails(here!(), &[], || {
        let (ctx, dev) = newest_device(8);
        for table in TABLES {
            let ctx = init(table);
            let mut rig = Rig::new(table, ctx, dev, 2 * MIB);
            for lens in [&[100_000][..], &[MIB + 1], &[0], &[5000, 0, 70_000]] {
                let counted = during(|| rig.exchange(lens));
                assert_eq!(counted, by_the_rule(lens, &weights(8), 0), "v{} {lens:?}", table.version());
            }
            rig.close();
            assert_eq!(table.finalize(ctx), Success);
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Devices, sizes, groups and depths at random.
//= fused-devices.md: any mix of devices, groups and sizes arrives whole
#[test]
fn any_device_carries_anything() {
    on_eight_rails(here!(), &[], || {
        let (_, mut rng) = Rng::from_env();
        let ctx = init(table(12));
        for _ in 0..12 {
            let mut devs: Vec<c_int> = (0..8).collect();
            rng.shuffle(&mut devs);
            devs.truncate(1 + rng.below(8));
            let dev = newest().fuse(&devs);
            let mut rig = Rig::new(table(12), ctx, dev, 10 * MIB);
            for _ in 0..12 {
                let largest = rng.pick(&[200, 5000, 70_000, MIB]);
                let lens: Vec<usize> = (0..1 + rng.below(8))
                    .map(|_| if rng.below(6) == 0 { 0 } else { rng.below(largest) })
                    .collect();
                let in_order: Vec<u64> = devs.iter().map(|d| u64::from(SPEEDS[*d as usize])).collect();
                let halvings =
                    in_order.iter().max().map_or(0, |s| (64 - s.leading_zeros()).saturating_sub(16));
                let weights: Vec<u64> = in_order.iter().map(|s| s >> halvings).collect();
                let counted = during(|| rig.exchange(&lens));
                let expected = by_the_rule(&lens, &weights, 0);
                for (place, rail) in devs.iter().zip(expected) {
                    assert_eq!(counted[*place as usize], rail, "rail {place} of {devs:?}, {lens:?}");
                }
                let idle = (0..8).filter(|d| !devs.contains(&(*d as c_int)));
                assert!(idle.map(|d| counted[d]).all(|c| c == Carried::default()), "{devs:?}: {counted:?}");
            }
            rig.close();
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Rails that are down when a connection is made: the others carry all, in their proportion, and
/// one line says so.
//= fused-devices.md: every subset of the rails carries all data
#[test]
fn any_subset_of_the_rails_will_do() {
    on_eight_rails(here!(), &[], || {
        let (ctx, dev) = newest_device(4);
        for up in 1u8..16 {
            for i in 0..4 {
                softverbs::set_link(&format!("r{i}"), up >> i & 1 == 1).unwrap();
            }
            take_warnings();
            let mut rig = Rig::new(table(12), ctx, dev, MIB + 1);
            let lines = take_warnings();
            assert_eq!(lines.is_empty(), up == 15, "{up:#b}: {lines:?}");
            for down in (0..4).filter(|i| up >> i & 1 == 0) {
                assert!(lines.iter().any(|l| l.contains(&format!("r{down}:1"))), "{up:#b}: {lines:?}");
            }
            let weights: Vec<u64> =
                (0..8).map(|i| if i < 4 && up >> i & 1 == 1 { WEIGHTS[i] } else { 0 }).collect();
            // The fastest that is left says by how much all are halved, which changes rounding;
            // these speeds have none.
            let cts = up.trailing_zeros() as usize;
            for lens in [&[MIB][..], &[MIB + 1], &[0], &[1000, 30_000]] {
                let counted = during(|| rig.exchange(lens));
                let mut expected = by_the_rule(lens, &weights, cts);
                // The connection has all four rails, and an immediate room for fewer sizes.
                let fits = |rails| lens.len() == 1 && fits_immediate(lens[0], rails);
                expected[cts].bytes += if fits(up.count_ones() as usize) && !fits(4) { 64 } else { 0 };
                assert_eq!(counted, expected, "{up:#b}: {lens:?}");
            }
            rig.close();
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// A connection from one device of this process to another.
fn between(ctx: Ptr, from: c_int, to: c_int) -> Pair {
    let mut handle = [0; 128];
    let (rc, listen) = table(12).listen(ctx, to, &mut handle);
    assert_eq!(rc, Success, "listen");
    let (mut send, mut recv) = (Ptr::default(), Ptr::default());
    until("connect and accept", || {
        if send.is_null() {
            let (rc, comm) = table(12).connect(ctx, from, &mut handle);
            assert_eq!(rc, Success, "connect");
            send = comm;
        }
        if recv.is_null() {
            recv = table(12).accept(listen).1;
        }
        (!send.is_null() && !recv.is_null()).then_some(())
    });
    assert_eq!(table(12).close_listen(listen), Success);
    Pair { table: table(12), send, recv }
}

/// Devices of four, two and one rails in either direction: as many rails are joined as the smaller
/// has, in their proportion.
//= fused-devices.md: devices of unequal width join as many rails as the smaller has
#[test]
fn ends_of_unequal_width_use_what_they_have_in_common() {
    // Addresses do not show here which ports are joined, and some probes stay without an
    // answer; so these end soon.
    on_eight_rails(here!(), &mpib_tests::SHORT, || {
        let ctx = init(table(12));
        let [four, two, one] = [&[0, 1, 2, 3][..], &[1, 2], &[3]].map(|d| newest().fuse(d));
        for (a, b, rails) in [(four, two, &[1, 2][..]), (four, one, &[3]), (four, four, &[0, 1, 2, 3])] {
            for (from, to) in [(a, b), (b, a)] {
                take_warnings();
                let mut rig = Rig::of(between(ctx, from, to), 2 * MIB);
                let mut weights = vec![0; 8];
                rails.iter().for_each(|rail| weights[*rail] = WEIGHTS[*rail]);
                for lens in [&[MIB][..], &[0], &[MIB + 1], &[1000, 70_000, 0]] {
                    let counted = during(|| rig.exchange(lens));
                    assert_eq!(counted, by_the_rule(lens, &weights, rails[0]), "{from} to {to}: {lens:?}");
                }
                rig.close();
            }
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// SOUT and SUP of one host, two plain rails of another: no islands, no share, but both rails by
/// their speeds.
//= fused-devices.md: plain rails and SOUT/SUP connect rail by rail
#[test]
fn plain_rails_and_sout_and_sup_meet_rail_by_rail() {
    let (ours, theirs) = (rails(8, 1), rails(8, 2));
    let env = [("SOFTVERBS_DEVICES", ours.as_str()), ("MPIB_RAIL_SPEED", "r0:200000,r1:100000")];
    with_and_without_srq(here!(), &env, || {
        let (ctx, dev) = newest_device(2);
        let theirs =
            [("SOFTVERBS_DEVICES", theirs.as_str()), ("MPIB_HCA_SOUT", "r0"), ("MPIB_HCA_SUP", "r1")];
        let mut peer = Peer::start_with(&theirs);
        let mut handle = handle_of(&peer.ask("listen"));
        peer.say("accept");
        let send = connected_by(table(12), ctx, dev, &mut handle);
        assert_eq!(peer.answer(), "ok");
        let (rc, listen) = table(12).listen(ctx, dev, &mut handle);
        assert_eq!(rc, Success);
        peer.say(&format!("connect {}", word(&handle)));
        let recv = accepted(table(12), listen);
        assert_eq!((peer.answer().as_str(), table(12).close_listen(listen)), ("ok", Success));
        let pair = Pair { table: table(12), send, recv };
        let (from, to) = (pair.send_buffer(pattern(MIB, 5)), pair.recv_buffer(MIB));
        let counted = during(|| {
            peer.say(&format!("recv {MIB} 5"));
            assert_eq!(peer::wait(table(12), peer::send(table(12), send, &from, MIB)), MIB);
            assert_eq!(peer.answer(), "ok");
        });
        let expected = by_the_rule(&[MIB], &[2, 1, 0, 0, 0, 0, 0, 0], 0);
        assert_eq!(counted[0].bytes, expected[0].bytes - 64, "the peer's CTS entry is its own");
        assert_eq!(counted[1..], expected[1..]);
        let request = peer::recv(table(12), recv, &to, MIB);
        peer.must(&format!("send {MIB} 6"));
        assert_eq!(peer::wait(table(12), request), MIB);
        assert!(to.bytes == pattern(MIB, 6));
        from.dereg();
        to.dereg();
        pair.close();
        peer.finish();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Several connections at once, each on a device of other rails, and both directions.
//= fused-devices.md: devices that share rails do not disturb each other
#[test]
fn devices_that_share_rails_do_not_disturb_each_other() {
    on_eight_rails(here!(), &[], || {
        let ctx = init(table(12));
        let devices = [&[0, 1, 2][..], &[2, 1], &[7, 6, 5, 4, 3, 2, 1, 0], &[3]].map(|d| newest().fuse(d));
        let pairs = devices.map(|dev| [connect(table(12), ctx, dev), connect(table(12), ctx, dev)]);
        std::thread::scope(|scope| {
            for (i, pair) in pairs.iter().flatten().enumerate() {
                scope.spawn(move || {
                    for n in 0..60u64 {
                        let len = (n as usize * 7919 + i * 131) % 200_000;
                        pair.message(len, len, n + i as u64);
                    }
                });
            }
        });
        pairs.into_iter().flatten().for_each(Pair::close);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// With the default of `MPIB_SPLIT_MIN` a message below 64 KiB takes the rail with the least in
/// flight for its speed: of 16 at once, twice as many on the rail of twice the speed.
//= fused-devices.md: small messages go whole on the rail with the least in flight
#[test]
fn small_messages_in_flight_are_spread_over_the_rails() {
    let (devices, speed) = (rails(8, 1), speeds(&[200_000, 100_000, 100_000]));
    let env = [("SOFTVERBS_DEVICES", &*devices), ("MPIB_RAIL_SPEED", &*speed), ("MPIB_SPLIT", "speed")];
    isolated(here!(), &env, || {
        const SIZE: usize = 4096;
        const AT_ONCE: usize = 16;
        let (ctx, dev) = newest_device(3);
        let pair = connect(table(12), ctx, dev);
        let (from, to) = (pair.send_buffer(pattern(SIZE * AT_ONCE, 3)), pair.recv_buffer(SIZE * AT_ONCE));
        let receives: Vec<_> =
            (0..AT_ONCE).map(|i| pair.irecv(&[(to.addr() + i * SIZE, SIZE, 1, to.mr)])).collect();
        let before = carried(8);
        let sends: Vec<_> =
            (0..AT_ONCE).map(|i| pair.isend(from.addr() + i * SIZE, SIZE, 1, from.mr)).collect();
        let signals = |i: usize| carried(8)[i].signals - before[i].signals;
        assert_eq!([0, 1, 2].map(signals), [8, 4, 4]);
        for request in sends.into_iter().chain(receives) {
            assert_eq!(pair.wait(request)[0] as usize, SIZE);
        }
        assert!(to.bytes == from.bytes);
        // A group is posted at once: its sends count before they are in flight.
        let group: Vec<_> = (0..8).map(|i| (to.addr() + i * SIZE, SIZE, i as c_int, to.mr)).collect();
        let counted = during(|| {
            let receive = pair.irecv(&group);
            let sends: Vec<_> =
                (0..8).map(|i| pair.isend(from.addr() + i * SIZE, SIZE, i as c_int, from.mr)).collect();
            sends.into_iter().chain([receive]).for_each(|request| _ = pair.wait(request));
        });
        let [first, second, third] = [0, 1, 2].map(|i: usize| counted[i].bytes as usize / SIZE);
        assert_eq!([first, second, third], [4, 2, 2], "messages of a group of 8");
        // One at a time: always the fastest rail.
        for i in 0..4 {
            assert_eq!(during(|| pair.message(SIZE, SIZE, i))[0].signals, 1, "message {i}");
        }
        from.dereg();
        to.dereg();
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
