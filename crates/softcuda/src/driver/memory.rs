//! Memory: ranges, attributes of addresses, DMA-BUFs.

use std::{
    ffi::{c_int, c_ulonglong, c_void},
    os::fd::IntoRawFd,
};

use crate::{
    border::{Address, Out},
    device,
    memory::{Kind, Range},
    patch::EntryPoint,
    state::state,
    status::{Answer, Status, code},
    stream::StreamId,
    transfer,
    unknown::{Unknown, end_rank},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuMemGetAddressRange", get_address_range as *const ()),
    ("cuMemGetHandleForAddressRange", get_handle_for_address_range as *const ()),
    ("cuPointerGetAttribute", pointer_get_attribute as *const ()),
    ("cuPointerSetAttribute", pointer_set_attribute as *const ()),
];

/// Returns the range of an address.
fn find(address: Address) -> Answer<Range> {
    state().memory.find(address.get()).ok_or(Status::INVALID_VALUE)
}

extern "C" fn get_address_range(base: Out<usize>, len: Out<usize>, address: Address) -> Status {
    code(find(address).map(|range| {
        base.set_if_wanted(range.base);
        len.set_if_wanted(range.len);
    }))
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: c_int = 1;

extern "C" fn get_handle_for_address_range(
    descriptor: Out<c_int>,
    address: Address,
    len: usize,
    kind: c_int,
    _flags: c_ulonglong,
) -> Status {
    if kind != DMA_BUF {
        end_rank(&Unknown::new("kind of handle for a range of addresses", kind));
    }
    let exported = state().memory.export_range(address.get(), len);
    code(descriptor.set_answer(exported.map(IntoRawFd::into_raw_fd)))
}

/// `CUpointer_attribute`, the ones that NCCL reads or sets.
mod attribute {
    use std::ffi::c_int;

    pub(super) const MEMORY_TYPE: c_int = 2;
    pub(super) const DEVICE_POINTER: c_int = 3;
    pub(super) const HOST_POINTER: c_int = 4;
    pub(super) const SYNC_MEMOPS: c_int = 6;
    pub(super) const BUFFER_ID: c_int = 7;
    pub(super) const IS_MANAGED: c_int = 8;
    pub(super) const DEVICE_ORDINAL: c_int = 9;
    pub(super) const IPC_CAPABLE: c_int = 10;
    pub(super) const RANGE_START: c_int = 11;
    pub(super) const RANGE_SIZE: c_int = 12;
    pub(super) const MAPPED: c_int = 13;
}

/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const HOST: u64 = 1;
const DEVICE: u64 = 2;

/// An attribute's value and the size of its type.
fn value(range: &Range, wanted: c_int, address: usize) -> (u64, usize) {
    match wanted {
        attribute::MEMORY_TYPE => (if range.kind == Kind::Device { DEVICE } else { HOST }, 4),
        attribute::DEVICE_POINTER | attribute::HOST_POINTER => (address as u64, 8),
        attribute::SYNC_MEMOPS | attribute::MAPPED => (1, 4),
        attribute::BUFFER_ID => (range.id, 8),
        attribute::IS_MANAGED => (0, 4),
        attribute::DEVICE_ORDINAL => (u64::from(range.device), 4),
        attribute::IPC_CAPABLE => (u64::from(range.kind == Kind::Device && !range.is_mapped()), 4),
        attribute::RANGE_START => (range.base as u64, 8),
        attribute::RANGE_SIZE => (range.len as u64, 8),
        unknown => end_rank(&Unknown::new("attribute of an address", unknown)),
    }
}

extern "C" fn pointer_get_attribute(place: Out<c_void>, wanted: c_int, address: Address) -> Status {
    code(find(address).and_then(|range| match value(&range, wanted, address.get()) {
        (value, 4) => place.cast::<u32>().set(value as u32),
        (value, _) => place.cast::<u64>().set(value),
    }))
}

/// Copies are synchronous to the host anyway; other attributes cannot be set.
extern "C" fn pointer_set_attribute(_value: *const c_void, which: c_int, address: Address) -> Status {
    if which != attribute::SYNC_MEMOPS {
        end_rank(&Unknown::new("settable attribute of an address", which));
    }
    code(find(address).map(drop))
}

pub(super) extern "C" fn alloc(address: Out<usize>, len: usize) -> Status {
    code(address.set_answer(state().memory.allocate(len, Kind::Device, device::current())))
}

pub(super) extern "C" fn free(address: Address) -> Status {
    code(state().memory.free(address.get()))
}

/// A copy in either direction.
pub(super) extern "C" fn copy(to: Address, from: Address, len: usize) -> Status {
    let copied = transfer::copy(to, from, len, 0);
    code(copied.and_then(|()| state().streams.synchronize(0)))
}

pub(super) extern "C" fn copy_async(to: Address, from: Address, len: usize, stream: StreamId) -> Status {
    code(transfer::copy(to, from, len, stream))
}

pub(super) extern "C" fn fill_async(to: Address, value: u8, len: usize, stream: StreamId) -> Status {
    code(transfer::fill(to, value, len, stream))
}
