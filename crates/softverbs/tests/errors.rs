//! Misuse has the same results as on hardware: a completion status, an errno, an asynchronous
//! event, and the QP in ERR.

use crate::common::*;
use sys::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RTS};

const QP_REQ_ERR: u32 = 2;
const QP_ACCESS_ERR: u32 = 3;

/// Posts a work request that must fail, and checks the results on both sides.
fn fails(a: &End, b: &End, wr: Send<'_>, status: u32, event: Option<u32>) {
    assert_eq!(a.send(wr), 0);
    let wc = a.poll_send();
    assert_eq!(wc.status, status);
    assert_eq!(a.state(), IBV_QPS_ERR);
    assert_eq!(b.state(), if event.is_some() { IBV_QPS_ERR } else { IBV_QPS_RTS });
    assert_eq!(async_event(b.ctx, event.is_some()), event);
    // Later work requests are flushed.
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 8)]).id(99)), 0);
    let wc = a.poll_send();
    assert_eq!((wc.wr_id, wc.status), (99, status::IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn remote_access_is_checked() {
    // Both ends are in RTS: the first message raises no event.
    type Case = (&'static str, fn(&mut Address), usize);
    let cases: [Case; 4] = [
        ("no such key", |to| to.rkey ^= 0xffff, 8),
        ("another entry", |to| to.rkey ^= 0x7fff_0000, 8),
        ("before the start", |to| to.addr -= 1, 8),
        ("beyond the end", |to| to.addr += (1 << 16) - 7, 8),
    ];
    for (_what, spoil, len) in cases {
        let (a, b) = pair(Opts::default(), Opts::default());
        let mut to = b.address();
        spoil(&mut to);
        let mut sges = [a.sge(0, len)];
        let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0);
        fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, Some(QP_ACCESS_ERR));
        assert!(b.buf.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn remote_access_needs_the_flag_on_the_registration() {
    for (opcode, flags) in [(op::IBV_WR_RDMA_WRITE, 1 | 4 | 8), (op::IBV_WR_RDMA_READ, 1 | 2 | 8)] {
        let (a, b) = pair(Opts::default(), Opts { mr_access: flags, ..Opts::default() });
        let to = b.address();
        let mut sges = [a.sge(0, 8)];
        let wr = Send::new(opcode, &mut sges).to(&to, 0);
        fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, Some(QP_ACCESS_ERR));
    }
}

#[test]
fn remote_access_needs_the_flag_on_the_qp() {
    for (opcode, flags) in
        [(op::IBV_WR_RDMA_WRITE, 4 | 8), (op::IBV_WR_RDMA_READ, 2), (op::IBV_WR_ATOMIC_FETCH_AND_ADD, 2 | 4)]
    {
        // Also without any byte to move: then only the key is not checked.
        for pieces in [0, 1] {
            let (a, b) = pair(Opts::default(), Opts { qp_access: flags, ..Opts::default() });
            let to = b.address();
            let mut sges = [a.sge(0, 8)];
            let wr = Send::new(opcode, &mut sges[..pieces]).to(&to, 0);
            fails(&a, &b, wr, status::IBV_WC_REM_INV_REQ_ERR, Some(QP_REQ_ERR));
        }
    }
}

#[test]
fn a_key_of_another_pd_or_a_stale_one_is_refused() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let other = End::new(Opts::default());
    let (mut sges, to) = ([a.sge(0, 8)], other.address());
    let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0);
    fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, Some(QP_ACCESS_ERR));

    let (a, b) = pair(Opts::default(), Opts::default());
    let mut memory = vec![0_u8; 64];
    // SAFETY: a living PD; the memory outlives the registration.
    let stale = unsafe {
        let mr = sys::ibv_reg_mr(b.pd, memory.as_mut_ptr().cast(), 64, ALL_ACCESS);
        let rkey = (*mr).rkey;
        assert_eq!(sys::ibv_dereg_mr(mr), 0);
        // Most likely this reuses the entry; the old key is invalid anyway.
        let next = sys::ibv_reg_mr(b.pd, memory.as_mut_ptr().cast(), 64, ALL_ACCESS);
        assert_ne!((*next).rkey, rkey);
        assert_eq!(sys::ibv_dereg_mr(next), 0);
        Address { addr: memory.as_ptr().expose_provenance() as u64, rkey, ..b.address() }
    };
    let mut sges = [a.sge(0, 8)];
    let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&stale, 0);
    fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, Some(QP_ACCESS_ERR));
}

