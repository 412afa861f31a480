//! Completion channels.

use crate::common::*;

fn arm(cq: *mut sys::ibv_cq, solicited: i32) {
    // SAFETY: a living CQ.
    assert_eq!(unsafe { sys::ibv_req_notify_cq(cq, solicited) }, 0);
}

fn with_channel() -> (End, End) {
    pair(Opts::default(), Opts { channel: true, ..Opts::default() })
}

fn send(a: &End, flags: u32) {
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut [a.sge(0, 8)]).flags(flags)), 0);
}

#[test]
fn one_event_for_one_arming() {
    let (a, b) = with_channel();
    for id in 0..4 {
        assert_eq!(b.recv(id, 0, 8), 0);
    }
    send(&a, SIGNALED);
    assert!(!event_ready(b.channel, false), "not armed");
    arm(b.rcq, 0);
    assert!(!event_ready(b.channel, false), "what came before does not count");
    send(&a, SIGNALED);
    send(&a, SIGNALED);
    assert_eq!(wait_event(b.channel), b.rcq);
    assert!(!event_ready(b.channel, false));
}

#[test]
fn solicited_only_ignores_other_completions_but_not_errors() {
    let (a, b) = with_channel();
    for id in 0..3 {
        assert_eq!(b.recv(id, 0, 8), 0);
    }
    arm(b.rcq, 1);
    send(&a, SIGNALED);
    assert!(!event_ready(b.channel, false));
    send(&a, SIGNALED | SOLICITED);
    assert_eq!(wait_event(b.channel), b.rcq);
    arm(b.rcq, 1);
    assert_eq!(b.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
    assert_eq!(wait_event(b.channel), b.rcq);
}

#[test]
fn a_nonblocking_channel_without_events_returns_eagain() {
    let (_a, b) = with_channel();
    let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a living channel, two writable pointers.
    unsafe {
        let flags = libc::fcntl((*b.channel).fd, libc::F_GETFL);
        assert_eq!(libc::fcntl((*b.channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert_eq!(sys::ibv_get_cq_event(b.channel, &raw mut cq, &raw mut context), -1);
        assert_eq!(errno(), libc::EAGAIN);
    }
}

#[test]
fn destroying_a_cq_waits_for_its_events_to_be_acknowledged() {
    let (a, b) = with_channel();
    // SAFETY: living objects; each is destroyed once.
    unsafe {
        let extra = sys::ibv_create_cq(b.ctx, 4, std::ptr::null_mut(), b.channel, 0);
        let mut init: sys::ibv_qp_init_attr = std::mem::zeroed();
        (init.send_cq, init.recv_cq) = (extra, extra);
        (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_recv_sge) = (1, 1, 1);
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        let qp = sys::ibv_create_qp(b.pd, &raw mut init);
        let other = std::mem::ManuallyDrop::new(End { qp, buf: Vec::new(), opts: Opts::default(), ..b });
        other.to_init();
        assert_eq!(other.recv(1, 0, 0), 0);
        arm(extra, 0);
        assert_eq!(other.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(sys::ibv_get_cq_event(b.channel, &raw mut cq, &raw mut context), 0);
        assert_eq!(cq, extra);
        assert_eq!(sys::ibv_destroy_qp(qp), 0);
        let destroyed = std::sync::atomic::AtomicBool::new(false);
        let address = extra.expose_provenance();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let cq = std::ptr::with_exposed_provenance_mut::<sys::ibv_cq>(address);
                let rc = sys::ibv_destroy_cq(cq);
                destroyed.store(true, std::sync::atomic::Ordering::SeqCst);
                rc
            });
            // It cannot have returned.
            for _ in 0..100 {
                std::thread::yield_now();
                assert!(!destroyed.load(std::sync::atomic::Ordering::SeqCst));
            }
            sys::ibv_ack_cq_events(cq, 1);
            assert_eq!(thread.join().expect("no panic"), 0);
        });
    }
    drop(a);
}
