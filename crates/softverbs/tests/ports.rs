//! Devices with several ports.

use std::ffi::{CStr, c_int};
use std::mem::{MaybeUninit, zeroed};

use softverbs::Fault;

use crate::common::*;
use crate::faulty::short;
use crate::peer::own_process;

const DEVICES: &str = "duo:addr=10.0.0.1/24,rate=100Gb,counters=on;duo/2:addr=10.0.1.1/24,rate=25Gb;\
     near:addr=10.0.0.2/24;far:addr=10.0.1.2/24";
unsafe extern "C" {
    fn _ibv_query_gid_table(
        context: *mut sys::ibv_context,
        entries: *mut sys::ibv_gid_entry,
        max: usize,
        flags: u32,
        size: usize,
    ) -> isize;
}

const NEAR: usize = 1;
const FAR: usize = 2;
const ACTIVE: u32 = sys::ibv_port_state::IBV_PORT_ACTIVE;
const DOWN: u32 = sys::ibv_port_state::IBV_PORT_DOWN;
const RETRY: u32 = status::IBV_WC_RETRY_EXC_ERR;

fn devices() {
    setup();
    let list = softverbs::DeviceSpec::parse_list(DEVICES).expect("a good list");
    softverbs::configure(list).expect("before first use");
}

fn query(ctx: *mut sys::ibv_context, port: u8) -> Result<sys::ibv_port_attr, c_int> {
    // SAFETY: an open context and a writable struct.
    unsafe {
        let mut attr: sys::ibv_port_attr = zeroed();
        match sys::ibv_query_port(ctx, port, (&raw mut attr).cast()) {
            0 => Ok(attr),
            errno => Err(errno),
        }
    }
}

/// Connects a port of the device with another device.
fn connected(port: u8, to: usize) -> (End, End) {
    pair(Opts { port, ..short() }, Opts { device: to, ..short() })
}

fn written(from: &End, to: &Address) -> u32 {
    let mut sges = [from.sge(0, 8)];
    assert_eq!(from.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(to, 0)), 0);
    from.poll_send().status
}

/// Returns the next event of a port: its type and the port.
fn event(ctx: *mut sys::ibv_context) -> Option<(u32, c_int)> {
    // SAFETY: an open context; the event is written if the call gives 0.
    unsafe {
        let mut poll = libc::pollfd { fd: (*ctx).async_fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut poll, 1, 0) == 0 {
            return None;
        }
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        assert_eq!(sys::ibv_get_async_event(ctx, event.as_mut_ptr()), 0);
        let kind = (&raw const (*event.as_ptr()).event_type).cast::<u32>().read();
        let port = (&raw const (*event.as_ptr()).element).cast::<c_int>().read();
        sys::ibv_ack_async_event(event.as_mut_ptr());
        Some((kind, port))
    }
}

//= softverbs.md: a device has several ports
#[test]
fn each_port_has_its_speed_addresses_and_counters() {
    own_process!();
    devices();
    assert_eq!(device_names(), ["duo", "near", "far"]);
    let ctx = open(0);
    // SAFETY: an open context and writable structs.
    unsafe {
        let mut attr: sys::ibv_device_attr = zeroed();
        assert_eq!((sys::ibv_query_device(ctx, &raw mut attr), attr.phys_port_cnt), (0, 2));
        let gid = |port| {
            let mut gid: sys::ibv_gid = zeroed();
            assert_eq!(sys::ibv_query_gid(ctx, port, 3, &raw mut gid), 0);
            gid.raw
        };
        assert_eq!([gid(1), gid(2)].map(|gid| [gid[13], gid[14], gid[15]]), [[0, 0, 1], [0, 1, 1]]);
        let mut table: [sys::ibv_gid_entry; 16] = zeroed();
        let size = size_of::<sys::ibv_gid_entry>();
        let n = _ibv_query_gid_table(ctx, table.as_mut_ptr(), table.len(), 0, size);
        let ports: Vec<_> = table[..n as usize].iter().map(|gid| (gid.port_num, gid.gid_index)).collect();
        assert_eq!(ports, [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]);
    }
    let speed = |port| query(ctx, port).map(|attr| (attr.active_speed, attr.active_width));
    assert_eq!([1, 2].map(speed), [Ok((32, 2)), Ok((32, 1))]);
    assert_eq!([0, 3].map(|port| query(ctx, port).err()), [Some(libc::EINVAL); 2]);
    // Each port reaches its own network.
    for (port, to, expected) in [(1, NEAR, 0), (2, FAR, 0), (1, FAR, RETRY), (2, NEAR, RETRY)] {
        let (a, b) = connected(port, to);
        assert_eq!(written(&a, &b.address()), expected, "port {port}");
    }
    let counters = softverbs::counters();
    let writes: Vec<_> = counters.iter().map(|device| (&*device.name, device.total.writes)).collect();
    assert_eq!(writes, [("duo", 2), ("duo/2", 2), ("near", 0), ("far", 0)]);
    assert_eq!([0, 1].map(|port| counters[port].qps.len()), [2, 2]);
    assert_eq!(softverbs::qp_attributes(), []);
    // The counters of both are below the device.
    assert!(softverbs::hw_counters("duo/2").expect("a port").local_ack_timeout_err > 0);
    // SAFETY: the path of an open device.
    let path = unsafe { CStr::from_ptr((&raw const (*(*ctx).device).ibdev_path).cast()) };
    for port in [1, 2] {
        let file = format!("{}/ports/{port}/hw_counters/local_ack_timeout_err", path.to_string_lossy());
        let begin = std::time::Instant::now();
        while std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()) < Some(1_u64) {
            assert!(begin.elapsed() < PATIENCE, "{file}");
            std::thread::yield_now();
        }
    }
}