#[test]
fn local_access_is_checked() {
    let cases: [fn(&mut sys::ibv_sge); 3] =
        [|sge| sge.lkey ^= 1, |sge| sge.addr -= 1, |sge| sge.length = (1 << 16) + 1];
    for spoil in cases {
        let (a, b) = pair(Opts::default(), Opts { len: 1 << 17, ..Opts::default() });
        let to = b.address();
        let mut sges = [a.sge(0, 8)];
        spoil(&mut sges[0]);
        let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0);
        fails(&a, &b, wr, status::IBV_WC_LOC_PROT_ERR, None);
    }
    // A READ writes locally.
    let (a, b) = pair(Opts { mr_access: 4, ..Opts::default() }, Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    fails(&a, &b, Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&to, 0), status::IBV_WC_LOC_PROT_ERR, None);
}

#[test]
fn a_receive_that_is_too_small_fails_both_ends() {
    let (a, b) = pair(Opts::default(), Opts::default());
    assert_eq!((b.recv(1, 0, 10), b.recv(2, 0, 10)), (0, 0));
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut [a.sge(0, 11)])), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_INV_REQ_ERR);
    let wc = b.poll_recv();
    assert_eq!((wc.wr_id, wc.status), (1, status::IBV_WC_LOC_LEN_ERR));
    let wc = b.poll_recv();
    assert_eq!((wc.wr_id, wc.status), (2, status::IBV_WC_WR_FLUSH_ERR));
    assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
}

#[test]
fn a_receive_without_access_fails_both_ends() {
    let (a, b) = pair(Opts::default(), Opts { mr_access: 0, ..Opts::default() });
    assert_eq!(b.recv(1, 0, 10), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut [a.sge(0, 10)])), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_OP_ERR);
    assert_eq!(b.poll_recv().status, status::IBV_WC_LOC_PROT_ERR);
}

#[test]
fn atomics_need_eight_aligned_bytes_and_read_credits() {
    for (len, offset, expected, event) in [
        (8, 4, status::IBV_WC_REM_INV_REQ_ERR, Some(QP_REQ_ERR)),
        (4, 0, status::IBV_WC_LOC_LEN_ERR, None),
        (16, 0, status::IBV_WC_LOC_LEN_ERR, None),
    ] {
        let (a, b) = pair(Opts::default(), Opts::default());
        let to = b.address();
        let mut sges = [a.sge(0, len)];
        fails(&a, &b, Send::new(op::IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sges).to(&to, offset), expected, event);
    }
    let (a, b) = pair(Opts { max_rd: 0, ..Opts::default() }, Opts::default());
    let (to, mut sges) = (b.address(), [a.sge(0, 8)]);
    fails(&a, &b, Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&to, 0), status::IBV_WC_LOC_QP_OP_ERR, None);
    let (a, b) = pair(Opts::default(), Opts { max_rd: 0, ..Opts::default() });
    let (to, mut sges) = (b.address(), [a.sge(0, 8)]);
    let wr = Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&to, 0);
    fails(&a, &b, wr, status::IBV_WC_REM_INV_REQ_ERR, Some(QP_REQ_ERR));
}

#[test]
fn queues_have_a_depth_that_polling_frees() {
    let (a, b) = pair(Opts { depth: 3, recv_depth: 2, ..Opts::default() }, Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    let mut write = |flags| a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).flags(flags));
    // All three are complete, but no completion was polled.
    assert_eq!([write(0), write(0), write(SIGNALED), write(0)], [0, 0, 0, libc::ENOMEM]);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!([write(0), write(0), write(0), write(0)], [0, 0, 0, libc::ENOMEM]);
    assert_eq!([a.recv(1, 0, 8), a.recv(2, 0, 8), a.recv(3, 0, 8)], [0, 0, libc::ENOMEM]);
}

