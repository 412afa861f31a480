//! The stand-in for the CUDA runtime below libraries and below a real NCCL.

mod attach;
mod real;
mod streams;
mod world;
