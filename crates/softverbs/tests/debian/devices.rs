//! ibv_devices and ibv_devinfo: the devices as programs see them.

use crate::support::pair::{Ended, Running, fabric, program};

fn run(name: &str, args: &[&str], devices: Option<&str>) -> Ended {
    let mut command = program(name);
    command.args(args).env("SOFTVERBS_FABRIC", fabric());
    if let Some(devices) = devices {
        command.env("SOFTVERBS_DEVICES", devices);
    }
    Running::start(command).end()
}

/// Returns the output of ibv_devinfo as keys and values, for each device.
fn devinfo(args: &[&str], devices: Option<&str>) -> Vec<Vec<(String, String)>> {
    let text = run("ibv_devinfo", args, devices).success();
    let mut parts: Vec<Vec<(String, String)>> = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        if key == "hca_id" {
            parts.push(Vec::new());
        }
        let part = parts.last_mut().unwrap_or_else(|| panic!("no hca_id before {key}:\n{text}"));
        part.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    parts
}

#[track_caller]
fn assert_fields(part: &[(String, String)], expected: &[(&str, &str)]) {
    for (key, value) in expected {
        let found: Vec<_> = part.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect();
        assert_eq!(found, [*value], "{key} in {part:#?}");
    }
}

#[test]
fn ibv_devices_lists_two_by_default() {
    let text = run("ibv_devices", &[], None).success();
    let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["soft0", "soft1"], "{text}");
    let guids: Vec<u64> =
        rows.iter().map(|row| u64::from_str_radix(row[1], 16).expect("hexadecimal")).collect();
    assert_ne!(guids[0], guids[1]);
    // The same spec is the same device in every process.
    assert_eq!(run("ibv_devices", &[], None).success(), text);
}

#[test]
fn other_addresses_are_another_host() {
    let guid = |devices| run("ibv_devices", &[], Some(devices)).success();
    assert_ne!(guid("soft0:addr=10.0.0.1/24"), guid("soft0:addr=10.0.0.2/24"));
    assert_ne!(guid("ib0:link=ib,lid=1"), guid("ib0:link=ib,lid=2"));
    // The rate does not change the identity of the device.
    assert_eq!(guid("soft0:addr=10.0.0.1/24"), guid("soft0:addr=10.0.0.1/24,rate=1GB,lat=5us,mtu=256"));
}

#[test]
fn ibv_devinfo_shows_a_roce_port() {
    let devices = "rail0:addr=10.0.0.1/24+fd00::1/64,rate=100Gb,mtu=1024";
    let parts = devinfo(&["-v"], Some(devices));
    let [part] = parts.as_slice() else { panic!("one device: {parts:#?}") };
    assert_fields(
        part,
        &[
            ("hca_id", "rail0"),
            ("transport", "InfiniBand (0)"),
            ("phys_port_cnt", "1"),
            ("state", "PORT_ACTIVE (4)"),
            ("phys_state", "LINK_UP (5)"),
            ("max_mtu", "4096 (5)"),
            ("active_mtu", "1024 (3)"),
            ("link_layer", "Ethernet"),
            ("port_lid", "0"),
            ("active_width", "4X (2)"),
            ("active_speed", "25.0 Gbps (32)"),
            ("atomic_cap", "ATOMIC_HCA (1)"),
            ("GID[  2]", "0000:0000:0000:0000:0000:ffff:0a00:0001, RoCE v1"),
            ("GID[  3]", "::ffff:10.0.0.1, RoCE v2"),
            ("GID[  4]", "fd00:0000:0000:0000:0000:0000:0000:0001, RoCE v1"),
            ("GID[  5]", "fd00::1, RoCE v2"),
        ],
    );
    let gids: Vec<_> = part.iter().filter(|(k, _)| k.starts_with("GID[")).collect();
    assert_eq!(gids.len(), 6, "{gids:#?}");
    assert!(gids[0].1.starts_with("fe80:") && gids[0].1.ends_with("RoCE v1"), "{gids:#?}");
    assert!(gids[1].1.starts_with("fe80:") && gids[1].1.ends_with("RoCE v2"), "{gids:#?}");
}

#[test]
fn ibv_devinfo_shows_an_infiniband_port() {
    let parts = devinfo(&["-v"], Some("ib0:link=ib,lid=7;ib1:link=ib,lid=8,rate=25GB"));
    assert_eq!(parts.len(), 2, "{parts:#?}");
    let port = [("link_layer", "InfiniBand"), ("sm_lid", "1"), ("port_lid", "7"), ("active_mtu", "4096 (5)")];
    assert_fields(&parts[0], &port);
    assert_fields(
        &parts[1],
        &[("port_lid", "8"), ("active_width", "4X (2)"), ("active_speed", "50.0 Gbps (64)")],
    );
    for part in &parts {
        let gids: Vec<_> = part.iter().filter(|(k, _)| k.starts_with("GID[")).collect();
        assert_eq!(gids.len(), 1, "{gids:#?}");
        assert!(gids[0].1.starts_with("fe80:0000:0000:0000:"), "{gids:#?}");
    }
}

#[test]
fn one_device_can_be_selected() {
    let parts = devinfo(&["-d", "soft1"], None);
    assert_eq!(parts.len(), 1, "{parts:#?}");
    assert_fields(&parts[0], &[("hca_id", "soft1")]);
}

#[test]
fn an_invalid_list_gives_one_line_and_no_devices() {
    for bad in
        ["", "soft0", "soft0:addr=10.0.0.1/24,rate=0GB", "soft0:addr=10.0.0.1/24;soft0:addr=10.0.0.2/24"]
    {
        let ended = run("ibv_devinfo", &[], Some(bad));
        assert!(!ended.status.success(), "{bad:?}: {}", ended.text);
        assert!(ended.text.contains("No IB devices found"), "{bad:?}: {}", ended.text);
        let ours: Vec<_> = ended.text.lines().filter(|line| line.contains("softverbs")).collect();
        let [line] = ours.as_slice() else { panic!("{bad:?}: expected one line: {ours:#?}") };
        for part in ["SOFTVERBS_DEVICES=", &format!("{bad:?}"), "expected", "NAME:KEY=VALUE"] {
            assert!(line.contains(part), "{bad:?}: no {part} in {line}");
        }
    }
}

#[test]
fn an_invalid_list_is_logged_even_if_logging_is_off() {
    let mut command = program("ibv_devices");
    command.env("SOFTVERBS_DEVICES", "soft0").env("SOFTVERBS_LOG", "off");
    let ended = Running::start(command).end();
    assert!(ended.text.contains("SOFTVERBS_DEVICES=\"soft0\""), "{}", ended.text);
}
