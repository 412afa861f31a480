//! Stand-in for the CUDA runtime below an unchanged `libnccl.so.2`, for tests only.
//!
//! A rank program loads the library of an NCCL release and attaches softcuda to it. The entry
//! points of the CUDA runtime inside the library then lead here. NCCL's own bootstrap, topology
//! search, proxy threads and channels run unchanged; softcuda keeps the memory, the streams and
//! the events, and does on CPU threads what the kernels would do on a GPU.
//!
//! The manual, `docs/internals/softcuda.md`, has what this can prove and what not.

pub mod address;
mod attach;
mod border;
mod collective;
mod data_type;
mod device;
mod driver;
pub mod dwarf;
pub mod gin;
pub mod image;
pub mod kernel;
mod kernels;
mod launch;
pub mod layout;
mod memory;
mod nvml;
mod patch;
pub mod profiler;
pub mod protocol;
pub mod rank;
pub mod reduce;
mod runtime;
mod settings;
mod state;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod transfer;
pub mod unknown;
pub mod world;

pub use attach::{ATTACH, Attach, softcuda_attach};
pub use data_type::DataType;
pub use image::Image;
pub use settings::Settings;
pub use unknown::{Unknown, end_rank};
