//! Shared by the tests of faults: two devices in one subnet.
#![allow(unreachable_pub, missing_docs, reason = "nobody else uses it")]

use softverbs::DeviceSpec;

use crate::common::*;

pub const ERR: u32 = sys::ibv_qp_state::IBV_QPS_ERR;

/// Makes the two devices, which count as adapters do.
pub fn devices() {
    setup();
    let device = |name: &str, last| {
        let mut spec = DeviceSpec::roce(name, &[([10, 0, 0, last].into(), 24)]);
        spec.hw_counters = true;
        spec
    };
    softverbs::configure(vec![device("soft0", 1), device("soft1", 2)]).expect("before first use");
}

pub fn heal() {
    for device in ["soft0", "soft1"] {
        softverbs::heal(device).expect("there is such a device");
    }
}

/// Returns two connected ends: on soft0 and on soft1.
pub fn across(opts: fn() -> Opts) -> (End, End) {
    pair(Opts { device: 0, ..opts() }, Opts { device: 1, ..opts() })
}

/// A QP that gives up after some ms.
pub fn short() -> Opts {
    Opts { timeout: 8, retry: 1, ..Opts::default() }
}

/// A QP that retries for longer than any test runs.
pub fn long() -> Opts {
    Opts { timeout: 20, retry: 7, ..Opts::default() }
}

/// Posts a WRITE of the first eight bytes, which are set to `value`.
pub fn write(from: &mut End, to: &End, value: u8) {
    from.buf[..8].fill(value);
    let mut sges = [from.sge(0, 8)];
    let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to.address(), 0).id(value.into());
    assert_eq!(from.send(wr), 0);
}

/// Returns what has arrived, read as another thread would.
pub fn arrived(end: &End) -> u8 {
    // SAFETY: in the buffer of the end.
    unsafe { end.buf.as_ptr().read_volatile() }
}

/// Posts work requests as one list.
pub fn post_list(from: &End, sends: &mut [Send<'_>]) {
    let mut list: Vec<_> = sends.iter_mut().map(Send::wr).collect();
    for i in 1..list.len() {
        list[i - 1].next = &raw mut list[i];
    }
    assert_eq!(from.post(&mut list[0]), 0);
}
