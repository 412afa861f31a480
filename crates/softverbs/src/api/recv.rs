//! Posting receives to the receive queue of a QP.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Acquire;

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::qp::{ERR, Qp, RESET};
use crate::api::srq::{On, post_list};
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
        let device = this.context.device;
        let error = match (shared.state.load(Acquire), device.profile.post_in_err) {
            _ if this.srq.is_some() => Some((libc::EINVAL, "the QP receives from an SRQ")),
            (RESET, _) => Some((libc::EINVAL, "the QP is in state RESET")),
            (ERR, Some(errno)) => Some((errno, "the QP is in state ERR (quirks)")),
            _ => None,
        };
        let queue = Receives::new(&process.own, &shared.rq);
        let (None, Some(queue)) = (error, queue) else {
            let (errno, why) = error.unwrap_or((libc::EINVAL, "max_recv_wr is 0"));
            fault!("ibv_post_recv: QP {:#x}: {why}", this.qpn);
            // SAFETY: writable, as the caller guarantees.
            unsafe { bad.write(wr) };
            return Err(device.profile.post_errno(Errno(errno)));
        };
        let attempts = Some(&this.receive_posts);
        let on = On { call: "ibv_post_recv", process, device, attempts };
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees.
        let (n, result) = unsafe { post_list(&queue, wr, bad, &on) };
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
