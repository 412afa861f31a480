//! Virtual memory management.

use std::{
    ffi::{c_int, c_ulonglong, c_void},
    os::fd::{BorrowedFd, IntoRawFd},
};

use crate::{
    border::{Address, In, Out},
    device,
    memory::vmm::{GRANULARITY, Location},
    patch::EntryPoint,
    state::state,
    status::{Answer, Status, code},
    unknown::{Unknown, end_rank},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuMemAddressReserve", address_reserve as *const ()),
    ("cuMemAddressFree", address_free as *const ()),
    ("cuMemCreate", create as *const ()),
    ("cuMemRelease", release as *const ()),
    ("cuMemMap", map as *const ()),
    ("cuMemUnmap", unmap as *const ()),
    ("cuMemSetAccess", set_access as *const ()),
    ("cuMemGetAllocationGranularity", get_granularity as *const ()),
    ("cuMemExportToShareableHandle", export as *const ()),
    ("cuMemImportFromShareableHandle", import as *const ()),
    ("cuMemRetainAllocationHandle", retain as *const ()),
    ("cuMemGetAllocationPropertiesFromHandle", get_properties as *const ()),
];

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const PINNED: c_int = 1;
const FILE_DESCRIPTOR: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
const ON_DEVICE: c_int = 1;
const ON_NUMA_NODE: c_int = 3;

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: c_int,
    location_id: c_int,
    windows: usize,
    compression: u8,
    gpudirect: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl Properties {
    /// Returns where the memory is to be. All NUMA nodes are one.
    fn location(self) -> Answer<Location> {
        match (self.kind, self.location) {
            (PINNED, ON_DEVICE) => state().devices.check(self.location_id).map(Location::Device),
            (PINNED, ON_NUMA_NODE) => Ok(Location::Host),
            (kind, place) => {
                end_rank(&Unknown::new("physical memory of", format!("type {kind} at location {place}")))
            }
        }
    }
}

fn check_handle_type(kind: c_int) {
    if kind != FILE_DESCRIPTOR {
        end_rank(&Unknown::new("type of shareable handle", kind));
    }
}

extern "C" fn address_reserve(
    address: Out<usize>,
    len: usize,
    alignment: usize,
    _wanted: Address,
    _flags: c_ulonglong,
) -> Status {
    code(address.set_answer(state().memory.reserve(len, alignment)))
}

extern "C" fn address_free(address: Address, len: usize) -> Status {
    code(state().memory.release_addresses(address.get(), len))
}

extern "C" fn create(
    handle: Out<u64>,
    len: usize,
    properties: In<Properties>,
    _flags: c_ulonglong,
) -> Status {
    let location = properties.get().and_then(Properties::location);
    code(handle.set_answer(location.and_then(|location| state().memory.create(len, location))))
}

extern "C" fn release(handle: u64) -> Status {
    code(state().memory.release(handle))
}

extern "C" fn map(address: Address, len: usize, offset: usize, handle: u64, _flags: c_ulonglong) -> Status {
    code(state().memory.map(address.get(), len, offset, handle))
}

extern "C" fn unmap(address: Address, len: usize) -> Status {
    code(state().memory.unmap(address.get(), len))
}

/// Every device may access all mappings.
extern "C" fn set_access(address: Address, _len: usize, _access: *const c_void, _count: usize) -> Status {
    code(state().memory.find(address.get()).map(drop).ok_or(Status::INVALID_VALUE))
}

extern "C" fn get_granularity(size: Out<usize>, _properties: In<Properties>, _option: c_int) -> Status {
    code(size.set(GRANULARITY))
}

extern "C" fn export(descriptor: Out<c_int>, handle: u64, kind: c_int, _flags: c_ulonglong) -> Status {
    check_handle_type(kind);
    code(descriptor.set_answer(state().memory.export(handle).map(IntoRawFd::into_raw_fd)))
}

/// The descriptor is passed in the place of a pointer, and stays open.
extern "C" fn import(handle: Out<u64>, descriptor: usize, kind: c_int) -> Status {
    check_handle_type(kind);
    let Ok(descriptor @ 0..) = c_int::try_from(descriptor) else {
        return Status::INVALID_VALUE;
    };
    // The descriptor does not show where the memory is. The importer uses it on its own device.
    let location = Location::Device(device::current());
    // SAFETY: the caller's open descriptor, which is only used during this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    code(handle.set_answer(state().memory.import(descriptor, location)))
}

extern "C" fn retain(handle: Out<u64>, address: Address) -> Status {
    code(handle.set_answer(state().memory.retain(address.get())))
}

extern "C" fn get_properties(properties: Out<Properties>, handle: u64) -> Status {
    let memory = state().memory.physical(handle);
    code(properties.set_answer(memory.map(|memory| {
        let (location, location_id) = match memory.location {
            Location::Device(device) => (ON_DEVICE, device.cast_signed()),
            Location::Host => (ON_NUMA_NODE, 0),
        };
        Properties {
            kind: PINNED,
            handle_types: FILE_DESCRIPTOR,
            location,
            location_id,
            windows: 0,
            compression: 0,
            gpudirect: u8::from(state().devices.settings().gpudirect),
            usage: 0,
            reserved: [0; 4],
        }
    })))
}
