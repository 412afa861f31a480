//! Linked into a program: the crate provides its `ibv_*` symbols, and the program chooses the
//! devices.

use std::net::IpAddr;

use softverbs::{DeviceSpec, configure};

use crate::common::device_names;
use crate::peer::own_process;

#[test]
fn the_devices_are_those_that_were_configured() {
    own_process!();
    let device = |name: &str, last: u8| DeviceSpec::roce(name, &[(IpAddr::from([10, 0, 0, last]), 24)]);
    let devices = vec![device("sout", 1), device("sup", 2)];
    let twice = vec![device("sout", 1), device("sout", 2)];
    let error = configure(twice).expect_err("a name twice").to_string();
    assert!(error.contains("\"sout\"") && error.contains("twice"), "{error}");

    configure(vec![device("replaced", 9)]).expect("nothing is in use yet");
    configure(devices.clone()).expect("nothing is in use yet");
    assert_eq!(device_names(), ["sout", "sup"]);
    configure(devices).expect("the same");
    let error = configure(vec![device("other", 3)]).expect_err("in use").to_string();
    assert!(error.contains("in use"), "{error}");
    assert_eq!(device_names(), ["sout", "sup"]);

    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    assert!(!maps.contains("libibverbs.so"), "the system's libibverbs is loaded");
}
