//! Linked into a program: the crate provides its `ibv_*` symbols, and the program chooses the
//! devices.

use std::ffi::CStr;
use std::net::IpAddr;

use rdma_sys as sys;
use softverbs::{DeviceSpec, configure};

use crate::peer::own_process;

fn names() -> Vec<String> {
    let mut count = -1;
    // SAFETY: the list has `count` items and is freed once.
    unsafe {
        let list = sys::ibv_get_device_list(&raw mut count);
        assert!(!list.is_null());
        let count = usize::try_from(count).expect("written");
        let name = |i: usize| CStr::from_ptr(sys::ibv_get_device_name(*list.add(i))).to_str().expect("plain");
        let names = (0..count).map(|i| name(i).to_owned()).collect();
        assert!((*list.add(count)).is_null());
        sys::ibv_free_device_list(list);
        names
    }
}

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
    assert_eq!(names(), ["sout", "sup"]);
    configure(devices).expect("the same");
    let error = configure(vec![device("other", 3)]).expect_err("in use").to_string();
    assert!(error.contains("in use"), "{error}");
    assert_eq!(names(), ["sout", "sup"]);

    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    assert!(!maps.contains("libibverbs.so"), "the system's libibverbs is loaded");
}
