//! Rate and latency. The model is arithmetic: results are compared exactly, not timed.

use crate::common::*;
use crate::peer::own_process;

/// Small enough to be executed during the post.
const SMALL: usize = 1 << 16;

/// `fast` has twice the rate of `slow`. Both are slow enough to keep the links busy during the
/// whole test, even on a slow machine.
fn devices() {
    let spec = |name: &str, third: u8, rate: u64| {
        let mut spec = softverbs::DeviceSpec::roce(name, &[([10, 0, third, 1].into(), 24)]);
        spec.rate = Some(rate);
        spec.latency_ns = 5_000;
        spec
    };
    let devices = vec![spec("fast", 1, 2 << 10), spec("slow", 2, 1 << 10), spec("third", 3, 1 << 18)];
    softverbs::configure(devices).expect("a good configuration, before first use");
}

/// Posts `n` writes of 64 KiB on device `index`. Returns the times at which their completions are
/// due.
fn burst(index: usize, n: usize) -> Vec<u64> {
    let opts = || Opts { device: index, len: SMALL, ..Opts::default() };
    let (a, b) = pair(opts(), opts());
    let to = b.address();
    for _ in 0..n {
        let mut sges = [a.sge(0, SMALL)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    }
    // SAFETY: a living CQ.
    unsafe { softverbs::completion_times(a.scq) }
}

#[test]
fn completions_are_due_when_the_link_has_sent_the_data() {
    own_process!();
    devices();
    let (fast, slow) = (burst(0, 4), burst(1, 4));
    let gaps = |times: &[u64]| times.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>();
    assert_eq!(gaps(&fast), [32_000_000_000; 3]);
    assert_eq!(gaps(&slow), [64_000_000_000; 3]);
    let busy = |name| softverbs::link_times(name).expect("a device").tx_busy;
    assert_eq!((busy("fast"), busy("slow")), (128_000_000_000, 256_000_000_000));

    // Each completion becomes visible at its time and not before, together with an event.
    let opts = |channel| Opts { device: 2, len: SMALL, channel, ..Opts::default() };
    let (a, b) = pair(opts(false), opts(true));
    let to = b.address();
    assert_eq!((b.recv(1, 0, 0), b.recv(2, 0, 0)), (0, 0));
    // SAFETY: a living CQ.
    assert_eq!(unsafe { sys::ibv_req_notify_cq(b.rcq, 0) }, 0);
    for _ in 0..2 {
        let mut sges = [a.sge(0, 1 << 16)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0)), 0);
    }
    // SAFETY: the CQs are alive.
    let (sent, received) =
        unsafe { (softverbs::completion_times(a.scq), softverbs::completion_times(b.rcq)) };
    assert_eq!((sent.len(), &sent), (2, &received));
    assert!(sent[1] - sent[0] >= 250_000_000);
    assert_eq!(wait_event(b.channel), b.rcq);
    assert!(now() >= received[0]);
    assert_eq!(b.poll_recv().wr_id, 1);
    assert_eq!(b.poll_recv().wr_id, 2);
    assert!(now() >= received[1]);
    a_rate_can_be_changed();
}

/// Part of the one test of this file, for which the rates are those of `devices`.
fn a_rate_can_be_changed() {
    const DEVICE_SPEED_CHANGE: u32 = 20;
    let opts = || Opts { device: 2, ..Opts::default() };
    let (a, b) = pair(opts(), opts());
    softverbs::set_rate("third", 5_000_000_000).expect("a device and a rate");
    let mut kinds = std::iter::from_fn(|| async_event(a.ctx, true));
    assert!(kinds.any(|kind| kind == DEVICE_SPEED_CHANGE));
    // SAFETY: an open context and a writable struct.
    let port = unsafe {
        let mut attr: sys::ibv_port_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_port(b.ctx, 1, (&raw mut attr).cast()), 0);
        attr
    };
    assert_eq!((port.active_speed, port.active_width), (4, 2), "four lanes of 10 Gb/s");

    softverbs::set_rate("slow", 1 << 11).expect("a device and a rate");
    let times = burst(1, 4);
    assert!(times.windows(2).all(|w| w[1] - w[0] == 32_000_000_000), "{times:?}");
    for (device, rate) in [("slow", 0), ("none", 1)] {
        assert!(softverbs::set_rate(device, rate).unwrap_err().to_string().contains(device));
    }
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
