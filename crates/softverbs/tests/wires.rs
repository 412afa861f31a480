//! Reachability of ports: wires, prefixes and packet lengths.

use crate::common::*;
use crate::peer::own_process;
use softverbs::DeviceSpec;

const DEVICES: &str = "
    a:addr=10.0.0.1/24,wire=1; b:addr=10.0.0.2/24,wire=1; c:addr=10.0.0.3/24,wire=2; d:addr=10.0.0.4/24;
    wide:addr=10.0.0.5/8,wire=1; low:addr=10.0.0.6/25,wire=1; high:addr=10.0.0.130/25,wire=1; point:addr=10.0.1.0/31; other:addr=10.0.1.1/31;
    small:addr=10.0.2.1/24,mtu=512; big:addr=10.0.2.2/24; behind:addr=10.0.2.3/24,path_mtu=512";

/// Creates an end on the device with this name.
fn end(name: &str) -> End {
    let specs = DeviceSpec::parse_list(DEVICES).unwrap();
    let device = specs.iter().position(|spec| spec.name == name).unwrap();
    softverbs::configure(specs).unwrap();
    End::new(Opts { device, timeout: 8, retry: 1, ..Opts::default() })
}

/// Returns the completion status of a write of `len` bytes.
fn write(from: &str, to: &str, len: usize) -> u32 {
    let (a, b) = (end(from), end(to));
    a.connect(&b.address());
    b.connect(&a.address());
    let mut sges = [a.sge(0, len)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address(), 0)), 0);
    a.poll_send().status
}

fn reaches(from: &str, to: &str) -> bool {
    let (there, back) = (write(from, to, 8), write(to, from, 8));
    assert_eq!(there, back, "{from} and {to}");
    assert!(there == 0 || there == status::IBV_WC_RETRY_EXC_ERR, "{from} to {to}: {there}");
    there == 0
}

#[test]
fn ports_reach_those_of_their_wire_alone() {
    own_process!();
    let expected = [("a", "b", true), ("a", "c", false), ("a", "d", false), ("c", "d", false)];
    for (from, to, reached) in expected {
        assert_eq!(reaches(from, to), reached, "{from} {to}");
    }
}

#[test]
fn each_end_must_find_the_other_in_its_own_subnet() {
    own_process!();
    for (from, to, reached) in [
        ("a", "wide", true),
        ("a", "low", true),
        ("low", "wide", true),
        ("a", "high", false),
        ("wide", "high", false),
        ("low", "high", false),
        ("point", "other", true),
        ("point", "d", false),
    ] {
        assert_eq!(reaches(from, to), reached, "{from} {to}");
    }
}

/// The path MTU of these ends is 1024.
#[test]
fn packets_that_are_too_long_for_a_port_or_for_the_way_get_no_answer() {
    own_process!();
    for (to, len, expected) in [
        ("big", 5000, 0),
        ("small", 512, 0),
        ("small", 513, status::IBV_WC_RETRY_EXC_ERR),
        ("small", 5000, status::IBV_WC_RETRY_EXC_ERR),
        ("behind", 512, 0),
        ("behind", 513, status::IBV_WC_RETRY_EXC_ERR),
    ] {
        let (a, b) = (end("big"), end(to));
        a.connect(&b.address());
        // The port itself rejects a path MTU of 1024.
        b.to_init();
        let (mut rtr, bits) = rtr_attr(&b.opts, &a.address());
        rtr.path_mtu = sys::ibv_mtu::IBV_MTU_512;
        assert_eq!(b.modify(&mut rtr, bits), 0);
        let mut sges = [a.sge(0, len)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address(), 0)), 0);
        assert_eq!(a.poll_send().status, expected, "{len} bytes to {to}");
    }
}
