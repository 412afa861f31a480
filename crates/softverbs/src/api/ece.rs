//! Enhanced connection establishment (ECE): `ibv_query_ece` and `ibv_set_ece`, for devices with
//! options (`ece=`).
//!
//! An option is in effect on a QP if the device supports it and the program has set it before RTR.
//! Two ends negotiate as follows: the accepting end sets the options of the other end, returns the
//! resulting options, and the other end sets these.

use std::ffi::c_int;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Acquire;

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::qp::{INIT, Qp};
use crate::log::fault;
use crate::process;

/// `struct ibv_ece`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ece {
    vendor_id: u32,
    options: u32,
    comp_mask: u32,
}

/// The `vendor_id` of all devices.
const VENDOR: u32 = crate::api::query::VENDOR_ID;

impl Qp {
    fn device_options(&self) -> Result<u32, Errno> {
        self.context.device.spec.ece.ok_or(Errno(libc::EOPNOTSUPP))
    }

    /// Returns the options in effect; `None` if none were set.
    pub(crate) fn agreed_ece(&self) -> Option<u32> {
        let set = *self.ece.lock().unwrap_or_else(PoisonError::into_inner);
        Some(set? & self.context.device.spec.ece?)
    }

    fn set_ece(&self, ece: &Ece) -> Result<(), Errno> {
        self.device_options()?;
        let state = self.shared(process::get()?)?.state.load(Acquire);
        let why = match ece {
            _ if state > INIT => format!("the QP is past INIT (state {state})"),
            Ece { vendor_id, .. } if *vendor_id != VENDOR => {
                format!("vendor {vendor_id:#x}, expected {VENDOR:#x}")
            }
            Ece { comp_mask, .. } if *comp_mask != 0 => format!("comp_mask {comp_mask:#x}, expected 0"),
            _ => {
                *self.ece.lock().unwrap_or_else(PoisonError::into_inner) = Some(ece.options);
                return Ok(());
            }
        };
        fault!("ibv_set_ece: QP {:#x}: {why}", self.qpn);
        Err(Errno(libc::EINVAL))
    }
}

/// `ibv_query_ece(3)`: the options in effect, or those of the device if none were set.
///
/// # Safety
/// `qp` is alive, `ece` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut sys::ibv_qp, ece: *mut Ece) -> c_int {
    border::code("ibv_query_ece", || {
        // SAFETY: alive and writable, as the caller guarantees.
        let (this, ece) = unsafe { (Qp::from_c(qp)?, ece.as_mut().ok_or(Errno(libc::EINVAL))?) };
        let all = this.device_options()?;
        *ece = Ece { vendor_id: VENDOR, options: this.agreed_ece().unwrap_or(all), comp_mask: 0 };
        Ok(())
    })
}

/// `ibv_set_ece(3)`: before RTR only.
///
/// # Safety
/// `qp` is alive, `ece` readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(qp: *mut sys::ibv_qp, ece: *mut Ece) -> c_int {
    border::code("ibv_set_ece", || {
        // SAFETY: alive and readable, as the caller guarantees.
        let (this, ece) = unsafe { (Qp::from_c(qp)?, ece.as_ref().ok_or(Errno(libc::EINVAL))?) };
        this.set_ece(ece)
    })
}
