//! The C calls, on the default devices.

use core::mem::{MaybeUninit, offset_of};
use std::io;

use super::gids::{_ibv_query_gid_ex, _ibv_query_gid_table, ibv_query_gid, ibv_query_gid_type};
use super::*;

/// The first device, opened. Dropping it closes the device.
struct Open(*mut sys::ibv_context);

impl Open {
    fn first() -> Self {
        // SAFETY: the list is valid and has a device; the list is freed once.
        let context = unsafe {
            let list = sys::ibv_get_device_list(ptr::null_mut());
            let context = sys::ibv_open_device(*list);
            sys::ibv_free_device_list(list);
            context
        };
        assert!(!context.is_null());
        Self(context)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: open, and owned by `self`.
        assert_eq!(unsafe { sys::ibv_close_device(self.0) }, 0);
    }
}

fn errno() -> Option<c_int> {
    io::Error::last_os_error().raw_os_error()
}

fn zeroed<T>() -> T {
    // SAFETY: used with structs of integers only.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[test]
fn the_gid_table_is_that_of_a_roce_nic() {
    let open = Open::first();
    let mut entries: [sys::ibv_gid_entry; 32] = zeroed();
    let size = size_of::<sys::ibv_gid_entry>();
    // SAFETY: an open context and an array of 32.
    let n = unsafe { _ibv_query_gid_table(open.0, entries.as_mut_ptr(), 32, 0, size) };
    assert_eq!(n, 4);
    // SAFETY: all bytes of a GID are plain data.
    let raw = |i: usize| unsafe { entries[i].gid.raw };
    assert_eq!(entries[..4].iter().map(|e| e.gid_type).collect::<Vec<_>>(), [1, 2, 1, 2]);
    assert_eq!(entries[..4].iter().map(|e| e.gid_index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(entries[..4].iter().all(|e| e.port_num == 1));
    assert_eq!(raw(0)[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(raw(0), raw(1));
    assert_eq!(raw(2)[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!(raw(2), raw(3));
    // The link-local GID ends with the GUID of the port.
    // SAFETY: an open context has a device.
    let guid = unsafe { sys::ibv_get_device_guid((*open.0).device) };
    assert_eq!(raw(0)[8..], guid.to_ne_bytes());
    // The kernel interface does not support a buffer of this size.
    let mut many: Vec<sys::ibv_gid_entry> = std::iter::repeat_with(zeroed).take(2048).collect();
    // SAFETY: an open context and an array of 2048.
    let n = unsafe { _ibv_query_gid_table(open.0, many.as_mut_ptr(), 2048, 0, size) };
    assert_eq!(n, -isize::try_from(libc::EINVAL).unwrap());
    // Room for one entry less is not enough.
    // SAFETY: as above.
    let n = unsafe { _ibv_query_gid_table(open.0, entries.as_mut_ptr(), 3, 0, size) };
    assert_eq!(n, -isize::try_from(libc::EINVAL).unwrap());
}

#[test]
fn one_gid_at_a_time() {
    let open = Open::first();
    let mut entry: sys::ibv_gid_entry = zeroed();
    let size = size_of::<sys::ibv_gid_entry>();
    // SAFETY: an open context and an entry.
    let mut ask = |port, index, flags, size| unsafe {
        _ibv_query_gid_ex(open.0, port, index, &raw mut entry, flags, size)
    };
    assert_eq!(ask(1, 3, 0, size), 0);
    assert_eq!(ask(1, 4, 0, size), libc::ENODATA);
    assert_eq!(ask(1, 32, 0, size), libc::EINVAL);
    assert_eq!(ask(0, 0, 0, size), libc::EINVAL);
    assert_eq!(ask(2, 0, 0, size), libc::EINVAL);
    assert_eq!(ask(1, 0, 1, size), libc::EINVAL);
    assert_eq!(ask(1, 0, 0, size - 1), libc::EINVAL);
    assert_eq!((entry.gid_index, entry.gid_type), (3, 2));

    let mut gid = sys::ibv_gid { raw: [1; 16] };
    // SAFETY: an open context and a GID.
    let mut ask = |port, index| unsafe { ibv_query_gid(open.0, port, index, &raw mut gid) };
    assert_eq!((ask(1, -1), errno()), (-1, Some(libc::EINVAL)));
    assert_eq!((ask(2, 0), errno()), (-1, Some(libc::EINVAL)));
    assert_eq!(ask(1, 31), 0);
    // SAFETY: plain data.
    assert_eq!(unsafe { gid.raw }, [0; 16]);

    let mut kind = 7;
    // SAFETY: an open context and an integer.
    let mut ask = |index| (unsafe { ibv_query_gid_type(open.0, 1, index, &raw mut kind) }, kind);
    assert_eq!([ask(0), ask(1), ask(31)], [(0, 0), (0, 1), (0, 0)]);
    assert_eq!((ask(32).0, errno()), (-1, Some(libc::EINVAL)));
}

#[test]
fn a_port_fills_as_much_as_the_caller_has() {
    let open = Open::first();
    let mut attr = [0xAA_u8; 64];
    // SAFETY: an open context and room for the struct.
    let rc = unsafe { port::query_port(open.0, 1, attr.as_mut_ptr().cast(), 64) };
    assert_eq!(rc, 0);
    assert_eq!(attr[size_of::<sys::ibv_port_attr>()..], [0; 12]);

    let mut old = [0xAA_u8; 64];
    // SAFETY: as above.
    assert_eq!(unsafe { sys::ibv_query_port(open.0, 1, old.as_mut_ptr().cast()) }, 0);
    let end = offset_of!(sys::ibv_port_attr, port_cap_flags2);
    assert_eq!(old[..end], attr[..end]);
    assert!(old[end..].iter().all(|b| *b == 0xAA), "the old struct ends there");

    // SAFETY: as above.
    let rc = unsafe { port::query_port(open.0, 2, attr.as_mut_ptr().cast(), 64) };
    assert_eq!(rc, libc::EINVAL);
}

#[test]
fn a_roce_port_is_active_and_routed_by_gid() {
    let open = Open::first();
    let mut attr: sys::ibv_port_attr = zeroed();
    // SAFETY: an open context and the struct's size.
    let rc = unsafe { port::query_port(open.0, 1, &raw mut attr, size_of::<sys::ibv_port_attr>()) };
    assert_eq!(rc, 0);
    assert_eq!((attr.state, attr.link_layer, attr.lid, attr.flags), (4, 2, 0, 1));
    assert_eq!((attr.active_mtu, attr.gid_tbl_len, attr.pkey_tbl_len), (5, 32, 1));
}

#[test]
fn device_attributes_are_the_limits() {
    let open = Open::first();
    let mut attr: sys::ibv_device_attr = zeroed();
    // SAFETY: an open context and the struct.
    assert_eq!(unsafe { sys::ibv_query_device(open.0, &raw mut attr) }, 0);
    assert_eq!(attr.max_qp_wr, i32::try_from(crate::limits::MAX_QP_WR).unwrap());
    assert_eq!(attr.max_srq_wr, i32::try_from(crate::limits::MAX_SRQ_WR).unwrap());
    assert_eq!(attr.phys_port_cnt, 1);
    // SAFETY: an open context has a device.
    assert_eq!(attr.node_guid, unsafe { sys::ibv_get_device_guid((*open.0).device) });

    let mut ex = [0xAA_u8; size_of::<sys::ibv_device_attr_ex>() + 8];
    // SAFETY: an open context and a buffer of the size that is given.
    let mut ask =
        |size| unsafe { device::query_device_ex(open.0, ptr::null(), ex.as_mut_ptr().cast(), size) };
    let least = offset_of!(sys::ibv_device_attr_ex, odp_caps);
    assert_eq!(ask(least - 1), libc::EINVAL);
    assert_eq!(ask(least), 0);
    assert_eq!(
        ex[least..],
        [0xAA; size_of::<sys::ibv_device_attr_ex>() + 8 - offset_of!(sys::ibv_device_attr_ex, odp_caps)]
    );
}

#[test]
fn the_only_pkey_is_the_default() {
    let open = Open::first();
    let mut pkey = 0;
    // SAFETY: an open context and a P_Key.
    assert_eq!(unsafe { ibv_query_pkey(open.0, 1, 0, &raw mut pkey) }, 0);
    assert_eq!(pkey, 0xFFFF);
    // SAFETY: as above.
    assert_eq!((unsafe { ibv_query_pkey(open.0, 1, 1, &raw mut pkey) }, errno()), (-1, Some(libc::EINVAL)));
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_get_pkey_index(open.0, 1, 0xFFFF) }, 0);
    // SAFETY: as above.
    assert_eq!((unsafe { ibv_get_pkey_index(open.0, 1, 1) }, errno()), (-1, Some(libc::ENOENT)));
}

#[test]
fn a_null_context_is_an_error() {
    let null = ptr::null_mut();
    let mut attr: sys::ibv_device_attr = zeroed();
    // SAFETY: null is rejected.
    assert_eq!(unsafe { sys::ibv_query_device(null, &raw mut attr) }, libc::EINVAL);
}
