//! Faults that strike one WRITE: its answer is lost, it arrives late, or in part.

use std::time::{Duration, Instant};

use crate::common::*;
use crate::faulty::*;
use crate::peer::own_process;
use softverbs::{Fault, Only, Part, Then};

const RETRY: u32 = status::IBV_WC_RETRY_EXC_ERR;
const FLUSHED: u32 = status::IBV_WC_WR_FLUSH_ERR;
const RESET: u32 = sys::ibv_qp_state::IBV_QPS_RESET;
/// Between the end of the sender and the arrival.
const LATE: Duration = Duration::from_millis(30);

fn inject(fault: Fault) {
    softverbs::inject("soft0", fault).expect("there is such a device");
}

/// Posts a WRITE with an immediate of the first `len` bytes.
fn notify(from: &End, to: &End, len: usize) {
    let mut sges = [from.sge(0, len)];
    let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to.address(), 0).imm(6);
    assert_eq!(from.send(wr), 0);
}

/// Waits until the first byte has this value.
fn wait_arrived(end: &End, value: u8) {
    let begin = Instant::now();
    while arrived(end) != value {
        assert!(begin.elapsed() < PATIENCE, "it never arrives");
        std::thread::yield_now();
    }
}

/// Waits until the service thread has delivered or dropped what was due at `begin`: a second late
/// WRITE, to another QP and released later, has arrived.
fn wait_past_due() {
    softverbs::run_faults("soft0:heal; soft1:heal").expect("valid");
    let (mut a, b) = across(short);
    inject(Fault::Late(LATE, Then::Alive));
    write(&mut a, &b, 99);
    assert_eq!(a.set_state(ERR), 0);
    wait_arrived(&b, 99);
}

//= softverbs-model.md: a WRITE whose ACK is lost has arrived and fails
#[test]
fn a_write_whose_ack_is_lost_has_arrived_and_fails() {
    own_process!();
    devices();
    for then in [Then::Silent, Then::Down, Then::Alive] {
        let (mut a, b) = across(short);
        let (mut other, far) = across(short);
        inject(Fault::LostAck(then));
        assert_eq!(b.recv(8, 0, 0), 0);
        (a.buf[0], a.buf[1]) = (5, 6);
        let (to, mut first, mut second) = (b.address(), [a.sge(0, 1)], [a.sge(1, 1)]);
        let notify = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut first).to(&to, 0).imm(6);
        let behind = Send::new(op::IBV_WR_RDMA_WRITE, &mut second).to(&to, 1);
        post_list(&a, &mut [notify, behind]);
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status, imm(&wc)), (8, 0, 6));
        assert_eq!(
            (a.poll_send().status, a.poll_send().status, a.state()),
            (RETRY, FLUSHED, ERR),
            "{then:?}"
        );
        // The WRITE behind it arrives as well, if the device works on.
        let behind = if then == Then::Alive { 6 } else { 0 };
        assert_eq!(b.buf[..2], [5, behind], "{then:?}");
        write(&mut other, &far, 1);
        let lives = if then == Then::Alive { 0 } else { RETRY };
        assert_eq!(other.poll_send().status, lives, "{then:?}");
        assert_eq!(async_event(other.ctx, false), (then == Then::Down).then_some(10));
        softverbs::heal("soft0").expect("a device");
    }
}

#[test]
fn a_lost_ack_of_a_large_write_comes_after_all_of_it() {
    own_process!();
    devices();
    let large = || Opts { len: 1 << 20, ..short() };
    let (mut a, b) = across(large);
    a.buf.fill(3);
    inject(Fault::LostAck(Then::Silent));
    assert_eq!(b.recv(1, 0, 0), 0);
    notify(&a, &b, 1 << 20);
    assert_eq!((b.poll_recv().byte_len, a.poll_send().status), (1 << 20, RETRY));
    assert_eq!(checksum(&b.buf), checksum(&a.buf));
}

