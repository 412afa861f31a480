//! Completions with a status on command.

use crate::common::*;
use crate::faulty::*;
use crate::peer::own_process;
use softverbs::{CompletionStatus, Fault, Only};

const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;

/// The statuses of verbs, and one that no library knows.
fn statuses() -> impl Iterator<Item = u32> {
    (1..=23).chain([0x8000_0001])
}

//= softverbs.md: a work request completes with any status on command
#[test]
fn a_work_request_completes_with_any_status() {
    own_process!();
    devices();
    for wanted in statuses() {
        let (mut a, b) = across(short);
        let fault = Fault::Status(CompletionStatus { status: wanted, vendor_err: 0x88 });
        softverbs::inject_at("soft0", fault, 2, Only::ALL).expect("a device");
        for value in 1..4 {
            a.buf[value..=value].fill(value as u8);
        }
        let to = b.address();
        let mut sges: Vec<_> = (1..4).map(|i| [a.sge(i, 1)]).collect();
        // A failed work request completes, signaled or not.
        let send =
            |(sges, id)| Send::new(op::IBV_WR_RDMA_WRITE, sges).to(&to, id).id(id).flags((id as u32 & 1) * 2);
        let mut sends: Vec<_> = sges.iter_mut().map(|sges| &mut sges[..]).zip(1..).map(send).collect();
        post_list(&a, &mut sends);
        let seen = [1, 2, 3].map(|_| a.poll_send()).map(|wc| (wc.wr_id, wc.status, wc.vendor_err));
        assert_eq!(seen, [(1, 0, 0), (2, wanted, 0x88), (3, status::IBV_WC_WR_FLUSH_ERR, 0)]);
        assert_eq!((a.state(), b.state(), &b.buf[1..4]), (ERR, RTS, &[1, 0, 0][..]));
    }
}

//= softverbs.md: a receive completes with any status on command
#[test]
fn a_receive_completes_with_any_status() {
    own_process!();
    devices();
    for wanted in statuses() {
        let (mut a, b) = across(short);
        softverbs::run_faults(&format!("soft0:recv_status={wanted},vendor=0x88,at=2")).expect("valid");
        for id in 1..4 {
            assert_eq!(b.recv(id, 0, 0), 0);
        }
        // WRITEs that consume no receive do not count.
        write(&mut a, &b, 5);
        let notify = |from: &End| {
            let mut sges = [from.sge(0, 8)];
            let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&b.address(), 0);
            assert_eq!(from.send(wr), 0);
        };
        notify(&a);
        write(&mut a, &b, 6);
        notify(&a);
        let sent = [1, 2, 3, 4].map(|_| a.poll_send().status);
        assert_eq!(sent, [0, 0, 0, status::IBV_WC_REM_OP_ERR]);
        let received = [1, 2, 3].map(|_| b.poll_recv()).map(|wc| (wc.wr_id, wc.status, wc.vendor_err));
        assert_eq!(received, [(1, 0, 0), (2, wanted, 0x88), (3, status::IBV_WC_WR_FLUSH_ERR, 0)]);
        assert_eq!((a.state(), b.state(), arrived(&b)), (ERR, ERR, 6));
    }
}

#[test]
fn healing_disarms_a_status() {
    own_process!();
    devices();
    softverbs::run_faults("soft0:status=11;soft0:recv_status=2").expect("valid");
    softverbs::heal("soft0").expect("a device");
    let (mut a, b) = across(short);
    write(&mut a, &b, 1);
    assert_eq!((a.poll_send().status, arrived(&b)), (0, 1));
}
