//! Devices.

use std::ffi::{c_char, c_int, c_uint};

use super::reply;
use crate::{
    border::{Out, Text},
    device::{self, MULTIPROCESSORS, TOTAL_MEMORY},
    patch::EntryPoint,
    state::state,
    status::Status,
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaDriverGetVersion", driver_get_version as *const ()),
    ("cudaRuntimeGetVersion", driver_get_version as *const ()),
    ("cudaGetDevice", get_device as *const ()),
    ("cudaSetDevice", set_device as *const ()),
    ("cudaGetDeviceCount", get_device_count as *const ()),
    ("cudaDeviceGetAttribute", device_get_attribute as *const ()),
    ("cudaDeviceGetPCIBusId", device_get_pci_bus_id as *const ()),
    ("cudaDeviceGetByPCIBusId", device_get_by_pci_bus_id as *const ()),
    ("cudaDeviceCanAccessPeer", device_can_access_peer as *const ()),
    ("cudaDeviceEnablePeerAccess", device_enable_peer_access as *const ()),
    ("cudaDeviceDisablePeerAccess", device_disable_peer_access as *const ()),
    ("cudaDeviceSetLimit", device_set_limit as *const ()),
    ("cudaDeviceSynchronize", device_synchronize as *const ()),
    ("cudaGetDeviceProperties_v2", get_device_properties_12 as *const ()),
    ("cudaGetDeviceProperties", get_device_properties_13 as *const ()),
];

extern "C" fn driver_get_version(version: Out<c_int>) -> Status {
    reply(version.set(state().devices.settings().driver_version))
}

extern "C" fn get_device(device: Out<c_int>) -> Status {
    reply(device.set(device::current().cast_signed()))
}

extern "C" fn set_device(device: c_int) -> Status {
    reply(state().devices.check(device).map(|device| {
        device::set_current(device);
        crate::driver::context::use_primary(device);
    }))
}

extern "C" fn get_device_count(count: Out<c_int>) -> Status {
    reply(count.set(state().devices.count().cast_signed()))
}

extern "C" fn device_get_attribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Status {
    let devices = &state().devices;
    reply(value.set_answer(devices.check(device).map(|device| devices.attribute(attribute, device))))
}

extern "C" fn device_get_pci_bus_id(text: Out<c_char>, len: c_int, device: c_int) -> Status {
    let devices = &state().devices;
    let write = |device| text.set_text(&devices.pci(device).to_string(), len);
    reply(devices.check(device).and_then(write))
}

extern "C" fn device_get_by_pci_bus_id(device: Out<c_int>, text: Text<'_>) -> Status {
    let find = |text| state().devices.at_pci(text).ok_or(Status::INVALID_DEVICE);
    reply(device.set_answer(text.get().and_then(find).map(u32::cast_signed)))
}

extern "C" fn device_can_access_peer(can: Out<c_int>, device: c_int, peer: c_int) -> Status {
    let devices = &state().devices;
    let answer = devices.check(device).and_then(|a| Ok(a != devices.check(peer)?));
    reply(can.set_answer(answer.map(c_int::from)))
}

/// Every process can map the memory of every device, so access needs no preparation.
extern "C" fn device_enable_peer_access(peer: c_int, _flags: c_uint) -> Status {
    reply(state().devices.check(peer).map(drop))
}

extern "C" fn device_disable_peer_access(peer: c_int) -> Status {
    reply(state().devices.check(peer).map(drop))
}

/// Limits concern the GPU's own stacks and heaps, which do not exist.
extern "C" fn device_set_limit(_limit: c_int, _value: usize) -> Status {
    Status::SUCCESS
}

extern "C" fn device_synchronize() -> Status {
    state().streams.synchronize_all();
    Status::SUCCESS
}

/// Offsets in `cudaDeviceProp` that differ between CUDA 12 and CUDA 13.
#[derive(Debug)]
struct Properties {
    size: usize,
    multiprocessors: usize,
    /// Bus, device, domain.
    pci: usize,
}

const CUDA_12: Properties = Properties { size: 1032, multiprocessors: 388, pci: 584 };
const CUDA_13: Properties = Properties { size: 1008, multiprocessors: 384, pci: 568 };

/// Offsets that are the same in both.
const NAME: usize = 0;
const UUID: usize = 256;
const TOTAL_GLOBAL_MEMORY: usize = 288;
const WARP_SIZE: usize = 308;
const THREADS_PER_BLOCK: usize = 320;
const CAPABILITY: usize = 360;

impl Properties {
    /// Returns the structure of a device. What NCCL does not read is zero.
    fn of<const SIZE: usize>(&self, device: u32) -> [u8; SIZE] {
        debug_assert_eq!(self.size, SIZE);
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let devices = &state().devices;
        let (major, minor) = devices.settings().compute_capability;
        let pci = devices.pci(device);
        put(NAME, b"softcuda");
        put(UUID, &devices.uuid(device));
        put(TOTAL_GLOBAL_MEMORY, &TOTAL_MEMORY.to_le_bytes());
        put(WARP_SIZE, &32_u32.to_le_bytes());
        put(THREADS_PER_BLOCK, &1024_u32.to_le_bytes());
        put(CAPABILITY, &[major, minor].map(u32::to_le_bytes).concat());
        put(self.multiprocessors, &MULTIPROCESSORS.to_le_bytes());
        put(self.pci, &[pci.bus, pci.device, pci.domain].map(u32::to_le_bytes).concat());
        bytes
    }
}

extern "C" fn get_device_properties_12(properties: Out<[u8; CUDA_12.size]>, device: c_int) -> Status {
    reply(properties.set_answer(state().devices.check(device).map(|device| CUDA_12.of(device))))
}

/// The structure is shorter in CUDA 13, where the function's name lost its suffix.
extern "C" fn get_device_properties_13(properties: Out<[u8; CUDA_13.size]>, device: c_int) -> Status {
    reply(properties.set_answer(state().devices.check(device).map(|device| CUDA_13.of(device))))
}