#[test]
fn posting_checks_sizes_opcodes_and_state() {
    let (a, b) = pair(Opts { sge: 2, inline: 16, ..Opts::default() }, Opts::default());
    let to = b.address();
    let post =
        |opcode, sges: &mut [sys::ibv_sge], flags| a.send(Send::new(opcode, sges).to(&to, 0).flags(flags));
    let write = op::IBV_WR_RDMA_WRITE;
    assert_eq!(post(write, &mut [a.sge(0, 1), a.sge(0, 1), a.sge(0, 1)], SIGNALED), libc::EINVAL);
    assert_eq!(post(write, &mut [a.sge(0, 17)], INLINE), libc::ENOMEM);
    assert_eq!(post(write, &mut [a.sge(0, 16)], INLINE), 0);
    assert_eq!(post(op::IBV_WR_RDMA_READ, &mut [a.sge(0, 8)], INLINE), libc::EINVAL);
    assert_eq!(post(op::IBV_WR_LOCAL_INV, &mut [], SIGNALED), libc::EINVAL);
    assert_eq!(post(write, &mut [a.sge(0, 8)], 1 << 20), libc::EINVAL);
    let fresh = End::new(Opts::default());
    assert_eq!(fresh.send(Send::new(write, &mut [a.sge(0, 8)])), libc::EINVAL);
    assert_eq!(fresh.recv(1, 0, 8), libc::EINVAL);
    fresh.to_init();
    assert_eq!(fresh.recv(1, 0, 8), 0);
    assert_eq!(fresh.send(Send::new(write, &mut [a.sge(0, 8)])), libc::EINVAL);
}

#[test]
fn rnr_retries_run_out() {
    let (a, b) = pair(Opts { rnr_retry: 2, ..Opts::default() }, Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0).id(1)), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).id(2)), 0);
    let wc = a.poll_send();
    assert_eq!((wc.wr_id, wc.status), (1, status::IBV_WC_RNR_RETRY_EXC_ERR));
    let wc = a.poll_send();
    assert_eq!((wc.wr_id, wc.status), (2, status::IBV_WC_WR_FLUSH_ERR));
    assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_RTS));
    let mine = softverbs::counters().into_iter().flat_map(|d| d.qps).find(|qp| qp.qpn == a.address().qpn);
    let counters = mine.expect("counted").counters;
    assert_eq!((counters.rnr, counters.errors, counters.send_cqes, counters.doorbells), (3, 1, 2, 2));
}

#[test]
fn a_peer_that_is_not_ready_is_retried_until_the_retries_run_out() {
    let (a, b) = (End::new(Opts::default()), End::new(Opts::default()));
    a.connect(&b.address());
    b.to_init();
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    // With enough retries, the peer answers once it is ready.
    let a = End::new(Opts { timeout: 22, retry: 7, ..Opts::default() });
    a.connect(&b.address());
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert!(poll(a.scq).is_none());
    b.to_rtr(&a.address());
    assert_eq!(a.poll_send().status, 0);
}

