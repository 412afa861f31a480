//! Queries of the GID table of a port.

use core::ffi::c_int;

use rdma_sys as sys;

use super::{device_of, port_of};
use crate::abi::border::{self, Errno};
use crate::api::device::Device;
use crate::config::call::Call;
use crate::config::gid::{Gid, GidKind};
use crate::process::port;

/// `enum ibv_gid_type_sysfs`, the result of `ibv_query_gid_type`.
const SYSFS_IB_OR_ROCE_V1: u32 = 0;
const SYSFS_ROCE_V2: u32 = 1;

/// Returns an entry; `EINVAL` outside the table, `ENODATA` if it is empty.
fn entry(device: &Device, index: u32) -> Result<Gid, Errno> {
    let index = usize::try_from(index).map_err(|_| Errno(libc::EINVAL))?;
    if index >= device.profile.gids {
        return Err(Errno(libc::EINVAL));
    }
    port::gids(device).get(index).copied().flatten().ok_or(Errno(libc::ENODATA))
}

/// Converts an entry to the C struct. A port has no network interface: `ndev_ifindex` is 0.
fn in_c(gid: Gid, index: u32, port: u8) -> sys::ibv_gid_entry {
    sys::ibv_gid_entry {
        gid: sys::ibv_gid { raw: gid.raw },
        gid_index: index,
        port_num: port.into(),
        gid_type: match gid.kind {
            GidKind::InfiniBand => 0,
            GidKind::RoceV1 => 1,
            GidKind::RoceV2 => 2,
        },
        ndev_ifindex: 0,
    }
}

/// `ibv_query_gid(3)`: 0, or -1 with `errno`. An empty entry is all zero, not an error.
///
/// # Safety
/// `context` is open, `gid` writable.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ibv_query_gid(
    context: *mut sys::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut sys::ibv_gid,
) -> c_int {
    border::minus_one("ibv_query_gid", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryGid, port) }?;
        let index = u32::try_from(index).map_err(|_| Errno(libc::EINVAL))?;
        let raw = match entry(device, index) {
            Ok(found) => found.raw,
            Err(Errno(libc::ENODATA)) => [0; 16],
            Err(e) => return Err(e),
        };
        if gid.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { gid.write(sys::ibv_gid { raw }) };
        Ok(())
    })
}

/// `ibv_query_gid_ex(3)`: 0 or the errno; `ENODATA` for an empty entry.
///
/// # Safety
/// `context` is open, `to` writable for `size` bytes.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut sys::ibv_context,
    port: u32,
    index: u32,
    to: *mut sys::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    border::code("ibv_query_gid_ex", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryGid, port) }?;
        if flags != 0 || to.is_null() || size < size_of::<sys::ibv_gid_entry>() {
            return Err(Errno(libc::EINVAL));
        }
        let found = in_c(entry(device, index)?, index, device.number);
        // SAFETY: guaranteed by the caller.
        unsafe { super::write_prefix(to.cast(), size, &found) };
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`: the number of entries written, or a negative errno. It is `-EINVAL` if
/// the buffer is too small, or larger than 65535 bytes (the limit of the kernel interface).
///
/// # Safety
/// `context` is open, `to` writable for `max` entries of `size` bytes.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut sys::ibv_context,
    to: *mut sys::ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut written = 0;
    let rc = border::code("ibv_query_gid_table", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { device_of(context, Call::QueryGid) }?;
        let short = size < size_of::<sys::ibv_gid_entry>();
        let table = |port| {
            (0..).zip(port::gids(port)).filter_map(|(index, gid)| Some(in_c(gid?, index, port.number)))
        };
        let used: Vec<_> = device.ports().iter().flat_map(table).collect();
        let long = max.saturating_mul(size) > usize::from(u16::MAX);
        if flags != 0 || to.is_null() || short || long || max < used.len() {
            return Err(Errno(libc::EINVAL));
        }
        for entry in used {
            // SAFETY: below `max`, so within the caller's array.
            let place = unsafe { to.cast::<u8>().add(written * size) };
            // SAFETY: guaranteed by the caller.
            unsafe { super::write_prefix(place, size, &entry) };
            written += 1;
        }
        Ok(())
    });
    if rc == 0 { written.cast_signed() } else { -isize::try_from(rc).unwrap_or(isize::MAX) }
}

/// `ibv_query_gid_type`, used by the tools of rdma-core: 0, or -1 with `errno`.
///
/// # Safety
/// `context` is open, `kind` writable.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut sys::ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    border::minus_one("ibv_query_gid_type", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryGid, port) }?;
        if kind.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let found = match entry(device, index) {
            Ok(gid) if gid.kind == GidKind::RoceV2 => SYSFS_ROCE_V2,
            Ok(_) | Err(Errno(libc::ENODATA)) => SYSFS_IB_OR_ROCE_V1,
            Err(e) => return Err(e),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { kind.write(found) };
        Ok(())
    })
}
