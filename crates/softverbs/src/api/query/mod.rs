//! Queries of devices and ports, and of the tables of a port.

mod device;
mod gids;
mod port;

use core::ffi::c_int;
use core::ptr;

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::api::device::{Context, Device};
use crate::config::call::Call;
use crate::process::calls;

pub(crate) use device::VENDOR_ID;

/// Sets the extended operations of a new context.
pub(crate) fn fill_ops(verbs: &mut sys::verbs_context) {
    verbs.query_port = Some(port::query_port);
    verbs.query_device_ex = Some(device::query_device_ex);
}

/// Begins a query. Returns the device of an open context; EIO if it was removed.
///
/// # Safety
/// `context` is null or open.
unsafe fn device_of(context: *mut sys::ibv_context, query: Call) -> Result<&'static Device, Errno> {
    // SAFETY: guaranteed by the caller.
    let context = unsafe { Context::from_ptr(context) }?;
    calls::begin(context.device, query)?;
    context.check()?;
    Ok(context.device)
}

/// As [`device_of`], of one port.
///
/// # Safety
/// `context` is null or open.
unsafe fn port_of(
    context: *mut sys::ibv_context,
    query: Call,
    number: impl Into<u32>,
) -> Result<&'static Device, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { device_of(context, query) }?.port(number.into())
}

/// Copies `value`, truncated or zero-padded to `size` bytes. The struct has grown over the years,
/// and programs were compiled with any of its sizes.
///
/// # Safety
/// `to` is writable for `size` bytes; `T` is plain data.
unsafe fn write_prefix<T>(to: *mut u8, size: usize, value: &T) {
    let n = size.min(size_of::<T>());
    // SAFETY: both have `n` bytes; a local `value` does not overlap with the memory of the caller.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, n) };
    // SAFETY: the rest of the caller's `size` bytes.
    unsafe { ptr::write_bytes(to.add(n), 0, size - n) };
}

/// `ibv_query_pkey(3)`: 0, or -1 with `errno`.
///
/// # Safety
/// `context` is open, `pkey` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut sys::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    border::minus_one("ibv_query_pkey", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryPkey, port) }?;
        let found = usize::try_from(index).ok().and_then(|index| device.spec.pkeys.get(index));
        let found = found.filter(|_| !pkey.is_null()).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: guaranteed by the caller.
        unsafe { pkey.write(found.to_be()) };
        Ok(())
    })
}

/// `ibv_get_pkey_index(3)`: the index, or -1 with `errno`. `pkey` is big-endian.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut sys::ibv_context, port: u8, pkey: u16) -> c_int {
    let mut found = 0;
    let rc = border::minus_one("ibv_get_pkey_index", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryPkey, port) }?;
        let place = device.spec.pkeys.iter().position(|key| *key == u16::from_be(pkey));
        found = place.and_then(|place| c_int::try_from(place).ok()).ok_or(Errno(libc::ENOENT))?;
        Ok(())
    });
    if rc == 0 { found } else { rc }
}

/// `ibv_query_qp_data_in_order(3)`: 0, no guarantee. The CPU copies in an unspecified order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut sys::ibv_qp, _op: c_int, _flags: u32) -> c_int {
    0
}

#[cfg(test)]
mod tests;
