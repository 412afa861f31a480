//! Devices and completion queues that fail, ports whose GIDs move, and the hardware counters.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::ptr::null_mut;

use crate::common::*;
use crate::faulty::*;
use crate::peer::own_process;
use crate::peer::{Peer, here};
use softverbs::{CqOf, Direction, Fault, HwCounters, Only, Part, Then};

const RETRY: u32 = status::IBV_WC_RETRY_EXC_ERR;
const FLUSHED: u32 = status::IBV_WC_WR_FLUSH_ERR;
const CQ_ERR: u32 = 0;
const DEVICE_FATAL: u32 = 8;
const PORT_ERR: u32 = 10;
const GID_CHANGE: u32 = 18;

/// Waits for an event of this kind, skipping others.
fn wait_async(end: &End, kind: u32) {
    while async_event(end.ctx, true).expect("an event") != kind {}
}

//= softverbs-model.md: a removed device completes nothing, and can be opened again when healed
#[test]
fn a_failed_device_completes_nothing_and_can_be_opened_again() {
    own_process!();
    devices();
    let (mut a, b) = across(short);
    let to_a = a.address();
    let (old, mut far) = across(short);
    let to_old = old.address();
    // Completed, but not polled.
    write(&mut a, &b, 1);
    softverbs::inject("soft0", Fault::DeviceFatal).expect("a device");
    wait_async(&a, DEVICE_FATAL);
    assert_eq!(async_event(b.ctx, false), None, "the other device works on");
    write(&mut a, &b, 2);
    let mut sges = [b.sge(0, 8)];
    assert_eq!(b.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to_a, 0)), 0);
    // Longer than the failed device could take.
    assert_eq!(b.poll_send().status, RETRY);
    assert!(poll(a.scq).is_none());
    assert_eq!(arrived(&b), 1);
    assert_eq!(a.set_state(ERR), libc::EIO);
    // SAFETY: plain libibverbs use of living objects.
    unsafe {
        let mut attr: sys::ibv_port_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_port(a.ctx, 1, (&raw mut attr).cast()), libc::EIO);
        assert!(sys::ibv_alloc_pd(a.ctx).is_null() && errno() == libc::EIO);
        assert!(sys::ibv_create_cq(a.ctx, 1, null_mut(), null_mut(), 0).is_null() && errno() == libc::EIO);
        let at = a.buf.as_mut_ptr().cast();
        assert!(sys::ibv_reg_mr(a.pd, at, 8, ALL_ACCESS).is_null() && errno() == libc::EIO);
    }
    assert_eq!(device_names(), ["soft1"]);

    softverbs::heal("soft0").expect("a device");
    assert_eq!(device_names(), ["soft0", "soft1"]);
    let (mut c, d) = across(short);
    write(&mut c, &d, 3);
    assert_eq!((c.poll_send().status, arrived(&d)), (0, 3));
    // Nothing arrives at a queue pair of the earlier life.
    far.buf[..8].fill(6);
    let mut sges = [far.sge(0, 8)];
    assert_eq!(far.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to_old, 0)), 0);
    assert_eq!((far.poll_send().status, arrived(&old)), (RETRY, 0));
    softverbs::set_link("soft0", false).expect("a device");
    wait_async(&c, PORT_ERR);
    assert_eq!(async_event(a.ctx, false), None, "no event of a later life");
    softverbs::set_link("soft0", true).expect("a device");
    // The old context stays dead, and lets the program destroy its objects (when `a` is dropped).
    write(&mut a, &b, 4);
    assert_eq!(a.set_state(ERR), libc::EIO);
    assert!(poll(a.scq).is_none());
    assert_eq!(arrived(&b), 1);
}

#[test]
fn a_large_write_of_a_failed_device_ends_in_the_middle() {
    own_process!();
    devices();
    let large = || Opts { len: 8 << 20, ..short() };
    let (mut a, b) = across(large);
    a.buf.fill(1);
    // Two seconds for all of it.
    softverbs::set_rate("soft0", 4 << 20).expect("a device");
    let mut sges = [a.sge(0, 8 << 20)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address(), 0)), 0);
    while arrived(&b) != 1 {
        assert!(poll(a.scq).is_none());
    }
    softverbs::inject("soft0", Fault::DeviceFatal).expect("a device");
    wait_async(&a, DEVICE_FATAL);
    // Pieces that had begun have ended when the key can be given back.
    let count = || b.buf.iter().filter(|byte| **byte == 1).count();
    // SAFETY: the memory region is not used again; the new one is destroyed with the end.
    unsafe {
        assert_eq!(sys::ibv_dereg_mr(a.mr), 0);
        softverbs::heal("soft0").expect("a device");
        a.mr = sys::ibv_reg_mr(b.pd, a.buf.as_mut_ptr().cast(), a.buf.len(), ALL_ACCESS);
    }
    // As good as no limit.
    softverbs::set_rate("soft0", 1 << 50).expect("a device");
    let arrived = count();
    assert!((1..8 << 20).contains(&arrived), "{arrived} bytes");
    for _ in 0..200 {
        assert!(poll(a.scq).is_none());
    }
    assert_eq!(count(), arrived);
}

