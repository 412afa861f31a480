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

/// Words of a launch attribute: its number, and room for values of any kind.
const ATTRIBUTE_WORDS: usize = 9;
/// Launch attributes that decide where blocks run and how the GPU orders memory. They change nothing
/// here: the size of a cluster, its scheduling, the domain of memory synchronization, and scheduling
/// for NVLink (CUDA 13).
const NO_EFFECT: [u32; 4] = [4, 5, 10, 16];

/// The grid of a launch, and a list of attributes.
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    /// The address of the list.
    pub(crate) attributes: usize,
    pub(crate) attribute_count: u32,
}

impl Shape {
    /// Returns the number of blocks. Ends the rank if the launch has another form than NCCL's.
    fn blocks(&self, kernel: &str) -> u32 {
        let [blocks, 1, 1] = self.grid else {
            end_rank(&Unknown::new("grid", format!("{:?}", self.grid)).found(kernel));
        };
        for i in 0..self.attribute_count as usize {
            // The number has the lower half of the word.
            let attribute = Words::at_address(self.attributes).at(i * ATTRIBUTE_WORDS) as u32;
            if !NO_EFFECT.contains(&attribute) {
                end_rank(&Unknown::new("launch attribute", attribute).found(kernel));
            }
        }
        blocks
    }
}

/// Adds a kernel to a stream. `function` is the address of the kernel's function on the host.
pub(crate) fn launch(
    function: Address,
    shape: Shape,
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
    let blocks = shape.blocks(&kernel);
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
