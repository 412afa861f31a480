//! `ibv_query_device(3)` and its extended form.

use core::ffi::{c_char, c_int};
use core::mem::{MaybeUninit, offset_of};

use rdma_sys as sys;

use super::device_of;
use crate::abi::border::{self, Errno};
use crate::api::device::Device;
use crate::config::Capability;
use crate::config::call::Call;
use crate::config::profile::Srqs;
use crate::limits;

/// Not assigned to any vendor: tools must not mistake the device for a real one.
pub(crate) const VENDOR_ID: u32 = 0xFF_FFFF;
/// Not assigned either.
const VENDOR_PART_ID: u32 = 0x5356;
/// Any page size from 4 KiB.
const PAGE_SIZES: u64 = 0xFFFF_F000;
/// `IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN`: what is
/// really done.
const CAPS: u32 = 1 << 10 | 1 << 11 | 1 << 12;
/// Exponent of `local_ca_ack_delay`, 4.096 us times 2 to this power: about 134 ms.
const ACK_DELAY: u8 = 15;

/// Converts a limit to `int`, saturating.
fn int(limit: impl TryInto<c_int>) -> c_int {
    limit.try_into().unwrap_or(c_int::MAX)
}

fn attributes(device: &Device) -> sys::ibv_device_attr {
    // SAFETY: integers and arrays of them may all be zero.
    let mut attr: sys::ibv_device_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    let version = concat!("softverbs ", env!("CARGO_PKG_VERSION"));
    let room = attr.fw_ver.len() - 1;
    for (to, from) in attr.fw_ver[..room].iter_mut().zip(version.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    attr.node_guid = device.guid.to_be();
    attr.sys_image_guid = device.spec.system.unwrap_or(device.guid).to_be();
    attr.max_mr_size = limits::MAX_MR_SIZE;
    attr.page_size_cap = PAGE_SIZES;
    attr.vendor_id = VENDOR_ID;
    attr.vendor_part_id = VENDOR_PART_ID;
    attr.max_qp = int(limits::MAX_QP);
    attr.max_qp_wr = int(device.spec.max_qp_wr);
    attr.device_cap_flags = CAPS;
    // erdma, where receives have fewer, reports that of sends.
    attr.max_sge = int(device.profile.max_send_sge);
    attr.max_sge_rd = int(device.profile.max_send_sge);
    attr.max_cq = int(limits::MAX_CQ);
    attr.max_cqe = int(limits::MAX_CQE);
    attr.max_mr = int(limits::MAX_MR);
    attr.max_pd = int(limits::MAX_PD);
    attr.max_qp_rd_atom = int(limits::MAX_RD_ATOMIC);
    attr.max_qp_init_rd_atom = int(limits::MAX_RD_ATOMIC);
    attr.max_res_rd_atom = int(u64::from(limits::MAX_RD_ATOMIC) * u64::from(limits::MAX_QP));
    attr.atomic_cap = sys::ibv_atomic_cap::IBV_ATOMIC_HCA;
    if !device.spec.without.contains(&Capability::Srq) {
        attr.max_srq = int(limits::MAX_SRQ);
        attr.max_srq_wr = int(device.spec.max_srq_wr);
        attr.max_srq_sge = int(device.profile.max_srq_sge);
    } else if device.profile.srqs == Srqs::MissingWithDepth {
        attr.max_srq_wr = int(device.spec.max_srq_wr);
    }
    attr.max_pkeys = u16::try_from(device.spec.pkeys.len()).unwrap_or(u16::MAX);
    attr.local_ca_ack_delay = ACK_DELAY;
    attr.phys_port_cnt = u8::try_from(device.ports().len()).unwrap_or(u8::MAX);
    attr
}

/// `ibv_query_device(3)`
///
/// # Safety
/// `context` is open, `attr` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_device_attr,
) -> c_int {
    border::code("ibv_query_device", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { device_of(context, Call::QueryDevice) }?;
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { attr.write(attributes(device)) };
        Ok(())
    })
}

/// `ibv_query_device_ex(3)`. The struct of the caller may be shorter or longer: known fields are
/// set, the rest is zero.
///
/// # Safety
/// `context` is open, `attr` writable for `size` bytes, `input` null or readable.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut sys::ibv_context,
    input: *const sys::ibv_query_device_ex_input,
    attr: *mut sys::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    border::code("ibv_query_device_ex", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { device_of(context, Call::QueryDevice) }?;
        // SAFETY: guaranteed by the caller.
        let requested = if input.is_null() { 0 } else { unsafe { (*input).comp_mask } };
        if requested != 0 || attr.is_null() || size < offset_of!(sys::ibv_device_attr_ex, odp_caps) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: integers and arrays of them may all be zero.
        let mut full: sys::ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        full.orig_attr = attributes(device);
        full.device_cap_flags_ex = u64::from(CAPS);
        full.phys_port_cnt_ex = full.orig_attr.phys_port_cnt.into();
        // SAFETY: `attr` has `size` bytes, as the caller guarantees.
        unsafe { super::write_prefix(attr.cast(), size, &full) };
        Ok(())
    })
}
