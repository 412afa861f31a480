//! Launches of kernels.

use std::ffi::c_uint;

use crate::{
    border::{Address, In, Words},
    launch,
    patch::EntryPoint,
    status::{Status, code},
    stream::StreamId,
};

pub(super) const FUNCTIONS: &[EntryPoint] =
    &[("cuLaunchKernel", launch_kernel as *const ()), ("cuLaunchKernelEx", launch_kernel_ex as *const ())];

#[allow(clippy::too_many_arguments, reason = "the signature of the driver's function")]
extern "C" fn launch_kernel(
    function: Address,
    blocks: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    stream: StreamId,
    parameters: Words,
    options: Words,
) -> Status {
    code(launch::launch(function, blocks, parameters, options, stream))
}

/// `CUlaunchConfig`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: StreamId,
    attributes: usize,
    attribute_count: c_uint,
}

const _: () = assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);

extern "C" fn launch_kernel_ex(
    config: In<LaunchConfig>,
    function: Address,
    parameters: Words,
    options: Words,
) -> Status {
    let run =
        |config: LaunchConfig| launch::launch(function, config.grid[0], parameters, options, config.stream);
    code(config.get().and_then(run))
}