#[test]
fn a_device_healed_in_time_sends_the_answer() {
    own_process!();
    devices();
    for fault in [
        Fault::LostAck(Then::Silent),
        Fault::Partial(Part::Bytes(1), Then::Down),
        Fault::Late(LATE, Then::Silent),
    ] {
        let (mut a, b) = across(long);
        inject(fault);
        assert_eq!(b.recv(1, 0, 0), 0);
        a.buf[..8].fill(4);
        notify(&a, &b, 8);
        for _ in 0..200 {
            assert!(poll(a.scq).is_none(), "{fault:?}");
        }
        softverbs::heal("soft0").expect("a device");
        assert_eq!((a.poll_send().status, b.poll_recv().wr_id), (0, 1), "{fault:?}");
        assert_eq!(b.buf[..8], [4; 8]);
        assert!(poll(b.rcq).is_none());
        // Nothing of it is left to arrive later.
        a.buf[..8].fill(5);
        assert_eq!(b.recv(2, 0, 0), 0);
        notify(&a, &b, 8);
        assert_eq!((a.poll_send().status, b.poll_recv().wr_id), (0, 2));
        assert_eq!(a.set_state(ERR), 0);
        wait_past_due();
        assert_eq!(b.buf[..8], [5; 8], "{fault:?}");
    }
}

//= softverbs-model.md: a late WRITE arrives after its sender has ended, with the old bytes
#[test]
fn a_swallowed_write_arrives_after_its_sender_has_given_up() {
    own_process!();
    devices();
    // How the sender ends: by itself, by the program, and by destruction.
    for end in ["fails", "is moved to ERR", "is reset", "is destroyed"] {
        let retry = end == "fails";
        let (mut a, b) = across(if retry { short } else { long });
        inject(Fault::Late(LATE, Then::Silent));
        assert_eq!(b.recv(3, 0, 0), 0);
        a.buf[..8].fill(7);
        notify(&a, &b, 8);
        // The program may write to its buffer as soon as the QP has ended.
        a.buf[..8].fill(8);
        match end {
            "fails" => assert_eq!(a.poll_send().status, RETRY),
            "is moved to ERR" => {
                assert_eq!(arrived(&b), 0, "before its sender has ended");
                assert_eq!(a.set_state(ERR), 0);
                assert_eq!(a.poll_send().status, FLUSHED);
            }
            "is reset" => assert_eq!(a.set_state(RESET), 0),
            _ => drop(a),
        }
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len, imm(&wc)), (3, 0, 8, 6), "it {end}");
        assert_eq!(b.buf[..8], [7; 8], "the bytes of the time of the post");
        softverbs::heal("soft0").expect("a device");
    }
}

//= softverbs-model.md: a receiver in ERR does not stop a late WRITE
#[test]
fn a_receiver_in_err_does_not_stop_a_late_write() {
    own_process!();
    devices();
    let mut a = End::new(long());
    let shared = Shared::new(1, 4);
    let b = shared.end_with(Opts { device: 1, ..long() });
    a.connect(&b.address());
    b.connect(&a.address());
    inject(Fault::Late(LATE, Then::Down));
    assert_eq!(b.recv(3, 0, 0), 0);
    a.buf[0] = 7;
    notify(&a, &b, 1);
    assert_eq!((b.set_state(ERR), a.set_state(ERR)), (0, 0));
    assert_eq!(a.poll_send().status, FLUSHED);
    wait_past_due();
    assert_eq!(arrived(&b), 7);
    assert!(poll(b.rcq).is_none(), "no completion of the immediate, although a receive is posted");
    drop(b);
    shared.destroy();
}