//= softverbs.md: a fault of a port leaves the others
#[test]
fn a_fault_of_a_port_leaves_the_other_one() {
    own_process!();
    devices();
    let (first, near) = connected(1, NEAR);
    let (second, far) = connected(2, FAR);
    softverbs::run_faults("duo/2:link=down").expect("a port");
    let states = || [1, 2].map(|port| query(first.ctx, port).expect("a port").state);
    assert_eq!(states(), [ACTIVE, DOWN]);
    assert_eq!((event(first.ctx), event(first.ctx)), (Some((10, 2)), None));
    assert_eq!((written(&first, &near.address()), written(&second, &far.address())), (0, RETRY));
    softverbs::heal("duo/2").expect("a port");
    assert_eq!((states(), event(first.ctx)), ([ACTIVE; 2], Some((9, 2))));
    softverbs::set_rate("duo/2", 1_250_000_000).expect("a port");
    assert_eq!((event(first.ctx), query(first.ctx, 1).expect("a port").active_width), (Some((20, 2)), 2));
    let error = softverbs::run_faults("duo/2:errno=reg_mr:EIO").expect_err("of the device");
    assert!(error.to_string().contains("expected its name without a port"), "{error}");
    // A QP is on one port.
    let end = End::new(Opts { port: 3, ..short() });
    let (mut attr, bits) = init_attr(&end.opts);
    assert_eq!(end.modify(&mut attr, bits), libc::EINVAL);
    let end = End::new(Opts { port: 2, ..short() });
    end.to_init();
    let (mut attr, bits) = rtr_attr(&Opts::default(), &far.address());
    assert_eq!(end.modify(&mut attr, bits), libc::EINVAL);
}

//= softverbs.md: all ports of a device are removed with it
#[test]
fn all_ports_are_removed_and_return_with_the_device() {
    own_process!();
    devices();
    let (first, near) = connected(1, NEAR);
    let (second, far) = connected(2, FAR);
    let [to_first, to_second] = [&first, &second].map(End::address);
    softverbs::inject("duo/2", Fault::DeviceFatal).expect("a port");
    assert_eq!(event(first.ctx), Some((8, 2)));
    assert_eq!(event(first.ctx), None, "one event for the device");
    assert_eq!(device_names(), ["near", "far"]);
    assert_eq!([1, 2].map(|port| query(first.ctx, port).err()), [Some(libc::EIO); 2]);
    for (from, to) in [(&near, &to_first), (&far, &to_second)] {
        assert_eq!(written(from, to), RETRY);
    }
    softverbs::heal("duo").expect("a port");
    assert_eq!(device_names(), ["duo", "near", "far"]);
    for (port, to) in [(1, NEAR), (2, FAR)] {
        let (a, b) = connected(port, to);
        assert_eq!(written(&a, &b.address()), 0, "port {port}");
    }
}