#[test]
fn a_device_fails_at_a_work_request_and_in_every_process() {
    own_process!();
    crate::peer::play();
    devices();
    let devices = "soft0:addr=10.0.0.1/24;soft1:addr=10.0.0.2/24";
    let mut peer = Peer::start(here!(), &[("SOFTVERBS_DEVICES", devices)]);
    let mut a = End::new(Opts { device: 1, ..short() });
    let there = peer.connect(&a);
    let (mut c, d) = across(short);
    softverbs::inject_at("soft0", Fault::DeviceFatal, 2, Only::ALL).expect("a device");
    for value in 1..4 {
        write(&mut c, &d, value);
    }
    wait_async(&c, DEVICE_FATAL);
    assert_eq!((arrived(&d), poll(c.scq).map(|wc| wc.wr_id)), (1, None));
    // The peer's queue pair is on the failed device.
    a.buf[0] = 1;
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&there, 0)), 0);
    assert_eq!(a.poll_send().status, RETRY);
    peer.finish();
}

//= softverbs-model.md: a failed completion queue returns nothing, and its queue pairs are in ERR
#[test]
fn a_failed_completion_queue_returns_nothing_and_its_queue_pairs_are_in_err() {
    own_process!();
    devices();
    for of in [CqOf::Send, CqOf::Recv] {
        let (mut a, b) = across(short);
        assert_eq!(a.recv(7, 0, 8), 0);
        write(&mut a, &b, 1);
        softverbs::inject_at("soft0", Fault::CqError(of), 1, Only::ALL).expect("a device");
        write(&mut a, &b, 2);
        wait_async(&a, CQ_ERR);
        assert_eq!((a.state(), arrived(&b)), (ERR, 1));
        // The other queue shows what was flushed.
        match of {
            CqOf::Send => assert_eq!((a.poll_recv().status, poll(a.scq).is_none()), (FLUSHED, true)),
            CqOf::Recv => {
                let seen = [a.poll_send(), a.poll_send()].map(|wc| (wc.wr_id, wc.status));
                assert_eq!(seen, [(1, 0), (2, FLUSHED)]);
                assert!(poll(a.rcq).is_none());
            }
        }
    }
}

//= softverbs-model.md: GIDs move to another index
#[test]
fn gids_move_to_another_index() {
    own_process!();
    devices();
    let (mut a, b) = across(short);
    let gid = |end: &End, index| Ipv6Addr::from(end.gid_at(index));
    let mapped = |d| Ipv4Addr::new(10, 0, 0, d).to_ipv6_mapped();
    assert_eq!(gid(&a, 3), mapped(1));
    softverbs::run_faults("soft0:addrs=none").expect("valid");
    wait_async(&a, GID_CHANGE);
    assert_eq!(gid(&a, 3), Ipv6Addr::UNSPECIFIED);
    write(&mut a, &b, 1);
    assert_eq!(a.poll_send().status, RETRY, "the peer does not find the source address");
    softverbs::Control::open(&fabric())
        .expect("ours")
        .fault("soft0", "addrs=none+10.0.0.1/24", None)
        .expect("valid");
    wait_async(&a, GID_CHANGE);
    assert_eq!((gid(&a, 3), gid(&a, 5)), (Ipv6Addr::UNSPECIFIED, mapped(1)));
    assert_eq!(gid(&a, 0).segments()[0], 0xfe80, "the default GID stays");
    let first = Some((IpAddr::from([10, 0, 0, 1]), 24));
    softverbs::set_addrs("soft0", &[first]).expect("a device");
}

fn counters() -> HwCounters {
    softverbs::hw_counters("soft0").expect("a device")
}

/// Returns the directory of the device of an end in sysfs.
fn sysfs(end: &End) -> PathBuf {
    // SAFETY: the device of an open context, with its path.
    unsafe { CStr::from_ptr((*(*end.ctx).device).ibdev_path.as_ptr()).to_string_lossy().into_owned() }.into()
}

//= softverbs-model.md: the hardware counters show a rail without answers
#[test]
fn the_counters_show_a_rail_without_answers() {
    own_process!();
    devices();
    let (mut a, b) = across(long);
    let folder = sysfs(&a).join("ports/1/hw_counters");
    let file = |name: &str| -> u64 {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.trim().parse().expect("a number")
    };
    let (before, shown) = (counters(), file("roce_adp_retrans"));
    assert_eq!(shown, before.roce_adp_retrans);
    softverbs::inject("soft0", Fault::Silence(Direction::Both)).expect("a device");
    let value = arrived(&b) + 1;
    write(&mut a, &b, value);
    // Before the timeout, and nobody polls.
    let begin = std::time::Instant::now();
    while file("roce_adp_retrans") < shown + 2 {
        assert!(begin.elapsed() < PATIENCE, "it does not rise");
        std::thread::yield_now();
    }
    assert_eq!(counters().local_ack_timeout_err, before.local_ack_timeout_err);
    softverbs::heal("soft0").expect("a device");
    assert_eq!(a.poll_send().status, 0);

    let (mut a, b) = across(short);
    softverbs::inject("soft0", Fault::Silence(Direction::Out)).expect("a device");
    write(&mut a, &b, 1);
    assert_eq!(a.poll_send().status, RETRY);
    assert_eq!(counters().local_ack_timeout_err - before.local_ack_timeout_err, 2, "one, and one retry");
    softverbs::heal("soft0").expect("a device");

    let (mut a, b) = across(short);
    softverbs::inject("soft0", Fault::Partial(Part::Bytes(1), Then::Alive)).expect("a device");
    write(&mut a, &b, 1);
    assert_eq!(a.poll_send().status, RETRY);
    assert_eq!(counters().packet_seq_err - before.packet_seq_err, 1);

    let (a, b) = pair(Opts { rnr_retry: 2, ..short() }, Opts { device: 1, ..short() });
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut sges).to(&b.address(), 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(counters().rnr_nak_retry_err - before.rnr_nak_retry_err, 3);
}
