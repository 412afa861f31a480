//! Launches of kernels.

use crate::{
    border::{Address, Words},
    kernel::{Launch, Params},
    state::state,
    status::{Answer, Status},
    stream::StreamId,
    unknown::{Unknown, end_rank},
};

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;
/// Parameters of a kernel of NCCL 2.18 to 2.21: the communicator on the device, the mask of channels
/// and the first work.
const POINTERS: usize = 3;
/// A part of the mangled names of those kernels: their first parameter.
const OLDER_GENERATION: &str = "P11ncclDevComm";

/// Adds a kernel to a stream. `function` is the address of the kernel's function on the host.
pub(crate) fn launch(
    function: Address,
    blocks: u32,
    parameters: Words,
    options: Words,
    stream: StreamId,
) -> Answer {
    let state = state();
    let Some(kernel) = state.image.name_at(function.get()) else {
        end_rank(&Unknown::new("kernel at", format!("{:#x}", function.get())));
    };
    let kernel = kernel.to_owned();
    let params = read(&kernel, parameters, options);
    let launch = Launch { kernel, blocks, params: params? };
    if state.devices.settings().log {
        eprintln!("softcuda[{}]: {} with {} blocks", std::process::id(), launch.kernel, launch.blocks);
    }
    state.streams.add(stream, crate::kernels::job(launch))
}

/// Reads the parameters.
fn read(kernel: &str, parameters: Words, options: Words) -> Answer<Params> {
    if !options.is_null() {
        return buffer(options).map(Params::Buffer);
    }
    if !kernel.contains(OLDER_GENERATION) || parameters.is_null() {
        end_rank(&Unknown::new("form of the parameters of kernel", kernel));
    }
    let value = |i| Words::at_address(parameters.at(i)).at(0).to_le_bytes();
    Ok(Params::Pointers((0..POINTERS).map(value).collect()))
}

/// Reads the buffer that a list of options describes.
fn buffer(options: Words) -> Answer<Vec<u8>> {
    let (mut address, mut size) = (None, None);
    for option in (0..).step_by(2) {
        match options.at(option) {
            END => break,
            BUFFER => address = Some(options.at(option + 1)),
            BUFFER_SIZE => size = Some(Words::at_address(options.at(option + 1)).at(0)),
            other => end_rank(&Unknown::new("launch option", other)),
        }
    }
    match (address, size) {
        (Some(address), Some(size)) => Ok(Address::at(address).read(size).into_vec()),
        _ => Err(Status::INVALID_VALUE),
    }
}
