//! Kernels: attributes and launches, and the driver's entry points.

use std::ffi::{c_int, c_uint, c_ulonglong};

use super::reply;
use crate::{
    border::{Address, In, Out, Text, Words},
    device::SHARED_MEMORY_OPTIN,
    driver, launch,
    patch::EntryPoint,
    status::{Answer, Status},
    stream::StreamId,
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaFuncGetAttributes", func_get_attributes as *const ()),
    ("cudaFuncSetAttribute", func_set_attribute as *const ()),
    ("cudaGetFuncBySymbol", get_func_by_symbol as *const ()),
    ("cudaLaunchKernel", launch_kernel as *const ()),
    ("cudaLaunchKernelExC", launch_kernel_ex as *const ()),
    ("cudaGetDriverEntryPoint", get_driver_entry_point as *const ()),
    ("cudaGetDriverEntryPointByVersion", get_driver_entry_point_by_version as *const ()),
];

/// `cudaFuncAttributes`.
#[repr(C)]
struct FuncAttributes {
    shared_size: usize,
    const_size: usize,
    local_size: usize,
    max_threads_per_block: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode_ca: c_int,
    max_dynamic_shared_size: c_int,
    /// Options of caches and clusters, and reserved words.
    options: [c_int; 23],
}

const _: () = assert!(size_of::<FuncAttributes>() == 144);

extern "C" fn func_get_attributes(attributes: Out<FuncAttributes>, _function: Address) -> Status {
    reply(attributes.set(FuncAttributes {
        shared_size: 0,
        const_size: 0,
        local_size: 0,
        max_threads_per_block: 1024,
        registers: 96,
        ptx_version: 90,
        binary_version: 90,
        cache_mode_ca: 0,
        max_dynamic_shared_size: SHARED_MEMORY_OPTIN,
        options: [0; 23],
    }))
}

/// Attributes concern shared memory and caches of the GPU.
extern "C" fn func_set_attribute(_function: Address, _attribute: c_int, _value: c_int) -> Status {
    Status::SUCCESS
}

/// The handle of a kernel is the address of its host function, by which `launch` finds its name.
extern "C" fn get_func_by_symbol(handle: Out<Address>, function: Address) -> Status {
    reply(handle.set(function))
}

/// `dim3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Dimensions {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

extern "C" fn launch_kernel(
    function: Address,
    grid: Dimensions,
    _block: Dimensions,
    arguments: Words,
    _shared: usize,
    stream: StreamId,
) -> Status {
    reply(launch::launch(function, grid.x, arguments, Words::NONE, stream))
}

/// `cudaLaunchConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LaunchConfig {
    grid: Dimensions,
    block: Dimensions,
    shared: usize,
    stream: StreamId,
    attributes: usize,
    attribute_count: c_uint,
}

extern "C" fn launch_kernel_ex(config: In<LaunchConfig>, function: Address, arguments: Words) -> Status {
    let run =
        |config: LaunchConfig| launch::launch(function, config.grid.x, arguments, Words::NONE, config.stream);
    reply(config.get().and_then(run))
}

/// `cudaDriverEntryPointQueryResult`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

fn entry_point(name: Text<'_>, function: Out<*const ()>, result: Out<c_int>) -> Answer {
    let found = driver::entry_point(name.get()?);
    result.set_if_wanted(if found.is_some() { FOUND } else { NOT_FOUND });
    function.set(found.unwrap_or(std::ptr::null()))
}

extern "C" fn get_driver_entry_point(
    name: Text<'_>,
    function: Out<*const ()>,
    _flags: c_ulonglong,
    result: Out<c_int>,
) -> Status {
    reply(entry_point(name, function, result))
}

extern "C" fn get_driver_entry_point_by_version(
    name: Text<'_>,
    function: Out<*const ()>,
    _version: c_uint,
    _flags: c_ulonglong,
    result: Out<c_int>,
) -> Status {
    reply(entry_point(name, function, result))
}
