//! Large WRITEs and READs, which are executed after the post.

use crate::common::*;
use crate::peer::own_process;

/// Size of a piece.
const PIECE: usize = 1 << 17;
const LARGE: usize = 5 * PIECE + 1000;
const FREE: usize = 0;
/// A piece takes two minutes: the second is not due during a test, even on a slow machine.
const SLOW: usize = 1;
/// A piece takes an eighth of a second.
const STEADY: usize = 2;

fn devices() {
    let spec = |name: &str, third: u8| softverbs::DeviceSpec::roce(name, &[([10, 1, third, 1].into(), 24)]);
    let mut devices = vec![spec("free", 1), spec("slow", 2), spec("steady", 3)];
    devices[SLOW].rate = Some(1 << 10);
    devices[STEADY].rate = Some(1 << 20);
    softverbs::configure(devices).expect("a good configuration, before first use");
}

fn large_pair(device: usize) -> (End, End) {
    devices();
    let opts = || Opts { device, len: LARGE, ..Opts::default() };
    let (mut a, b) = pair(opts(), opts());
    for (i, byte) in a.buf.iter_mut().enumerate() {
        *byte = (i % 251) as u8 + 1;
    }
    (a, b)
}

/// A byte that another thread may be writing.
fn byte(end: &End, at: usize) -> u8 {
    assert!(at < end.buf.len());
    // SAFETY: inside the buffer.
    unsafe { end.buf.as_ptr().add(at).read_volatile() }
}

/// Posts a write of the whole buffer, and returns when the first byte has been written.
fn begin(a: &End, b: &End, to: &Address) {
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, LARGE)]).to(to, 0)), 0);
    let begun = std::time::Instant::now();
    while byte(b, 0) == 0 {
        assert!(poll(a.scq).is_none() && begun.elapsed() < PATIENCE, "it does not begin");
        std::thread::yield_now();
    }
    for _ in 0..100 {
        assert!(poll(a.scq).is_none());
    }
}

#[test]
fn data_is_written_when_the_link_can_have_sent_it() {
    own_process!();
    let (a, b) = large_pair(SLOW);
    begin(&a, &b, &b.address());
    assert_eq!(b.buf[..PIECE], a.buf[..PIECE]);
    assert!(b.buf[PIECE..].iter().all(|byte| *byte == 0), "the second piece came minutes too early");
    // A drained queue completes the work request in progress.
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_SQD), 0);
    assert!(b.buf == a.buf);
    // SAFETY: a living CQ.
    assert_eq!(unsafe { softverbs::completion_times(a.scq) }.len(), 1);
    assert!(poll(a.scq).is_none(), "the completion is minutes too early");
}

#[test]
fn a_queue_in_error_flushes_the_work_request_in_progress() {
    own_process!();
    let (a, b) = large_pair(SLOW);
    let to = b.address();
    begin(&a, &b, &to);
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).id(2)), 0);
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
    for id in [1, 2] {
        let wc = a.poll_send();
        assert_eq!((wc.wr_id, wc.status), (id, status::IBV_WC_WR_FLUSH_ERR));
    }
    assert_eq!(byte(&b, PIECE), 0);
}

#[test]
fn a_key_that_is_invalidated_fails_the_work_request_in_progress() {
    own_process!();
    let (a, b) = large_pair(SLOW);
    // SAFETY: a living PD and a buffer that outlives the registration.
    let mr = unsafe { sys::ibv_reg_mr(b.pd, b.buf.as_ptr().cast_mut().cast(), LARGE, ALL_ACCESS) };
    assert!(!mr.is_null());
    // SAFETY: a new memory region.
    let to = Address { rkey: unsafe { (*mr).rkey }, ..b.address() };
    begin(&a, &b, &to);
    // SAFETY: alive, and not used again.
    assert_eq!(unsafe { sys::ibv_dereg_mr(mr) }, 0);
    // Draining continues the work request, which fails: the queue cannot be drained.
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_SQD), libc::EINVAL);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(byte(&b, PIECE), 0);
}

