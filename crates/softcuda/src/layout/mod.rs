//! Where a release keeps what its kernels read: a typed table from the library's debug information.
//!
//! Every entry is found or declared absent for the release's generation; anything else is an error
//! with the entry's name. An entry that is absent in some releases is an `Option`.

mod device_api;
mod dwarf;
mod field;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::{fs::File, io, path::Path, path::PathBuf};

pub use device_api::{DeviceApi, DeviceCommunicator, DeviceWindow, GinContext, Requirements};
pub use field::Field;
pub use work::{
    Batch, Batches, Broadcast, Collective, ListCollective, ListP2p, ListPart, Lists, P2p, P2pHalf, Work,
};

/// A failure to read a library's layout.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The library.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The debug information is broken or of an unknown form.
    #[error("cannot read the library's debug information: {0}")]
    Debug(String),
    /// A structure or a member is not there and not declared absent.
    #[error("the library's debug information has no {0}; softcuda does not know this release")]
    Missing(String),
}

/// The layout of what a release's kernels read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The communicator in device memory.
    pub communicator: Communicator,
    /// A channel of a communicator.
    pub channel: Channel,
    /// A connection of a channel to a peer.
    pub connection: Connection,
    /// The form of the work that a launch carries.
    pub work: Work,
}

/// `ncclKernelComm`, before 2.28 `ncclDevComm`, followed by the channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    /// This rank.
    pub rank: Field,
    /// Number of ranks.
    pub ranks: Field,
    /// Offset of three sizes in bytes, of the buffers of LL, LL128 and Simple.
    pub buffer_sizes: usize,
    /// Step of send and receive; absent in 2.18.
    pub p2p_chunk: Option<Field>,
    /// Pointer to the abort flag.
    pub abort_flag: Field,
    /// Pointer to one counter for each channel, which releases the work FIFO; 2.22 to 2.26.
    pub work_consumed: Option<Field>,
    /// Where kernels count works for the profiler; from 2.26 on.
    pub profiler: Option<Profiler>,
    /// Offset of the first channel.
    pub channels: usize,
}

/// Where kernels report to the profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profiler {
    /// Pointer to what a kernel writes when it starts works, one entry for each channel.
    pub started: Field,
    /// Pointer to what a kernel writes when works are complete.
    pub completed: Field,
    /// Size of an entry that is a ring of {counter, time}; absent in 2.26, whose entry is a counter.
    pub ring: Option<usize>,
}

/// `ncclDevChannel`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    /// Size in bytes.
    pub size: usize,
    /// Pointer to pointers to the peers.
    pub peers: Field,
    /// The previous rank of the ring.
    pub previous: Field,
    /// The next rank of the ring.
    pub next: Field,
    /// Pointer to the ring's ranks, this one first.
    pub user_ranks: Field,
    /// This rank's place in the ring.
    pub index: Field,
    /// The tree's parent, or -1.
    pub up: Field,
    /// Offset of the tree's three children; -1 for none.
    pub down: usize,
    /// Pointer to the counter that releases the work FIFO up to 2.21.
    pub fifo_done: Field,
    /// Number of works that the channel has run; from 2.26 on.
    pub work_counter: Option<Field>,
}

/// `ncclConnInfo` in `ncclDevChannelPeer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Size in bytes.
    pub size: usize,
    /// Offset of the first connection for sends in a peer.
    pub sends: usize,
    /// Offset of the first connection for receives in a peer.
    pub receives: usize,
    /// Offset of three pointers to buffers, of LL, LL128 and Simple.
    pub buffers: usize,
    /// Pointer to the sender's step counter.
    pub tail: Field,
    /// Pointer to the receiver's step counter.
    pub head: Field,
    /// How the buffers are reached.
    pub flags: Field,
    /// The next step.
    pub step: Field,
    /// Bytes of a step in Simple; absent up to 2.20.
    pub step_size: Option<Field>,
    /// How a kernel and a proxy thread pass sizes and offsets.
    pub fifo: Fifo,
}

/// How a kernel and a proxy thread pass the size and the place of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fifo {
    /// Two arrays of eight `int`: 2.18 and 2.19.
    Arrays {
        /// Pointer to the sizes.
        sizes: Field,
        /// Pointer to the offsets.
        offsets: Field,
    },
    /// An array of eight `ncclConnFifo`: from 2.20 on.
    Entries {
        /// Pointer to the entries.
        entries: Field,
        /// Size of an entry in bytes.
        size: usize,
        /// Whether the entry has an offset (1) or not.
        mode: Field,
        /// Offset in the buffer.
        offset: Field,
        /// Bytes of the step.
        bytes: Field,
    },
}

impl Layout {
    /// Reads the layout of a library.
    pub fn of(path: &Path) -> Result<Self, LayoutError> {
        with_library(path, table::read)
    }
}

/// Reads something of a library's file.
fn with_library<T>(
    path: &Path,
    read: impl FnOnce(&object::File<'_>) -> Result<T, LayoutError>,
) -> Result<T, LayoutError> {
    let file = |source| LayoutError::File { path: path.to_owned(), source };
    let library = File::open(path).map_err(file)?;
    // SAFETY: nobody writes to a library in use; a file that shrinks ends the process, which
    // is a rank of a test.
    let bytes = unsafe { memmap2::Mmap::map(&library) }.map_err(file)?;
    let elf = object::File::parse(&bytes[..]).map_err(|e| LayoutError::Debug(e.to_string()))?;
    read(&elf)
}
