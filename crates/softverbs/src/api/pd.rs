//! Protection domains.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::device::Context;
use crate::config::call::Call;
use crate::limits::MAX_PD;
use crate::log::fault;
use crate::process::{self, calls};

/// `struct ibv_pd`
#[repr(C)]
pub(crate) struct Pd {
    ibv: UnsafeCell<sys::ibv_pd>,
    pub(crate) context: Arc<Context>,
    /// Unique among all PDs of this process, including destroyed ones.
    pub(crate) id: u32,
    /// MRs, QPs and SRQs of the PD.
    pub(crate) users: AtomicUsize,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Pd {
    type C = sys::ibv_pd;
}
// SAFETY: the C struct is written before it is shared and only read after.
unsafe impl Sync for Pd {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Pd {}

/// `ibv_alloc_pd(3)`
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    border::pointer("ibv_alloc_pd", || {
        // SAFETY: open, as the caller guarantees.
        let context = unsafe { Context::arc_from_ptr(context) }?;
        calls::begin(context.device, Call::AllocPd)?;
        context.check()?;
        let process = process::get()?;
        let id = u32::try_from(process.pds.fetch_add(1, AcqRel)).map_err(|_| Errno(libc::ENOMEM))?;
        if context.children.fetch_add(1, AcqRel) >= MAX_PD as usize {
            context.children.fetch_sub(1, AcqRel);
            return Err(Errno(libc::ENOMEM));
        }
        let ibv = sys::ibv_pd { context: context.as_ptr(), handle: id };
        Ok(Pd::into_c(Arc::new(Pd { ibv: UnsafeCell::new(ibv), context, id, users: AtomicUsize::new(0) })))
    })
}

/// `ibv_dealloc_pd(3)`: EBUSY while objects use it.
///
/// # Safety
/// `pd` is alive and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    border::code("ibv_dealloc_pd", || {
        process::get()?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Pd::from_c(pd) }?;
        calls::begin(this.context.device, Call::DeallocPd)?;
        let users = this.users.load(Acquire);
        if users > 0 {
            fault!("ibv_dealloc_pd: {users} MRs, QPs or SRQs still use it");
            return Err(Errno(libc::EBUSY));
        }
        this.context.children.fetch_sub(1, AcqRel);
        // SAFETY: the caller does not use the pointer again.
        unsafe { Pd::release(pd) };
        Ok(())
    })
}
