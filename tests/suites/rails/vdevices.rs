//! makeVDevice: the properties of the new device, its lifetime, and the requests that it refuses.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_tests::code::{InvalidArgument, InvalidUsage, Success};
use mpib_tests::log::{LOG, take_warnings};
use mpib_tests::pair::{connect, init};
use mpib_tests::table::{TABLES, table};
use mpib_tests::vdevices::{Made, VERSIONS, newest, rails, speeds};
use mpib_tests::{here, isolated, mpib, set};

/// Marks the planes of a device that is made of several.
const FUSED: i16 = 1 << 14;
const SPEEDS: [u32; 8] = [400_000, 200_000, 100_000, 50_000, 25_000, 12_500, 6_000, 1];

fn count() -> c_int {
    let (rc, n) = table(12).devices();
    assert_eq!(rc, Success);
    n
}

//= fused-devices.md: a fused device has the sum of the speeds and the joined names
#[test]
fn a_device_has_the_sum_of_its_members_and_their_names() {
    let (devices, speed) = (rails(8, 1), speeds(&SPEEDS));
    isolated(here!(), &[("SOFTVERBS_DEVICES", &devices), ("MPIB_RAIL_SPEED", &speed)], || {
        let ctx = init(table(12));
        let first = table(12).properties(0).1.unwrap();
        for version in VERSIONS {
            for n in 1..=version.most {
                // Other members for each version: each version makes a new device.
                let devs: Vec<c_int> = (0..n as c_int).map(|i| (i + version.number as c_int) % 8).collect();
                let before = count();
                let dev = version.fuse(&devs);
                assert_eq!((dev, count()), (before, before + 1), "v{} {devs:?}", version.number);
                let names: Vec<_> = devs.iter().map(|d| format!("r{d}")).collect();
                let sum: u32 = devs.iter().map(|d| SPEEDS[*d as usize]).sum();
                let lead = table(12).properties(devs[0]).1.unwrap();
                for table in TABLES {
                    let p = table.properties(dev).1.unwrap();
                    assert_eq!(
                        (p.name, p.speed),
                        (Some(names.join("+")), sum as c_int),
                        "v{}",
                        table.version()
                    );
                    assert_eq!((p.guid, p.port, p.pci_path), (lead.guid, lead.port, lead.pci_path.clone()));
                    assert_eq!((p.ptr_support, p.max_recvs), (first.ptr_support, 8));
                    assert!(p.max_comms > 0);
                }
                // Up to v11 NCCL has room for four.
                for v in VERSIONS.iter().filter(|v| v.most >= n) {
                    assert_eq!(v.made(dev).members, devs, "v{}", v.number);
                }
            }
        }
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn the_same_request_gives_the_same_device() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(4, 1))], || {
        let ctx = init(table(12));
        let made: Vec<_> = [&[0, 1][..], &[1, 0], &[0, 1, 2], &[0], &[2]].map(|d| newest().fuse(d)).into();
        assert_eq!((made.clone(), count()), (vec![4, 5, 6, 7, 8], 9));
        for version in VERSIONS {
            assert_eq!(version.fuse(&[0, 1]), 4, "v{}", version.number);
            assert_eq!(version.fuse(&[1, 0]), 5);
            assert_eq!(version.fuse(&[0]), 7);
        }
        assert_eq!(count(), 9);
        // One line for each that was made, and none for one that was there.
        let log = LOG.lock().unwrap();
        let reported: Vec<_> =
            log.iter().filter(|(_, l)| l.contains("made of [")).map(|(_, l)| l.clone()).collect();
        assert_eq!(reported.len(), 5, "{reported:?}");
        assert!(
            reported[0].contains("device 4 made of [0, 1]: r0+r1 (r0:1 Ethernet 100000 Mb/s + r1:1"),
            "{reported:?}"
        );
        drop(log);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Nothing is made, and one line says what was found and what is expected.
fn refused(devs: &[c_int], parts: &[&str]) {
    let before = count();
    for version in VERSIONS.iter().filter(|v| devs.len() <= v.most) {
        let (rc, d) = version.make(devs.len() as c_int, devs);
        let lines = take_warnings();
        // Not 5: for that NCCL 2.24 and 2.25 fail the communicator.
        assert_eq!(
            (rc, d, count()),
            (InvalidArgument, -1, before),
            "v{} {devs:?}: {lines:?}",
            version.number
        );
        let [line] = &lines[..] else { panic!("{devs:?}: not one line but {lines:?}") };
        assert!(
            line.contains("makeVDevice: ") && parts.iter().all(|p| line.contains(p)),
            "{parts:?} in {line}"
        );
    }
}

//= fused-devices.md: refused requests are logged with what was found and expected
#[test]
fn bad_requests_say_what_was_found_and_what_is_expected() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(3, 1))], || {
        let ctx = init(table(12));
        let made = newest().fuse(&[0, 1]);
        refused(&[3 + 1], &["device 4: expected 0 to 2, which are the physical devices"]);
        refused(&[0, c_int::MAX], &["device 2147483647: expected 0 to 2"]);
        refused(&[-1], &["-1"]);
        refused(&[0, 1, 0], &["device 0 (r0) is named twice"]);
        refused(
            &[made],
            &["device 3 (r0+r1) is itself made of others: expected physical devices, which are 0 to 2"],
        );
        refused(&[made, 2], &["device 3 (r0+r1) is itself made of others"]);
        for version in VERSIONS {
            let most = version.most as c_int;
            for ndevs in [0, -1, c_int::MIN, most + 1, c_int::MAX] {
                let (rc, d) = version.make(ndevs, &[0, 1]);
                let lines = take_warnings();
                assert_eq!(
                    (rc, d, lines.len()),
                    (InvalidArgument, -1, 1),
                    "v{} {ndevs}: {lines:?}",
                    version.number
                );
                assert!(
                    lines[0].contains(&ndevs.to_string()) && lines[0].contains(&most.to_string()),
                    "{lines:?}"
                );
            }
        }
        assert_eq!(count(), 4);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

#[test]
fn before_init_there_is_nothing_to_fuse() {
    isolated(here!(), &[], || {
        for version in VERSIONS {
            assert_eq!(version.make(1, &[0]), (InvalidUsage, -1));
        }
        let ctx = init(table(12));
        assert_eq!(newest().fuse(&[0, 1]), 2);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= fused-devices.md: InfiniBand and Ethernet ports are not fused
#[test]
fn link_layers_are_not_mixed() {
    let devices = "r0:addr=10.0.0.1/24;r1:link=ib;r2:link=ib;r3:addr=10.0.3.1/24";
    isolated(here!(), &[("SOFTVERBS_DEVICES", devices)], || {
        let ctx = init(table(12));
        let said = "r0:1 is Ethernet, r1:1 is InfiniBand: expected ports of one kind; NCCL_IB_HCA can leave";
        refused(&[0, 3, 1], &["r0+r3+r1", said]);
        refused(&[2, 0], &["r2:1 is InfiniBand, r0:1 is Ethernet"]);
        for devs in [[1, 2], [3, 0]] {
            let dev = newest().fuse(&devs);
            let pair = connect(table(12), ctx, dev);
            pair.message(100_000, 100_000, 1);
            pair.close();
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= fused-devices.md: SOUT and SUP are not fused with other devices
#[test]
fn sout_and_sup_are_one_device_already() {
    isolated(here!(), &mpib("512", &[]), || {
        let ctx = init(table(12));
        let whole = table(12).properties(0).1.unwrap();
        let dev = newest().fuse(&[0]);
        assert_eq!((dev, table(12).properties(dev).1.unwrap()), (1, whole));
        assert_eq!(newest().made(dev), Made { members: vec![0], ids: Some((-1, -1)) });
        // Split as before: half of it on each.
        let bytes = || softverbs::counters().iter().map(|d| d.total.bytes).collect::<Vec<_>>();
        let pair = connect(table(12), ctx, dev);
        let before = bytes();
        pair.message(1 << 20, 1 << 20, 1);
        let carried: Vec<_> = bytes().iter().zip(before).map(|(a, b)| a - b).collect();
        assert_eq!(carried, [(1 << 19) + 64, 1 << 19], "payload, and a CTS entry on SOUT");
        pair.close();
        refused(
            &[0, 1],
            &["device 1 (soft0+soft1) is itself made of others: expected physical devices, which are 0 to 0"],
        );
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= fused-devices.md: NCCL_IB_MERGE_NICS=0 refuses devices of several members
//= configuration.md: NCCL_IB_MERGE_NICS
#[test]
fn nothing_is_fused_if_disabled() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(3, 1)), ("NCCL_IB_MERGE_NICS", "0")], || {
        let ctx = init(table(12));
        for version in VERSIONS {
            assert_eq!(version.make(2, &[0, 1]), (InvalidArgument, -1), "v{}", version.number);
        }
        // NCCL 2.24 to 2.26 make one of each device that they join with no other.
        assert_eq!((newest().fuse(&[1]), newest().fuse(&[2]), count()), (3, 4, 5));
        assert_eq!(take_warnings(), Vec::<String>::new());
        let pair = connect(table(12), ctx, 3);
        pair.message(100_000, 100_000, 1);
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
        // With the next communicator the user may want otherwise.
        set("NCCL_IB_MERGE_NICS", None::<&str>);
        let ctx = init(table(12));
        assert_eq!((newest().fuse(&[0, 1]), count()), (3, 4));
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= fused-devices.md: rail and plane come from NCCL_IB_HCA
#[test]
fn rail_and_plane_are_those_of_the_filter() {
    let filter = "=r0:1:3:7,r1:1:3:8,r2:1:4,r3";
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(4, 1)), ("NCCL_IB_HCA", filter)], || {
        let ctx = init(table(12));
        let ids = |dev| newest().made(dev).ids.unwrap();
        assert_eq!([0, 1, 2, 3].map(ids), [(3, 7), (3, 8), (4, -1), (-1, -1)]);
        // Of several the rail that they have in common, and the planes that they are on.
        for (devs, of_them) in [
            (&[0][..], (3, 7)),
            (&[0, 1], (3, FUSED | 0b110)),
            (&[0, 1, 2], (-1, FUSED | 0b111)),
            (&[0, 3], (-1, FUSED | 0b11)),
            (&[2, 3], (-1, FUSED | 0b1)),
        ] {
            assert_eq!(ids(newest().fuse(devs)), of_them, "{devs:?}");
        }
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// PCI addresses decide the order in which NCCL names the ports, and may differ between two hosts.
//= fused-devices.md: members are in the order of their planes
#[test]
fn members_are_in_the_order_of_their_planes() {
    let filter = "=r0:1:0:9,r1:1:0:8,r2:1:0:9,r3";
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(4, 1)), ("NCCL_IB_HCA", filter)], || {
        let ctx = init(table(12));
        for (devs, sorted, planes) in [
            (&[0, 1][..], &[1, 0][..], 0b110),
            (&[2, 0, 1, 3], &[3, 1, 2, 0], 0b111),
            (&[2, 0], &[2, 0], 0b10),
        ] {
            let made = newest().made(newest().fuse(devs));
            assert_eq!((&made.members[..], made.ids), (sorted, Some((made.ids.unwrap().0, FUSED | planes))));
        }
        // The same device under another order of its members.
        assert_eq!(newest().fuse(&[1, 0]), newest().fuse(&[0, 1]));
        assert_eq!(table(12).properties(4).1.unwrap().name.as_deref(), Some("r1+r0"));
        let pair = connect(table(12), ctx, 4);
        pair.message(100_000, 100_000, 1);
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= devices.md: NCCL has room for 13 planes
#[test]
fn a_device_on_too_many_planes_has_none() {
    let devices = (0..15).map(|i| format!("r{i:02}:addr=10.1.{i}.1/24")).collect::<Vec<_>>().join(";");
    let filter = (0..15).map(|i| format!("r{i:02}:1:0:{i}")).collect::<Vec<_>>().join(",");
    isolated(here!(), &[("SOFTVERBS_DEVICES", &devices), ("NCCL_IB_HCA", &filter)], || {
        let ctx = init(table(12));
        let plane = |devs: &[i32]| newest().made(newest().fuse(devs)).ids.unwrap().1;
        assert_eq!([plane(&[11, 12]), plane(&[12, 13])], [FUSED | 0b11 << 12, -1]);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// From v11 on NCCL finalizes, and counts the devices again when it comes back.
//= devices.md: virtual devices are dropped at the last finalize, from v11 on
#[test]
fn virtual_devices_go_with_the_last_finalize() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(3, 1))], || {
        for number in [11, 12] {
            let (a, b) = (init(table(number)), init(table(number)));
            assert_eq!(newest().fuse(&[0, 1]), 3);
            let pair = connect(table(number), b, 3);
            assert_eq!(table(number).finalize(a), Success);
            assert_eq!(count(), 4, "the other communicator has them still");
            pair.message(100_000, 100_000, 1);
            pair.close();
            assert_eq!(table(number).finalize(b), Success);
            let again = init(table(number));
            assert_eq!(count(), 3, "v{number}");
            assert_eq!((newest().fuse(&[1, 2]), newest().fuse(&[0, 1])), (3, 4), "others first");
            assert_eq!(table(12).properties(4).1.unwrap().name.as_deref(), Some("r0+r1"));
            let pair = connect(table(number), again, 4);
            pair.message(100_000, 100_000, 2);
            pair.close();
            assert_eq!(table(number).finalize(again), Success);
        }
    });
}

/// Before v11 NCCL never finalizes, and makes them once per process even if it closes the file and
/// opens it again.
//= devices.md: virtual devices stay where NCCL never finalizes
#[test]
fn virtual_devices_stay_where_nothing_is_finalized() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(2, 1))], || {
        init(table(9));
        assert_eq!(newest().fuse(&[0, 1]), 2);
        init(table(9));
        let ctx = init(table(12));
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(count(), 3);
        assert_eq!(table(9).properties(2).1.unwrap().name.as_deref(), Some("r0+r1"));
    });
}

/// An init that fails behind the opening of devices holds none of them.
#[test]
fn a_failed_init_keeps_no_device() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(2, 1))], || {
        let ctx = init(table(12));
        assert_eq!(newest().fuse(&[0, 1]), 2);
        set("MPIB_STRICT", Some("1"));
        set("NCCL_IB_HCA", Some("r0"));
        assert_eq!(table(12).init().0, InvalidUsage);
        set("MPIB_STRICT", None::<&str>);
        set("NCCL_IB_HCA", None::<&str>);
        assert_eq!(table(12).finalize(ctx), Success);
        let ctx = init(table(12));
        assert_eq!(count(), 2);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// One thread makes devices, others read them and move data over those that were there.
//= devices.md: devices can be added while others are in use
#[test]
fn devices_come_while_others_are_in_use() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(8, 1))], || {
        let ctx = init(table(12));
        let first = newest().fuse(&[0, 1, 2]);
        let pair = connect(table(12), ctx, first);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let n = count();
                        for dev in 0..n {
                            let p = table(12).properties(dev).1.unwrap();
                            let members = newest().made(dev).members;
                            let names: Vec<_> = members.iter().map(|m| format!("r{m}")).collect();
                            assert_eq!(p.name, Some(names.join("+")));
                        }
                    }
                });
            }
            let moving = scope.spawn(|| (0..100).for_each(|i| pair.message(30_000, 30_000, i)));
            for a in 0..8 {
                for b in (0..8).filter(|b| *b != a) {
                    newest().fuse(&[a, b]);
                }
            }
            moving.join().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(count(), 8 + 1 + 56);
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
