//! The state machine of a QP, through `ibv_modify_qp` and `ibv_query_qp`.

use crate::common::*;
use sys::ibv_qp_state as st;

/// The three transitions of a connection, with each required attribute left out in turn.
#[test]
fn each_missing_attribute_is_refused_and_changes_nothing() {
    let peer = End::new(Opts::default());
    let to = peer.address();
    let opts = Opts::default();
    let steps = [
        (st::IBV_QPS_RESET, init_attr(&opts)),
        (st::IBV_QPS_INIT, rtr_attr(&opts, &to)),
        (st::IBV_QPS_RTR, rts_attr(&opts)),
    ];
    let end = End::new(Opts::default());
    for (from, (mut attr, bits)) in steps {
        let state_bit = 1;
        for bit in (0..32).map(|n| 1_u32 << n).filter(|bit| bits & bit != 0 && *bit != state_bit) {
            assert_eq!(end.modify(&mut attr, bits & !bit), libc::EINVAL, "without {bit:#x} from {from}");
            assert_eq!(end.state(), from);
        }
        // An attribute that the transition does not allow: IBV_QP_CAP.
        assert_eq!(end.modify(&mut attr, bits | 1 << 19), libc::EINVAL);
        assert_eq!(end.modify(&mut attr, bits), 0);
    }
    assert_eq!(end.state(), st::IBV_QPS_RTS);
}

#[test]
fn values_out_of_range_are_refused() {
    let peer = End::new(Opts::default());
    let (to, opts) = (peer.address(), Opts::default());
    let end = End::new(Opts::default());
    let refused = |(mut attr, bits): (sys::ibv_qp_attr, u32), spoil: fn(&mut sys::ibv_qp_attr)| {
        spoil(&mut attr);
        assert_eq!(end.modify(&mut attr, bits), libc::EINVAL);
    };
    refused(init_attr(&opts), |attr| attr.port_num = 2);
    refused(init_attr(&opts), |attr| attr.pkey_index = 1);
    end.to_init();
    refused(rtr_attr(&opts, &to), |attr| attr.path_mtu = 6);
    refused(rtr_attr(&opts, &to), |attr| attr.dest_qp_num = 1 << 24);
    refused(rtr_attr(&opts, &to), |attr| attr.ah_attr.is_global = 0);
    refused(rtr_attr(&opts, &to), |attr| attr.ah_attr.grh.sgid_index = 200);
    refused(rtr_attr(&opts, &to), |attr| attr.max_dest_rd_atomic = 200);
    end.to_rtr(&to);
    refused(rts_attr(&opts), |attr| attr.retry_cnt = 8);
    refused(rts_attr(&opts), |attr| attr.rnr_retry = 8);
    refused(rts_attr(&opts), |attr| attr.timeout = 32);
    end.to_rts();
}

#[test]
fn no_state_can_be_skipped() {
    let end = End::new(Opts::default());
    for (from, to) in [
        (st::IBV_QPS_RESET, st::IBV_QPS_RTR),
        (st::IBV_QPS_RESET, st::IBV_QPS_RTS),
        (st::IBV_QPS_RESET, st::IBV_QPS_SQD),
        (st::IBV_QPS_RESET, 77),
    ] {
        assert_eq!(end.set_state(to), libc::EINVAL);
        assert_eq!(end.state(), from);
    }
    end.to_init();
    assert_eq!(end.set_state(st::IBV_QPS_RTS), libc::EINVAL);
    assert_eq!(end.set_state(st::IBV_QPS_ERR), 0);
    let (mut attr, bits) = init_attr(&end.opts);
    assert_eq!(end.modify(&mut attr, bits), libc::EINVAL, "from ERR only RESET leads back");
    assert_eq!(end.set_state(st::IBV_QPS_RESET), 0);
    end.to_init();
}

