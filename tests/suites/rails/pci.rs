//! Where adapters are on the PCI bus, and what NCCL learns of that.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use mpib_tests::code::{InvalidArgument, Success};
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect, init};
use mpib_tests::process::MERGE;
use mpib_tests::table::{TABLES, Table, newest};
use mpib_tests::vdevices::{self, Rig, VERSIONS};
use mpib_tests::{here, is_child, isolated, set};
use tempfile::TempDir;

/// A sysfs with these adapters at their PCI addresses, and the list of devices that have it.
struct Sysfs {
    folder: TempDir,
    devices: String,
}

impl Sysfs {
    /// Name and address of each in the order of the verbs library; one without an address is in no
    /// sysfs.
    fn new(adapters: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device = |(i, (name, address)): (usize, &(&str, &str))| {
            let place = folder.path().join(name);
            let mut device = format!("{name}:addr=10.0.{i}.1/24");
            if let Some((bus, _)) = address.rsplit_once(':') {
                // Functions of a card have one system image GUID.
                device += &format!(",system=0x{}", bus.replace(':', ""));
                let pci = folder.path().join("pci0000:16").join(address);
                fs::create_dir_all(&pci).unwrap();
                fs::create_dir(&place).unwrap();
                symlink(&pci, place.join("device")).unwrap();
                device += &format!(",sysfs={}", place.display());
            }
            device
        };
        let devices = adapters.iter().enumerate().map(device).collect::<Vec<_>>().join(";");
        Self { folder, devices }
    }
}

/// Name, port, and last part of the PCI path of each device.
fn listed(table: &'static Table) -> Vec<(String, i32, String)> {
    let device = |dev| {
        let props = table.properties(dev).1.unwrap();
        let path = props.pci_path.unwrap_or_default();
        (props.name.unwrap(), props.port, path.rsplit('/').next().unwrap_or_default().to_owned())
    };
    (0..table.devices().1).map(device).collect()
}

fn with(test: &str, adapters: &[(&str, &str)], env: &[(&str, &str)], body: impl FnOnce()) {
    with_sysfs(test, adapters, |_| (), env, body);
}

/// Like [`with`]. `prepare` adds to the sysfs, in which each adapter has a folder with its name.
fn with_sysfs(
    test: &str,
    adapters: &[(&str, &str)],
    prepare: impl FnOnce(&Path),
    env: &[(&str, &str)],
    body: impl FnOnce(),
) {
    if is_child(test) {
        isolated(test, &[], body);
        return;
    }
    let sysfs = Sysfs::new(adapters);
    prepare(sysfs.folder.path());
    let env = [env, &[("SOFTVERBS_DEVICES", sysfs.devices.as_str())]].concat();
    isolated(test, &env, body);
    drop(sysfs.folder);
}

/// As `(name, port, address)` is shown.
fn shown(devices: &[(&str, i32, &str)]) -> Vec<(String, i32, String)> {
    devices.iter().map(|(name, port, pci)| ((*name).to_owned(), *port, (*pci).to_owned())).collect()
}