#[test]
fn a_link_that_goes_down_in_the_middle_ends_it() {
    own_process!();
    devices();
    // The transfer would take two minutes.
    let opts = || Opts { device: STEADY, len: 1 << 27, ..Opts::default() };
    let (mut a, b) = pair(opts(), opts());
    a.buf[0] = 1;
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 1 << 27)]).to(&b.address(), 0)), 0);
    let begun = std::time::Instant::now();
    while byte(&b, 0) == 0 {
        assert!(poll(a.scq).is_none() && begun.elapsed() < PATIENCE, "it does not begin");
        std::thread::yield_now();
    }
    softverbs::set_link("steady", false).expect("there is such a device");
    assert_eq!(a.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    softverbs::set_link("steady", true).expect("there is such a device");
}

#[test]
fn a_reset_queue_drops_the_work_request_in_progress() {
    own_process!();
    let (a, b) = large_pair(SLOW);
    begin(&a, &b, &b.address());
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_RESET), 0);
    assert_eq!(b.set_state(sys::ibv_qp_state::IBV_QPS_RESET), 0);
    a.connect(&b.address());
    b.connect(&a.address());
    let to = b.address();
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 8)]).to(&to, PIECE as u64)), 0);
    // Only the small write is in the CQ.
    // SAFETY: a living CQ.
    assert_eq!(unsafe { softverbs::completion_times(a.scq) }.len(), 1);
    assert_eq!((byte(&b, PIECE + 7), byte(&b, PIECE + 8)), (a.buf[7], 0));
}

#[test]
fn later_work_requests_are_executed_after_a_large_one() {
    own_process!();
    let (a, b) = large_pair(FREE);
    let to = b.address();
    assert_eq!((b.recv(8, 0, 0), b.recv(9, 0, 0)), (0, 0));
    let mut all = [a.sge(0, 70_000), a.sge(70_000, LARGE - 70_000)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut all).to(&to, 0).id(1).imm(5)), 0);
    // From another offset: the data differs from that of the large write.
    let mut some = [a.sge(100, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut some).to(&to, 0).id(2).imm(6)), 0);
    let mut back = [b.sge(0, 8)];
    assert_eq!(b.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut back).to(&a.address(), 200).id(3)), 0);
    assert_eq!((a.poll_send().wr_id, a.poll_send().wr_id, b.poll_send().wr_id), (1, 2, 3));
    let (first, second) = (b.poll_recv(), b.poll_recv());
    assert_eq!((first.wr_id, imm(&first), first.byte_len as usize), (8, 5, LARGE));
    assert_eq!((second.wr_id, imm(&second), second.byte_len), (9, 6, 8));
    assert_eq!(b.buf[..8], a.buf[100..108]);
    assert_eq!(b.buf[PIECE - 50..], a.buf[PIECE - 50..]);

    // And back: the data is complete when the completion is visible.
    let (c, mut d) = large_pair(FREE);
    d.buf.copy_from_slice(&a.buf);
    let mut sges = [c.sge(0, 3), c.sge(3, LARGE - 3)];
    c.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&d.address(), 0));
    let wc = c.poll_send();
    assert_eq!((wc.status, wc.byte_len as usize), (0, LARGE));
    assert!(c.buf == d.buf);
}

#[test]
fn a_receive_that_comes_late_takes_a_large_one() {
    own_process!();
    let (a, b) = large_pair(FREE);
    let mut sges = [a.sge(0, LARGE)];
    let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&b.address(), 0);
    assert_eq!(a.send(wr), 0);
    for _ in 0..100 {
        assert!(poll(a.scq).is_none());
    }
    assert_eq!(b.recv(4, 0, 0), 0);
    assert_eq!((b.poll_recv().wr_id, a.poll_send().status), (4, 0));
    assert!(a.buf == b.buf);
}

#[test]
fn a_large_write_completes_without_polling() {
    own_process!();
    // In its own process: a polling thread executes work requests of all queues of its process.
    devices();
    let opts = |channel| Opts { channel, len: LARGE, ..Opts::default() };
    let (a, b) = pair(opts(true), opts(false));
    for round in 1..=3_u8 {
        // SAFETY: a living CQ; inside the buffer, which nobody else uses now.
        unsafe {
            assert_eq!(sys::ibv_req_notify_cq(a.scq, 0), 0);
            a.buf.as_ptr().cast_mut().write_bytes(round, LARGE);
        }
        let mut sges = [a.sge(0, LARGE)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address(), 0)), 0);
        assert_eq!(wait_event(a.channel), a.scq);
        assert_eq!(a.poll_send().status, 0);
        assert!(b.buf.iter().all(|byte| *byte == round));
    }
}