//= softverbs-model.md: a destroyed or reset receiver stops a late WRITE
#[test]
fn a_destroyed_or_reset_receiver_stops_a_late_write() {
    own_process!();
    devices();
    for way in ["destroyed", "reset", "connected again", "deregistered"] {
        let (mut a, mut b) = across(long);
        inject(Fault::Late(LATE, Then::Silent));
        write(&mut a, &b, 7);
        match way {
            "destroyed" => {
                let fresh = End::on(b.ctx, b.pd, short());
                // The memory stays registered.
                let mut fresh = fresh;
                std::mem::swap(&mut b.qp, &mut fresh.qp);
                std::mem::swap(&mut b.scq, &mut fresh.scq);
                std::mem::swap(&mut b.rcq, &mut fresh.rcq);
                drop(fresh);
            }
            "reset" => assert_eq!(b.set_state(RESET), 0),
            "connected again" => {
                assert_eq!(b.set_state(RESET), 0);
                b.connect(&a.address());
            }
            // SAFETY: the memory region is not used again; the new one is destroyed with the end.
            _ => unsafe {
                assert_eq!(sys::ibv_dereg_mr(b.mr), 0);
                b.mr = sys::ibv_reg_mr(b.pd, b.buf.as_mut_ptr().cast(), b.buf.len(), ALL_ACCESS);
            },
        }
        assert_eq!(a.set_state(ERR), 0);
        wait_past_due();
        assert_eq!(arrived(&b), 0, "{way}");
        heal();
    }
}

//= softverbs.md: only the first part of a partial WRITE arrives
#[test]
fn only_the_first_part_of_a_write_arrives() {
    own_process!();
    devices();
    let large = || Opts { len: 1 << 20, ..short() };
    for (part, len, bytes) in [
        (Part::Bytes(13), 32, 8),
        (Part::Bytes(5), 8, 0),
        (Part::Bytes(0), 8, 0),
        (Part::Bytes(100), 8, 8),
        (Part::Percent(50), 1 << 20, 1 << 19),
    ] {
        let (mut a, b) = across(large);
        inject(Fault::Partial(part, Then::Silent));
        assert_eq!(b.recv(1, 0, 0), 0);
        a.buf.fill(3);
        notify(&a, &b, len);
        assert_eq!(a.poll_send().status, RETRY, "{part:?}");
        let first = b.buf.iter().take_while(|byte| **byte == 3).count();
        assert_eq!((first, b.buf[first..].iter().all(|byte| *byte == 0)), (bytes, true), "{part:?}");
        assert!(poll(b.rcq).is_none(), "the immediate is in the last packet");
        softverbs::heal("soft0").expect("a device");
    }
}

/// A test can let a fault strike at each work request of a transfer.
//= softverbs-model.md: a fault can strike at every work request of a transfer
#[test]
fn every_write_of_a_transfer_can_be_struck() {
    own_process!();
    devices();
    let count = || softverbs::posted("soft0", Only::WRITES).expect("a device");
    // Returns the statuses and what has arrived.
    let transfer = || {
        let (mut a, b) = across(short);
        (0..4).for_each(|i| a.buf[i] = i as u8 + 1);
        let to = b.address();
        for i in 0..4 {
            let mut sges = [a.sge(i, 1)];
            assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, i as u64)), 0);
        }
        let seen: Vec<_> = (0..4).map(|_| a.poll_send().status).collect();
        (seen, b.buf[..4].to_vec())
    };
    let before = count();
    assert_eq!(transfer().0, [0; 4]);
    let points = count() - before;
    assert_eq!(points, 4);
    for at in 1..=points {
        softverbs::inject_at("soft0", Fault::LostAck(Then::Silent), at, Only::ALL).expect("a device");
        let (seen, bytes) = transfer();
        let wanted = |i| [0, RETRY, FLUSHED][usize::from(i >= at) + usize::from(i > at)];
        assert_eq!(seen, (1..=points).map(wanted).collect::<Vec<_>>(), "at {at}");
        let arrived: Vec<_> = (1..=4_u8).map(|i| if u64::from(i) <= at { i } else { 0 }).collect();
        assert_eq!(bytes, arrived, "at {at}");
        softverbs::heal("soft0").expect("a device");
    }
}