//= devices.md: the ports of one GUID have a number each
//= devices.md: functions of one card have one PCI path
//= adapters.md: A9: functions of one card have its PCI path
#[test]
fn functions_of_one_card_are_ports_of_it() {
    let adapters = [
        ("m0", "0000:17:00.0"),
        ("m1", "0000:17:00.1"),
        ("m2", "0000:18:00.0"),
        ("v3", "0000:18:01.2"),
        ("v4", "0001:17:00.0"),
        ("s5", ""),
        ("s6", ""),
    ];
    with(here!(), &adapters, &[], || {
        for table in TABLES {
            let ctx = init(table);
            // NCCL 2.24 to 2.26 compare all but the last digit of the paths.
            let m1 = if [9, 10].contains(&table.version()) { "0000:17:00.1" } else { "0000:17:00.0" };
            let expected = [
                ("m0", 1, "0000:17:00.0"),
                ("m1", 2, m1),
                ("m2", 1, "0000:18:00.0"),
                ("v3", 2, "0000:18:01.2"),
                ("v4", 1, "0001:17:00.0"),
                ("s5", 1, ""),
                ("s6", 1, ""),
            ];
            assert_eq!(listed(table), shown(&expected), "v{}", table.version());
            assert_eq!(table.finalize(ctx), Success);
        }
        let ctx = init(newest());
        let pair = connect(newest(), ctx, 1);
        pair.message(10_000, 10_000, 1);
        pair.close();
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

//= adapters.md: the ports of one adapter are devices of one card
#[test]
fn the_ports_of_one_adapter_are_devices_of_one_card() {
    let adapters = [("m0", "0000:17:00.0"), ("m0/2", ""), ("m2", "0000:18:00.0")];
    with(here!(), &adapters, &[], || {
        for table in TABLES {
            let ctx = init(table);
            let expected =
                [("m0:1", 1, "0000:17:00.0"), ("m0:2", 2, "0000:17:00.0"), ("m2", 1, "0000:18:00.0")];
            assert_eq!(listed(table), shown(&expected), "v{}", table.version());
            assert_eq!(table.finalize(ctx), Success);
        }
        // One device of both.
        let ctx = init(newest());
        let fused = vdevices::newest().fuse(&[0, 1]);
        let written = || {
            let counters = softverbs::counters();
            let of = |name| counters.iter().find(|port| port.name == name).unwrap().total.bytes;
            ["m0", "m0/2", "m2"].map(of)
        };
        let before = written();
        let mut rig = Rig::new(newest(), ctx, fused, 1 << 20);
        rig.exchange(&[1 << 20]);
        let carried: Vec<_> = written().iter().zip(before).map(|(now, before)| now - before).collect();
        assert!(carried[0] > 500_000 && carried[1] > 500_000 && carried[2] == 0, "{carried:?}");
        rig.close();
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

//= devices.md: the ports of one GUID have a number each
#[test]
fn a_port_that_is_not_shown_does_not_count() {
    let adapters = [("m0", "0000:17:00.0"), ("m1", "0000:17:00.1")];
    with(here!(), &adapters, &[("NCCL_IB_HCA", "m1")], || {
        let ctx = init(newest());
        assert_eq!(listed(newest()), shown(&[("m1", 1, "0000:17:00.0")]));
        assert_eq!(newest().finalize(ctx), Success);
    });
}

/// v1 is a virtual function of m0, on the bus after it. With this setting it has this path.
fn virtual_function(test: &str, merge: &str, path: &str) {
    let adapters = [("m0", "0000:17:00.0"), ("v1", "0000:18:00.3"), ("g2", "0000:19:00.0")];
    let link = |sysfs: &Path| {
        symlink(sysfs.join("m0/device").canonicalize().unwrap(), sysfs.join("v1/device/physfn")).unwrap();
    };
    with_sysfs(test, &adapters, link, &[("NCCL_IB_MERGE_VFS", merge)], || {
        let ctx = init(newest());
        // It is m0's port in any case.
        let expected = [("m0", 1, "0000:17:00.0"), ("v1", 1, path), ("g2", 1, "0000:19:00.0")];
        assert_eq!(listed(newest()), shown(&expected));
        let of = |dev| newest().properties(dev).1.unwrap();
        assert_eq!((of(0).guid, of(0).speed, of(1).speed), (of(1).guid, 100_000, 100_000));
        assert_ne!(of(0).guid, of(2).guid);
        // A device of both is as fast as their port.
        let fused = vdevices::newest().fuse(&[0, 1]);
        assert_eq!((of(fused).speed, of(vdevices::newest().fuse(&[0, 2])).speed), (100_000, 200_000));
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

//= configuration.md: NCCL_IB_MERGE_VFS
//= adapters.md: A9: functions of one card have its PCI path
#[test]
fn a_virtual_function_is_where_its_physical_one_is() {
    virtual_function(here!(), "1", "0000:17:00.0");
}

#[test]
fn a_virtual_function_has_a_path_if_configured() {
    virtual_function(here!(), "0", "0000:18:00.3");
}

//= fused-devices.md: functions of one wire have one pair of GUID and port, and the speed of the wire
#[test]
fn functions_on_two_links_of_a_port_are_one_wire() {
    let adapters = [("m0", "0000:01:00.0"), ("m1", "0000:01:00.1"), ("m2", "0002:01:00.0")];
    let name = |sysfs: &Path| {
        for (adapter, port) in [("m0", "p0"), ("m1", "p1"), ("m2", "p0")] {
            let interface = sysfs.join(adapter).join("device/net/eth0");
            fs::create_dir_all(&interface).unwrap();
            fs::write(interface.join("phys_port_name"), format!("{port}\n")).unwrap();
            fs::write(interface.join("phys_switch_id"), "30fc4c\n").unwrap();
        }
    };
    // Each port reports 100 Gb/s.
    with_sysfs(here!(), &adapters, name, &[("MPIB_RAIL_SPEED", "m0:60000,m2:60000")], || {
        let ctx = init(newest());
        let [m0, m1, m2] = [0, 1, 2].map(|dev| {
            let props = newest().properties(dev).1.unwrap();
            (props.guid, props.port, props.speed)
        });
        assert_eq!((m0.1, m0.2), (1, 100_000));
        assert_eq!(m0, m2);
        assert_eq!(m1, (m0.0, 2, 100_000));
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

/// SOUT is m0, SUP is m1. With this setting their device has this path. If `apart`, their NUMA
/// nodes differ.
fn two_rails(test: &str, setting: (&str, &str), path: &str, apart: bool) {
    let adapters = [("m0", "0000:17:00.0"), ("m1", "0000:3b:00.1")];
    let env = [("MPIB_HCA_SOUT", "m0"), ("MPIB_HCA_SUP", "m1"), setting];
    let nodes = if apart { ["0\n", "1\n"] } else { ["1\n", "1\n"] };
    let write = |sysfs: &Path| {
        for ((name, _), node) in adapters.iter().zip(nodes) {
            fs::write(sysfs.join(name).join("device/numa_node"), node).unwrap();
        }
    };
    with_sysfs(test, &adapters, write, &env, || {
        let ctx = init(newest());
        assert_eq!(listed(newest()), shown(&[("m0+m1", 1, path)]), "{setting:?}");
        let shown = if path.contains("3b") { "m1:1" } else { "m0:1" };
        let text =
            format!("SOUT m0:1 and SUP m1:1 are on NUMA nodes 0 and 1: NCCL sees the place of {shown} alone");
        let lines = take_warnings();
        assert_eq!(lines.len(), usize::from(apart), "{lines:?}");
        assert!(lines.iter().all(|line| line.contains(&text)), "{lines:?}");
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= mpib.md: pciPath, guid and port are those of the rail that carries most data
//= adapters.md: A7: NCCL sees the rail that carries most data
#[test]
fn in_vanilla_mode_the_device_is_where_sup_is() {
    two_rails(here!(), ("MPIB_MODE", "0"), "0000:3b:00.1", false);
}

#[test]
fn in_advanced_mode_the_device_is_where_sout_is() {
    two_rails(here!(), ("MPIB_MODE", "1"), "0000:17:00.0", false);
}

#[test]
fn with_a_fixed_share_the_device_is_where_most_data_is() {
    two_rails(here!(), ("MPIB_SUP_SHARE", "512"), "0000:3b:00.1", false);
}

#[test]
fn with_a_small_share_the_device_is_where_sout_is() {
    two_rails(here!(), ("MPIB_SUP_SHARE", "511"), "0000:17:00.0", false);
}

//= mpib.md: SOUT and SUP on two NUMA nodes or PCI roots are a warning
//= adapters.md: A7: NCCL sees the rail that carries most data
#[test]
fn rails_that_are_far_from_each_other_are_one_warning() {
    two_rails(here!(), ("MPIB_MODE", "0"), "0000:3b:00.1", true);
}

#[test]
fn the_warning_names_the_rail_that_nccl_sees() {
    two_rails(here!(), ("MPIB_MODE", "1"), "0000:17:00.0", true);
}

/// Listed in no order of addresses, and with one that has none.
const MIXED: [(&str, &str); 5] = [
    ("m0", "0000:b1:00.0"),
    ("s1", ""),
    ("m2", "0000:17:00.1"),
    ("m3", "10000:01:00.0"),
    ("m4", "0000:17:00.0"),
];

//= configuration.md: NCCL_IB_DEVICE_PCI_ORDER
#[test]
fn devices_are_in_the_order_of_their_pci_addresses() {
    with(here!(), &MIXED, &[], || {
        let ctx = init(newest());
        let expected = [
            ("m4", 1, "0000:17:00.0"),
            ("m2", 2, "0000:17:00.0"),
            ("m0", 1, "0000:b1:00.0"),
            ("m3", 1, "10000:01:00.0"),
            ("s1", 1, ""),
        ];
        assert_eq!(listed(newest()), shown(&expected));
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

#[test]
fn devices_are_in_the_order_of_the_library_if_configured() {
    with(here!(), &MIXED, &[("NCCL_IB_DEVICE_PCI_ORDER", "0")], || {
        let ctx = init(newest());
        let names: Vec<_> = listed(newest()).into_iter().map(|(name, port, _)| (name, port)).collect();
        let expected = [("m0", 1), ("s1", 1), ("m2", 1), ("m3", 1), ("m4", 2)];
        assert_eq!(names, expected.map(|(name, port)| (name.to_owned(), port)));
        assert_eq!(newest().finalize(ctx), Success);
    });
}

#[test]
fn the_speed_of_xdr_is_reported() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", "n:link=ib,rate=400Gb;x:link=ib,rate=800Gb")], || {
        let ctx = init(newest());
        let speeds = [0, 1].map(|dev| newest().properties(dev).1.unwrap().speed);
        assert_eq!(speeds, [400_000, 800_000]);
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

/// NCCL 2.27 and later find no path to a device that is made of devices without a PCI address. With
/// no setting at all such devices stay separate, and NCCL uses each.
//= fused-devices.md: devices without a PCI address are not fused with each other
#[test]
fn devices_without_a_pci_address_stay_separate() {
    let adapters = [("a", ""), ("b", ""), ("c", "0000:17:00.0"), ("d", "0000:17:00.1")];
    with(here!(), &adapters, &[], || {
        let made = |members: &[i32]| {
            let count = newest().devices().1;
            let codes: Vec<_> = VERSIONS.iter().map(|v| v.make(members.len() as i32, members)).collect();
            (codes, newest().devices().1 - count)
        };
        set(MERGE, None::<&str>);
        let ctx = init(newest());
        let none = vec![(InvalidArgument, -1); VERSIONS.len()];
        // Those with an address come first.
        assert_eq!(listed(newest()).iter().map(|d| d.0.as_str()).collect::<Vec<_>>(), ["c", "d", "a", "b"]);
        assert_eq!(made(&[2, 3]), (none, 0));
        // One alone, the ports of one card, and one of each kind are devices.
        for (members, made_of) in [(&[2][..], 4), (&[0, 1], 5), (&[0, 2], 6)] {
            assert_eq!(made(members), (vec![(Success, made_of); VERSIONS.len()], 1), "{members:?}");
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
        for dev in [2, 3] {
            let pair = connect(newest(), ctx, dev);
            pair.message(100_000, 100_000, 1);
            pair.close();
        }
        assert_eq!(newest().finalize(ctx), Success);
        // The user requests it: NCCL 2.24 to 2.26 can use such a device.
        set(MERGE, Some("a,b"));
        let ctx = init(newest());
        assert_eq!(made(&[2, 3]), (vec![(Success, 4); VERSIONS.len()], 1));
        assert_eq!(newest().finalize(ctx), Success);
    });
}
