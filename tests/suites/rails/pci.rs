//! Where adapters are on the PCI bus, and what NCCL learns of that.

use std::fs;
use std::os::unix::fs::symlink;

use mpib_tests::code::{InvalidArgument, Success};
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect, init};
use mpib_tests::process::MERGE;
use mpib_tests::table::{TABLES, Table, newest};
use mpib_tests::vdevices::VERSIONS;
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
            if !address.is_empty() {
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
    if is_child(test) {
        isolated(test, &[], body);
        return;
    }
    let sysfs = Sysfs::new(adapters);
    let env = [env, &[("SOFTVERBS_DEVICES", sysfs.devices.as_str())]].concat();
    isolated(test, &env, body);
    drop(sysfs.folder);
}

/// As `(name, port, address)` is shown.
fn shown(devices: &[(&str, i32, &str)]) -> Vec<(String, i32, String)> {
    devices.iter().map(|(name, port, pci)| ((*name).to_owned(), *port, (*pci).to_owned())).collect()
}

//= fused-devices.md: the port number counts the functions of one card
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
            let expected = [
                ("m0", 1, "0000:17:00.0"),
                ("m1", 2, "0000:17:00.1"),
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

//= fused-devices.md: the port number counts the functions of one card
#[test]
fn a_port_that_is_not_shown_does_not_count() {
    let adapters = [("m0", "0000:17:00.0"), ("m1", "0000:17:00.1")];
    with(here!(), &adapters, &[("NCCL_IB_HCA", "m1")], || {
        let ctx = init(newest());
        assert_eq!(listed(newest()), shown(&[("m1", 1, "0000:17:00.1")]));
        assert_eq!(newest().finalize(ctx), Success);
    });
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
            ("m2", 2, "0000:17:00.1"),
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