#[test]
fn query_returns_the_attributes_that_were_set() {
    let (a, b) = pair(Opts { timeout: 13, retry: 5, max_rd: 3, ..Opts::default() }, Opts::default());
    // SAFETY: a living QP and two writable structs. All-zero bytes are a valid value of both.
    let (attr, init) = unsafe {
        let (mut attr, mut init) =
            (std::mem::zeroed::<sys::ibv_qp_attr>(), std::mem::zeroed::<sys::ibv_qp_init_attr>());
        assert_eq!(sys::ibv_query_qp(a.qp, &raw mut attr, -1, &raw mut init), 0);
        (attr, init)
    };
    assert_eq!(
        (attr.qp_state, attr.timeout, attr.retry_cnt, attr.max_rd_atomic),
        (st::IBV_QPS_RTS, 13, 5, 3)
    );
    assert_eq!((attr.dest_qp_num, attr.rq_psn, attr.sq_psn), (b.address().qpn, 7, 7));
    assert_eq!((attr.cap.max_send_wr, init.cap.max_inline_data, init.qp_type), (16, 64, 2));
    // SAFETY: any bytes are a valid GID.
    assert_eq!(unsafe { attr.ah_attr.grh.dgid.raw }, b.gid());
    assert_eq!((init.send_cq, init.recv_cq), (a.scq, a.rcq));
}

#[test]
fn error_flushes_both_queues_in_order_and_reset_empties_them() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    // The peer has no receive: the sends wait.
    for id in 1..4 {
        let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0).id(id).flags(0);
        assert_eq!(a.send(wr), 0);
        assert_eq!(a.recv(10 + id, 0, 8), 0);
    }
    assert_eq!(a.set_state(st::IBV_QPS_ERR), 0);
    for id in 1..4 {
        let wc = a.poll_send();
        assert_eq!((wc.wr_id, wc.status), (id, status::IBV_WC_WR_FLUSH_ERR));
        let wc = a.poll_recv();
        assert_eq!((wc.wr_id, wc.status), (10 + id, status::IBV_WC_WR_FLUSH_ERR));
    }
    // Posted in ERR: flushed immediately.
    assert_eq!(a.recv(20, 0, 8), 0);
    assert_eq!(a.poll_recv().wr_id, 20);
    // RESET drops unpolled completions.
    assert_eq!(a.recv(21, 0, 8), 0);
    assert_eq!(a.set_state(st::IBV_QPS_RESET), 0);
    assert!(poll(a.rcq).is_none());
    // Both QPs can be connected again.
    assert_eq!(b.set_state(st::IBV_QPS_RESET), 0);
    a.connect(&b.address());
    b.connect(&a.address());
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0)), 0);
    assert_eq!((a.poll_send().status, b.poll_recv().wr_id), (0, 1));
}

#[test]
fn a_drained_send_queue_holds_work_back() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.set_state(st::IBV_QPS_SQD), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert!(poll(a.scq).is_none());
    assert_eq!(a.set_state(st::IBV_QPS_RTS), 0);
    assert_eq!(a.poll_send().status, 0);
}

#[test]
fn packet_numbers_must_agree() {
    let (a, b) = (End::new(Opts::default()), End::new(Opts::default()));
    a.to_init();
    let (mut attr, bits) = rtr_attr(&a.opts, &b.address());
    attr.rq_psn = 8;
    assert_eq!(a.modify(&mut attr, bits), 0);
    b.connect(&a.address());
    let to = a.address();
    let mut sges = [b.sge(0, 8)];
    assert_eq!(b.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(b.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn the_first_message_raises_comm_est_in_rtr() {
    let (a, b) = (End::new(Opts::default()), End::new(Opts::default()));
    a.connect(&b.address());
    b.to_init();
    b.to_rtr(&a.address());
    let to = b.address();
    for _ in 0..2 {
        let mut sges = [a.sge(0, 8)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
        assert_eq!(a.poll_send().status, 0);
    }
    assert_eq!((async_event(b.ctx, true), async_event(b.ctx, false)), (Some(4), None));
}
