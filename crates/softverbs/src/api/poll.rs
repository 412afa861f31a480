//! `ibv_poll_cq` and `ibv_req_notify_cq`.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Release;

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::cq::Cq;
use crate::api::device::Device;
use crate::clock;
use crate::config::call::Call;
use crate::process::calls;
use crate::process::counters::{self, Live};
use crate::process::{self, Process, service};
use crate::shm::cq_ring::{ANY, Completion, Queue, SOLICITED};
use crate::shm::recv_queue;
use crate::wire::placement;

/// Frees the queue slot of a polled or purged completion.
pub(crate) fn free_place(process: &Process, completion: &Completion) {
    let own = &process.own;
    match completion.queue {
        Queue::Send(qp, done) => {
            if let Some(qp) = own.qp(qp) {
                qp.sends_done.store(done, Release);
            }
        }
        Queue::Recv(qp) => {
            if let Some(qp) = own.qp(qp) {
                recv_queue::polled(&qp.rq);
            }
        }
        Queue::Srq(srq) => {
            if let Some(srq) = own.srq(srq) {
                recv_queue::polled(&srq.rq);
            }
        }
        Queue::None => {}
    }
}

/// Returns the index of the QP of a completion of a CQ of this device.
fn qp_of(process: &Process, device: &Device, c: &Completion) -> Option<u32> {
    match c.queue {
        Queue::Send(index, _) | Queue::Recv(index) => Some(index),
        Queue::Srq(_) => process.fabric.find(process.adapter(device), c.qpn).map(|place| place.index),
        Queue::None => None,
    }
}

fn count(process: &Process, device: &Device, c: &Completion) {
    let add = |live: &Live| {
        let side = if matches!(c.queue, Queue::Send(..)) { &live.send_cqes } else { &live.recv_cqes };
        Live::add(side, 1);
        if c.status != 0 && c.status != sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
            Live::add(&live.errors, 1);
        }
    };
    if let Some(device) = counters::of_device(device.index) {
        add(device);
    }
    if let Some(index) = qp_of(process, device, c) {
        process.qps.with(index, |qp| add(&qp.counters.own));
    }
}

/// Converts a completion to the C struct.
pub(crate) fn to_wc(c: &Completion) -> sys::ibv_wc {
    sys::ibv_wc {
        wr_id: c.wr_id,
        status: c.status,
        opcode: c.opcode,
        vendor_err: c.vendor_err,
        byte_len: c.byte_len,
        imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t { imm_data: c.imm },
        qp_num: c.qpn,
        src_qp: c.src_qp,
        wc_flags: c.wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Yields the processor after repeated empty polls. Another thread, not a NIC, must do the work:
/// without this, two programs that poll on one processor would wait for the end of each other's
/// time slice.
fn yield_when_idle(taken: usize) {
    thread_local!(static IDLE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    const EMPTY_POLLS: u32 = 64;
    IDLE.with(|idle| {
        idle.set(if taken > 0 { 0 } else { idle.get() + 1 });
        if idle.get() >= EMPTY_POLLS {
            idle.set(0);
            std::thread::yield_now();
        }
    });
}

/// Polls up to `n` completions.
///
/// # Safety
/// `cq` is alive.
unsafe fn poll(
    cq: *mut sys::ibv_cq,
    n: usize,
    mut take: impl FnMut(usize, &Completion),
) -> Result<usize, Errno> {
    let process = process::get()?;
    service::help();
    // SAFETY: alive, as the caller guarantees.
    let this = unsafe { Cq::from_c(cq.cast()) }?;
    calls::begin(this.context.device, Call::PollCq)?;
    let profile = this.context.device.profile;
    if this.context.is_dead() && !profile.polls_after_failure {
        return Ok(0);
    }
    let mut done = 0;
    let (taken, event) = this.ring(process)?.poll(n, |mut completion| {
        if completion.status != 0 && !profile.opcode_in_errors {
            completion.opcode = 0;
        }
        if completion.covers > 0
            && let Some(index) = qp_of(process, this.context.device, &completion)
        {
            placement::land_before(&process.own, index, completion.covers);
        }
        free_place(process, &completion);
        count(process, this.context.device, &completion);
        take(done, &completion);
        done += 1;
    });
    if event {
        process.cqs.with(this.index, |cq| cq.deliver(process));
    }
    yield_when_idle(taken);
    Ok(taken)
}

/// `ibv_poll_cq(3)`, through the context's operations.
///
/// # Safety
/// `cq` is alive and `wc` has room for `n`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, n: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: alive, as the caller guarantees.
    if let Some(null) = unsafe { Cq::from_c(cq.cast()) }.ok().and_then(|cq| cq.null.get()) {
        // SAFETY: room for `n`, as the caller guarantees.
        return unsafe { null.poll(n, wc) };
    }
    let mut taken = 0;
    let rc = border::code("ibv_poll_cq", || {
        let n = usize::try_from(n).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: alive, as the caller guarantees; `i` is below `n`, and `wc` has room for `n`.
        taken = unsafe { poll(cq, n, |i, completion| wc.add(i).write(to_wc(completion))) }?;
        Ok(())
    });
    if rc == 0 { c_int::try_from(taken).unwrap_or(c_int::MAX) } else { -rc.abs() }
}

/// `ibv_req_notify_cq(3)`, through the context's operations.
///
/// # Safety
/// `cq` is alive.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    border::code("ibv_req_notify_cq", || {
        let process = process::get()?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Cq::from_c(cq.cast()) }?;
        let what = if solicited_only != 0 { SOLICITED } else { ANY };
        if let Some(later) = this.ring(process)?.arm(what, clock::now) {
            process.service.wake_at(later);
        }
        Ok(())
    })
}
