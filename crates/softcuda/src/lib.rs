//! Stand-in for the CUDA runtime below an unchanged `libnccl.so.2`, for tests only.
//!
//! A rank program loads the library of an NCCL release and attaches softcuda to it. The entry
//! points of the CUDA runtime inside the library then lead here. NCCL's own bootstrap, topology
//! search, proxy threads and channels run as they are; softcuda keeps the memory, the streams and
//! the events, and does on CPU threads what the kernels would do on a GPU.
//!
//! The manual, `docs/internals/softcuda.md`, has what this can prove and what not.

pub mod address;
pub(crate) mod collective;
pub mod image;
pub mod kernel;
pub mod layout;
pub mod protocol;
pub mod reduce;
pub mod unknown;

pub use image::Image;
pub use unknown::{Unknown, end_rank};
