//! Shared receive queues.

use crate::common::*;

fn connected(to: &End) -> End {
    let end = End::new(Opts::default());
    end.connect(&to.address());
    to.connect(&end.address());
    end
}

fn notify(a: &End, b: &End) {
    let (to, mut sges) = (b.address(), [a.sge(0, 8)]);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0)), 0);
}

#[test]
fn qps_take_from_one_queue_in_the_order_of_arrival() {
    let shared = Shared::new(0, 8);
    let (b1, b2) = (shared.end(), shared.end());
    let (a1, a2) = (connected(&b1), connected(&b2));
    for id in 1..5 {
        assert_eq!(b1.recv(id, 0, 0), 0);
    }
    for (a, b, id) in [(&a1, &b1, 1), (&a2, &b2, 2), (&a2, &b2, 3), (&a1, &b1, 4)] {
        notify(a, b);
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), (id, 0, b.address().qpn));
        assert_eq!(a.poll_send().status, 0);
    }
    // Empty: the sender waits, and continues with the next receive.
    notify(&a1, &b1);
    assert!(poll(a1.scq).is_none());
    assert_eq!(b2.recv(5, 0, 0), 0);
    assert_eq!(a1.poll_send().status, 0);
    assert_eq!(b1.poll_recv().wr_id, 5);
}

#[test]
fn polling_frees_slots() {
    let shared = Shared::new(0, 2);
    let b = shared.end();
    let a = connected(&b);
    assert_eq!([b.recv(1, 0, 0), b.recv(2, 0, 0), b.recv(3, 0, 0)], [0, 0, libc::ENOMEM]);
    notify(&a, &b);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(b.recv(3, 0, 0), libc::ENOMEM, "its completion was not polled");
    assert_eq!(b.poll_recv().wr_id, 1);
    assert_eq!([b.recv(3, 0, 0), b.recv(4, 0, 0)], [0, libc::ENOMEM]);
}

#[test]
fn completions_that_are_dropped_with_their_qp_free_their_slots() {
    let shared = Shared::new(0, 1);
    let b = shared.end();
    let a = connected(&b);
    assert_eq!(b.recv(1, 0, 0), 0);
    notify(&a, &b);
    assert_eq!(a.poll_send().status, 0);
    drop(b);
    assert_eq!(shared.end().recv(2, 0, 0), 0);
}

#[test]
fn the_limit_fires_once() {
    let shared = Shared::new(0, 8);
    let b = shared.end();
    let a = connected(&b);
    for id in 0..4 {
        assert_eq!(b.recv(id, 0, 0), 0);
    }
    shared.limit(3);
    assert_eq!((shared.attr().srq_limit, shared.attr().max_wr), (3, 8));
    notify(&a, &b);
    assert_eq!(async_event(shared.ctx, false), None, "three are left");
    notify(&a, &b);
    assert_eq!(async_event(shared.ctx, true), Some(15));
    assert_eq!(shared.attr().srq_limit, 0);
    notify(&a, &b);
    assert_eq!(async_event(shared.ctx, false), None);
    // Armed when the limit is already reached, it fires immediately.
    shared.limit(2);
    assert_eq!(async_event(shared.ctx, true), Some(15));
}

#[test]
fn an_error_keeps_the_receives_and_raises_last_wqe_reached() {
    let shared = Shared::new(0, 4);
    let b = shared.end();
    let _a = connected(&b);
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(b.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
    assert_eq!(async_event(shared.ctx, true), Some(16));
    assert!(poll(b.rcq).is_none());
    // Another QP uses the receive.
    let c = shared.end();
    let a = connected(&c);
    notify(&a, &c);
    assert_eq!(c.poll_recv().wr_id, 1);
}

#[test]
fn an_srq_in_use_is_not_destroyed() {
    let shared = Shared::new(0, 4);
    let b = shared.end();
    // SAFETY: a living SRQ; the first call refuses, the second destroys.
    unsafe {
        assert_eq!(sys::ibv_destroy_srq(shared.srq), libc::EBUSY);
        drop(b);
        assert_eq!(sys::ibv_destroy_srq(shared.srq), 0);
        assert_eq!(sys::ibv_dealloc_pd(shared.pd), 0);
        assert_eq!(sys::ibv_close_device(shared.ctx), 0);
    }
}
