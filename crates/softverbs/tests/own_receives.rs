//! The receive queue of a queue pair, on devices that have no shared receive queues.

use std::ptr::null_mut;

use crate::common::*;
use crate::peer::own_process;

/// `calls` reports SRQs that it cannot create; `small` has short queues.
const DEVICES: &str = "none:addr=10.0.0.1/24,without=srq;calls:addr=10.0.1.1/24,without=srq_calls;\
     small:addr=10.0.2.1/24,without=srq,max_qp_wr=8";
const SMALL: usize = 2;

fn devices() {
    let devices = softverbs::DeviceSpec::parse_list(DEVICES).expect("a good list");
    softverbs::configure(devices).expect("before first use");
}

fn attributes(device: usize) -> sys::ibv_device_attr {
    // SAFETY: zero is a value of every attribute; an open context and a writable struct.
    unsafe {
        let mut attr: sys::ibv_device_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_device(open(device), &raw mut attr), 0);
        attr
    }
}

#[test]
fn devices_without_shared_receive_queues_report_and_create_none() {
    own_process!();
    devices();
    let reported = |device| {
        let attr = attributes(device);
        (attr.max_srq > 0, attr.max_srq_wr > 0, attr.max_srq_sge > 0)
    };
    assert_eq!([0, 1].map(reported), [(false, false, false), (true, true, true)]);
    for device in [0, 1] {
        // SAFETY: plain libibverbs use; zero is a value of every attribute.
        unsafe {
            let pd = sys::ibv_alloc_pd(open(device));
            let mut init: sys::ibv_srq_init_attr = std::mem::zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (1, 1);
            let srq = sys::ibv_create_srq(pd, &raw mut init);
            assert_eq!((srq.is_null(), errno()), (true, libc::EOPNOTSUPP), "device {device}");
        }
    }
}

/// Posts receives without buffers with one call. Returns its result, and how many were posted.
fn post_chain(end: &End, ids: std::ops::Range<u64>) -> (i32, u64) {
    let first = ids.start;
    let mut chain: Vec<sys::ibv_recv_wr> = ids
        .map(|wr_id| sys::ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 })
        .collect();
    let (n, start) = (chain.len(), chain.as_mut_ptr());
    let mut bad = null_mut();
    // SAFETY: indices below the length, a living QP, and a list of work requests.
    unsafe {
        (1..n).for_each(|i| (*start.add(i - 1)).next = start.add(i));
        let rc = sys::ibv_post_recv(end.qp, start, &raw mut bad);
        (rc, if bad.is_null() { n as u64 } else { (*bad).wr_id - first })
    }
}

fn notify(a: &End, b: &End, imm: u32) {
    let (to, mut sges) = (b.address(), []);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0).imm(imm)), 0);
}

/// Returns how often a write of this QP found no receive.
fn rnr(end: &End) -> u64 {
    let all = softverbs::counters().into_iter().flat_map(|device| device.qps);
    all.filter(|qp| qp.qpn == end.address().qpn).map(|qp| qp.counters.rnr).sum()
}

#[test]
fn a_chain_of_receives_takes_immediates_in_order_and_an_empty_queue_delays_them() {
    own_process!();
    devices();
    let (a, b) = pair(Opts::default(), Opts { recv_depth: 4, ..Opts::default() });
    assert_eq!(post_chain(&b, 10..14), (0, 4));
    for n in 0..4 {
        notify(&a, &b, n);
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status, imm(&wc)), (10 + u64::from(n), 0, n));
        assert_eq!((wc.qp_num, wc.opcode), (b.address().qpn, sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM));
        assert_eq!(a.poll_send().status, 0);
    }
    assert_eq!(rnr(&a), 0);
    notify(&a, &b, 4);
    assert!(poll(a.scq).is_none());
    assert!(rnr(&a) > 0, "the queue is empty");
    assert_eq!(post_chain(&b, 14..15), (0, 1));
    assert_eq!((a.poll_send().status, b.poll_recv().wr_id), (0, 14));
}

#[test]
fn a_full_queue_takes_the_first_part_of_a_chain() {
    own_process!();
    devices();
    let (a, b) = pair(Opts::default(), Opts { recv_depth: 4, ..Opts::default() });
    assert_eq!(post_chain(&b, 0..6), (libc::ENOMEM, 4));
    notify(&a, &b, 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(post_chain(&b, 4..5), (libc::ENOMEM, 0), "its completion was not polled");
    assert_eq!(b.poll_recv().wr_id, 0);
    assert_eq!(post_chain(&b, 4..6), (libc::ENOMEM, 1));
}

#[test]
fn a_failed_queue_pair_flushes_its_receives() {
    own_process!();
    devices();
    let (_a, b) = pair(Opts::default(), Opts::default());
    assert_eq!(post_chain(&b, 0..3), (0, 3));
    assert_eq!(b.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
    for id in 0..3 {
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status), (id, status::IBV_WC_WR_FLUSH_ERR));
    }
    assert!(poll(b.rcq).is_none());
}

#[test]
fn queues_are_as_short_as_the_device_reports() {
    own_process!();
    devices();
    assert_eq!(attributes(SMALL).max_qp_wr, 8);
    let deep = |depth, recv_depth| Opts { device: SMALL, depth, recv_depth, ..Opts::default() };
    let end = End::new(deep(8, 8));
    for (sends, receives) in [(9, 8), (8, 9)] {
        // SAFETY: plain libibverbs use; zero is a value of every attribute.
        unsafe {
            let mut init: sys::ibv_qp_init_attr = std::mem::zeroed();
            (init.send_cq, init.recv_cq) = (end.scq, end.rcq);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (sends, receives);
            init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            let qp = sys::ibv_create_qp(end.pd, &raw mut init);
            assert_eq!((qp.is_null(), errno()), (true, libc::EINVAL), "{sends} sends, {receives} receives");
        }
    }
}
