//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::cq::Cq;
use crate::api::device::Context;
use crate::api::event_queue::EventQueue;
use crate::log::fault;
use crate::process;

/// `struct ibv_comp_channel`
#[repr(C)]
pub(crate) struct Channel {
    ibv: UnsafeCell<sys::ibv_comp_channel>,
    context: Arc<Context>,
    queue: EventQueue<Arc<Cq>>,
    /// CQs that use the channel.
    pub(crate) cqs: AtomicUsize,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Channel {
    type C = sys::ibv_comp_channel;
}
// SAFETY: the C struct is written before it is shared and only read after.
unsafe impl Sync for Channel {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Channel {}

impl Channel {
    /// Adds an event of the CQ.
    pub(crate) fn notify(&self, cq: &Arc<Cq>) {
        self.queue.push(Arc::clone(cq));
    }

    /// Withdraws the events of a CQ that is destroyed.
    pub(crate) fn withdraw(&self, cq: &Cq) {
        self.queue.retain(|queued| !std::ptr::eq(Arc::as_ptr(queued), cq));
    }
}

/// `ibv_create_comp_channel(3)`
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    border::pointer("ibv_create_comp_channel", || {
        // SAFETY: open, as the caller guarantees.
        let context = unsafe { Context::arc_from_ptr(context) }?;
        context.check()?;
        let process = process::get()?;
        process.service.ensure(process)?;
        let queue = EventQueue::new()?;
        let ibv = sys::ibv_comp_channel { context: context.as_ptr(), fd: queue.fd(), refcnt: 0 };
        context.children.fetch_add(1, Ordering::AcqRel);
        let channel = Channel { ibv: UnsafeCell::new(ibv), context, queue, cqs: AtomicUsize::new(0) };
        Ok(Channel::into_c(Arc::new(channel)))
    })
}

/// `ibv_destroy_comp_channel(3)`: EBUSY while CQs use it.
///
/// # Safety
/// `channel` came from [`ibv_create_comp_channel`] and is not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    border::code("ibv_destroy_comp_channel", || {
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Channel::from_c(channel) }?;
        let cqs = this.cqs.load(Ordering::Acquire);
        if cqs > 0 {
            fault!("ibv_destroy_comp_channel: {cqs} CQs still use it");
            return Err(Errno(libc::EBUSY));
        }
        this.context.children.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: the caller does not use the pointer again.
        unsafe { Channel::release(channel) };
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`: blocks unless the descriptor is non-blocking.
///
/// # Safety
/// `channel` is alive; `cq` and `cq_context` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    border::minus_one("ibv_get_cq_event", || {
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Channel::arc_from_c(channel) }?;
        process::get()?;
        let found = this.queue.pop(|cq| cq.acks.delivered())?;
        // SAFETY: both are writable, as the caller guarantees.
        unsafe {
            cq.write(found.as_c().cast());
            cq_context.write(found.cq_context());
        }
        Ok(())
    })
}

/// `ibv_ack_cq_events(3)`
///
/// # Safety
/// `cq` is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut sys::ibv_cq, events: std::ffi::c_uint) {
    // SAFETY: alive, as the caller guarantees.
    if let Ok(cq) = unsafe { Cq::from_c(cq.cast()) } {
        cq.acks.acked(events);
    }
}