#[test]
fn qps_that_are_not_connected_get_no_answer() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let stranger = End::new(Opts::default());
    stranger.connect(&b.address());
    let to = b.address();
    let mut sges = [stranger.sge(0, 8)];
    assert_eq!(stranger.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(stranger.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    // Devices of different subnets cannot reach each other.
    let far = End::new(Opts { device: 1, ..Opts::default() });
    let near = End::new(Opts::default());
    far.connect(&near.address());
    near.connect(&far.address());
    let mut sges = [far.sge(0, 8)];
    let to = near.address();
    assert_eq!(far.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(far.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!((a.state(), b.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
}

#[test]
fn cq_overrun_fails_the_cq_and_the_qp() {
    let (a, b) = pair(Opts { cqe: 2, ..Opts::default() }, Opts::default());
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    for id in 0..3 {
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).id(id)), 0);
    }
    assert_eq!((async_event(a.ctx, true), async_event(a.ctx, true)), (Some(0), Some(1)));
    assert_eq!(a.state(), IBV_QPS_ERR);
    assert_eq!((a.poll_send().wr_id, a.poll_send().wr_id), (0, 1));
    assert!(poll(a.scq).is_none());
}

#[test]
fn registration_follows_the_kernels_rules() {
    let end = End::new(Opts::default());
    let (addr, page) = (end.at(0) as usize, 4096);
    let register = |addr: usize, len: usize, access: i32| {
        let pointer = std::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: a living PD; the call checks the memory.
        let mr = unsafe { sys::ibv_reg_mr(end.pd, pointer, len, access) };
        if mr.is_null() {
            return errno();
        }
        // SAFETY: a new memory region.
        unsafe { sys::ibv_dereg_mr(mr) }
    };
    assert_eq!(register(addr, 100, 0), 0);
    assert_eq!(register(addr, 100, 2), libc::EINVAL);
    assert_eq!(register(addr, 100, 8), libc::EINVAL);
    assert_eq!(register(addr, 100, 1 << 12), libc::EINVAL);
    assert_eq!(register(addr, 100, 1 << 6), libc::EOPNOTSUPP);
    assert_eq!(register(addr, 0, 1), libc::EINVAL);
    assert_eq!(register(addr, usize::MAX, 1), libc::EINVAL);
    assert_eq!(register(page, page, 1), libc::EFAULT);
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let end = End::new(Opts { channel: true, ..Opts::default() });
    // SAFETY: the objects are alive; the calls fail and do not destroy them.
    unsafe {
        assert_eq!(sys::ibv_dealloc_pd(end.pd), libc::EBUSY);
        assert_eq!(sys::ibv_destroy_cq(end.scq), libc::EBUSY);
        assert_eq!(sys::ibv_destroy_comp_channel(end.channel), libc::EBUSY);
    }
}

#[test]
fn only_rc_is_supported() {
    let end = End::new(Opts::default());
    // SAFETY: a living PD and CQ; zero is a value of every attribute.
    unsafe {
        let mut init: sys::ibv_qp_init_attr = std::mem::zeroed();
        (init.send_cq, init.recv_cq) = (end.scq, end.rcq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
        init.qp_type = sys::ibv_qp_type::IBV_QPT_UD;
        assert!(sys::ibv_create_qp(end.pd, &raw mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_sge = 1000;
        assert!(sys::ibv_create_qp(end.pd, &raw mut init).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
}

#[test]
fn closing_a_device_ends_the_qps_on_it() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    // SAFETY: a living context; the objects on it are left to it, as programs do that just exit.
    assert_eq!(unsafe { sys::ibv_close_device(b.ctx) }, 0);
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    std::mem::forget(b);
}

/// GPU memory can be freed while it is registered. A NIC pins host memory, which softverbs cannot
/// do.
//= softverbs-model.md: unmapped memory fails the work request
#[test]
fn memory_that_was_unmapped_since_is_an_error_of_the_work_request() {
    let cases = [
        (op::IBV_WR_RDMA_WRITE, 8),
        (op::IBV_WR_RDMA_WRITE, 1 << 20),
        (op::IBV_WR_RDMA_READ, 1),
        (op::IBV_WR_RDMA_READ, 1 << 20),
        (op::IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
    ];
    for (opcode, len) in cases {
        for local in [false, true] {
            let opts = || Opts { len: 1 << 20, ..Opts::default() };
            let (a, b) = pair(opts(), opts());
            let (mr, at) = (if local { &a } else { &b }).unmapped(1 << 20);
            let mut to = b.address();
            let mut sge = a.sge(0, len);
            // SAFETY: alive.
            let key = unsafe { (*mr).rkey };
            if local {
                (sge.addr, sge.lkey) = (at, key);
            } else {
                (to.addr, to.rkey) = (at, key);
            }
            let mut sges = [sge];
            assert_eq!(a.send(Send::new(opcode, &mut sges).to(&to, 0)), 0);
            let wc = a.poll_send();
            assert_eq!(wc.status, status::IBV_WC_REM_OP_ERR, "opcode {opcode}, {len} bytes, local: {local}");
            assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
            // SAFETY: alive, and not used again.
            assert_eq!(unsafe { sys::ibv_dereg_mr(mr) }, 0);
        }
    }
}
