//! Kernels of NCCL: what a launch does, read from the descriptors that the host wrote.

mod batches;
mod block;
mod coverage;
pub(crate) mod device;
pub mod function;
mod lists;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use block::Block;
use device::Communicator;
use function::{Function, Functions};

pub use crate::protocol::Progress;
use crate::{
    Image, Unknown,
    address::Address,
    collective::{Packing, p2p::PartOrder},
    layout::{Layout, Work},
    reduce::Reduction,
};

/// The first release whose sends and receives have their parts in the order of channels.
const LINEAR_PARTS: i32 = 22800;
/// The first release whose PAT spreads the data of a reduce-scatter.
const SPREAD: i32 = 22600;
/// The first release with a table of functions.
const TABLE: i32 = 21900;

/// A launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name in the symbol table.
    pub kernel: String,
    /// Number of blocks.
    pub blocks: u32,
    /// The parameters.
    pub params: Params,
}

/// The parameters of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Params {
    /// A copy of the parameter buffer: from 2.22 on.
    Buffer(Vec<u8>),
    /// The values of the parameters: 2.18 to 2.21.
    Pointers(Vec<[u8; 8]>),
}

/// What the kernels of a release do.
#[derive(Debug, Clone)]
pub struct Program {
    layout: Arc<Layout>,
    functions: Functions,
    part_order: PartOrder,
    packing: Packing,
}

impl Program {
    /// Reads what a loaded library's kernels do.
    pub fn new(layout: Layout, image: &Image) -> Result<Self, Unknown> {
        let unknown = |name: &str| Unknown::new("symbol", name).found(image.path().display());
        let version = image.address_of("ncclGetVersion").ok_or_else(|| unknown("ncclGetVersion"))?;
        // SAFETY: the library's public function with this signature; it writes a number and does
        // nothing else.
        let version: unsafe extern "C" fn(*mut i32) -> i32 = unsafe { std::mem::transmute(version) };
        let mut number = 0;
        // SAFETY: as above; `number` is an `int`.
        unsafe { version(&raw mut number) };
        let table = match number {
            ..TABLE => None,
            _ => {
                let name = "ncclDevFuncRowToId";
                Some(image.symbol_bytes(name).ok_or_else(|| unknown(name))?)
            }
        };
        Self::of_release(layout, number, table)
    }

    /// Returns the program of a release.
    fn of_release(layout: Layout, release: i32, table: Option<&[u8]>) -> Result<Self, Unknown> {
        let functions = match table {
            Some(table) => {
                let numbers = table.chunks_exact(4).map(|n| i32::from_le_bytes([n[0], n[1], n[2], n[3]]));
                Functions::of_table(&numbers.collect::<Vec<_>>())?
            }
            None => Functions::of_formula(),
        };
        let part_order = if release < LINEAR_PARTS { PartOrder::Reversed } else { PartOrder::Linear };
        let packing = if release < SPREAD { Packing::Full } else { Packing::Spread };
        Ok(Self { layout: Arc::new(layout), functions, part_order, packing })
    }

    /// Returns an operator with its argument.
    fn reduction(&self, function: Function, argument: u64) -> Reduction {
        Reduction {
            data_type: function.data_type,
            operator: function.operator,
            argument,
            division: self.functions.division,
        }
    }

    /// Reads a launch. The kernel begins with the first [`Kernel::step`].
    pub fn start(&self, launch: &Launch) -> Result<Kernel, Unknown> {
        let known = ["ncclDevKernel_", "ncclKernel_"];
        if !known.iter().any(|name| launch.kernel.contains(name)) {
            return Err(Unknown::new("kernel", &launch.kernel));
        }
        let read = match (&self.layout.work, &launch.params) {
            (Work::Batches(layout), Params::Buffer(arguments)) => {
                batches::read(self, layout, launch.blocks, arguments)
            }
            (Work::Lists(layout), Params::Pointers(values)) => match values[..] {
                [comm, mask, head, ..] => {
                    let values = [comm, mask, head].map(u64::from_le_bytes);
                    lists::read(self, layout, launch.blocks, values)
                }
                _ => Err(Unknown::new("number of kernel parameters", values.len())),
            },
            (Work::Batches(_), Params::Pointers(_)) => Err(Unknown::new("parameters", "pointers")),
            (Work::Lists(_), Params::Buffer(_)) => Err(Unknown::new("parameters", "a buffer")),
        };
        let (comm, blocks) = read.map_err(|unknown| unknown.found(&launch.kernel))?;
        Ok(Kernel { name: launch.kernel.clone(), comm, blocks })
    }
}

/// A kernel that runs.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    comm: Communicator,
    blocks: Vec<Block>,
}

impl Kernel {
    /// Returns the kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Advances every block as far as it goes without waiting. A kernel of a communicator that the
    /// host has aborted is done.
    pub fn step(&mut self) -> Result<Progress, Unknown> {
        let mut result = Progress::Waiting;
        let mut running = Vec::with_capacity(self.blocks.len());
        for mut block in self.blocks.drain(..) {
            match block.step().map_err(|unknown| unknown.found(&self.name))? {
                Progress::Done => result = Progress::Moved,
                Progress::Moved => {
                    result = Progress::Moved;
                    running.push(block);
                }
                Progress::Waiting => running.push(block),
            }
        }
        self.blocks = running;
        let is_over = self.blocks.is_empty() || result == Progress::Waiting && self.comm.is_aborted();
        Ok(if is_over { Progress::Done } else { result })
    }
}

/// Returns the argument of an operator, which may lie in memory of the user.
fn argument(value: u64, is_pointer: bool, size: usize) -> u64 {
    if !is_pointer {
        return value;
    }
    let mut scalar = [0; 8];
    // SAFETY: the user gave NCCL a pointer to an element and keeps it until the kernel ends. NCCL
    // has copied an element in the host's memory into its work.
    unsafe { Address::new(value as usize).read_into(&mut scalar[..size]) };
    u64::from_le_bytes(scalar)
}
