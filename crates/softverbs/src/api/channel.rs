//! Completion channels, and the pollable queue that they and the async events of a context share.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys as sys;

use crate::abi::border::{self, Errno, last_errno};
use crate::abi::handle::Handle;
use crate::api::cq::Cq;
use crate::api::device::Context;
use crate::log::fault;
use crate::process;

/// A queue with a descriptor that is readable while something is in it. The program may set O_NONBLOCK.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// Empty.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: takes integers, gives a descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: just opened, and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, queue: Mutex::default() })
    }

    /// For `poll(2)`.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds one.
    pub(crate) fn push(&self, item: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        let one = 1_u64;
        // SAFETY: eight readable bytes, as an eventfd wants. It cannot be full: that takes 2^64 events.
        unsafe { libc::write(self.fd(), (&raw const one).cast::<c_void>(), 8) };
    }

    /// Waits for one, unless the descriptor is non-blocking (EAGAIN).
    pub(crate) fn pop(&self) -> Result<T, Errno> {
        loop {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes, as an eventfd wants.
            let n = unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
            if n != 8 {
                return Err(last_errno());
            }
            // Empty if what was announced has been withdrawn.
            if let Some(item) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return Ok(item);
            }
        }
    }

    /// Withdraws what is not to be kept.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(keep);
        for _ in queue.len()..before {
            self.take_back();
        }
    }

    /// Keeps the descriptor from being readable for an item that is gone.
    fn take_back(&self) {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } > 0 {
            let mut one = 0_u64;
            // SAFETY: eight writable bytes. Another reader may come first: then it loops in `pop`.
            unsafe { libc::read(self.fd(), (&raw mut one).cast::<c_void>(), 8) };
        }
    }
}

/// `struct ibv_comp_channel`
#[repr(C)]
pub(crate) struct Channel {
    ibv: UnsafeCell<sys::ibv_comp_channel>,
    context: Arc<Context>,
    queue: EventQueue<Arc<Cq>>,
    /// CQs that report to it.
    pub(crate) cqs: AtomicUsize,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Channel {
    type C = sys::ibv_comp_channel;
}
// SAFETY: the C struct is written before it is shared and only read after.
unsafe impl Sync for Channel {}
// SAFETY: nothing of it is tied to a thread.
unsafe impl Send for Channel {}

impl Channel {
    /// An event for the CQ.
    pub(crate) fn notify(&self, cq: &Arc<Cq>) {
        self.queue.push(Arc::clone(cq));
    }

    /// The CQ goes away: its events that were not yet fetched go with it.
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
        // SAFETY: open, by the caller's promise.
        let context = unsafe { Context::arc_from_ptr(context) }?;
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
        // SAFETY: alive, by the caller's promise.
        let this = unsafe { Channel::from_c(channel) }?;
        let cqs = this.cqs.load(Ordering::Acquire);
        if cqs > 0 {
            fault!("ibv_destroy_comp_channel: {cqs} CQs still use it");
            return Err(Errno(libc::EBUSY));
        }
        this.context.children.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: the caller gives up its pointer.
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
        // SAFETY: alive, by the caller's promise.
        let this = unsafe { Channel::arc_from_c(channel) }?;
        process::get()?;
        let found = this.queue.pop()?;
        found.acks.delivered();
        // SAFETY: both are writable, by the caller's promise.
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
    // SAFETY: alive, by the caller's promise.
    if let Ok(cq) = unsafe { Cq::from_c(cq.cast()) } {
        cq.acks.acked(events);
    }
}
