//! Posting receives to the receive queue of a QP.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Acquire;

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::qp::{ERR, Qp, RESET};
use crate::api::srq;
use crate::log::fault;
use crate::process;
use crate::process::counters::{self, Live};
use crate::shm::recv_queue::Receives;
use crate::wire::bounce;
use crate::wire::respond;

/// `ibv_post_recv(3)`, through the context's operations.
///
/// # Safety
/// `qp` is alive, `wr` a list of work requests, `bad` writable.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: alive, as the caller guarantees.
    if let Some(null) = unsafe { Qp::from_c(qp) }.ok().and_then(|qp| qp.null.get()) {
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees.
        return unsafe { null.receives.post(wr, bad) };
    }
    border::code("ibv_post_recv", || {
        // SAFETY: writable, as the caller guarantees.
        let process = process::get().inspect_err(|_| unsafe { bad.write(wr) })?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Qp::from_c(qp) }?;
        let shared = this.shared(process)?;
        let error = if this.srq.is_some() {
            Some("the QP receives from an SRQ")
        } else if shared.state.load(Acquire) == RESET {
            Some("the QP is in state RESET")
        } else {
            None
        };
        let queue = Receives::new(&process.own, &shared.rq);
        let (None, Some(queue)) = (error, queue) else {
            fault!("ibv_post_recv: QP {:#x}: {}", this.qpn, error.unwrap_or("max_recv_wr is 0"));
            // SAFETY: writable, as the caller guarantees.
            unsafe { bad.write(wr) };
            return Err(Errno(libc::EINVAL));
        };
        let on = ("ibv_post_recv", this.context.device);
        let (depth, max_sge) = (this.cap.max_recv_wr, this.cap.max_recv_sge);
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees.
        let (n, result) = unsafe { srq::post_list(&queue, wr, bad, on, depth, max_sge) };
        Live::add(&this.counters.own.receives, n);
        if let Some(device) = counters::of_device(this.port().index) {
            Live::add(&device.receives, n);
        }
        // Checked after posting: a change to ERR flushes only what was posted before.
        if shared.state.load(Acquire) == ERR {
            // The QP records one taken receive at a time.
            let _guard = bounce::lock(&shared.lock);
            respond::flush_receives(process, &process.own, this.index, shared);
        }
        result
    })
}
