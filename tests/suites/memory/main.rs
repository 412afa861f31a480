//! Registrations: the cache, DMA-BUF, GPU memory.

mod access;
mod data_direct;
mod dmabuf;
mod gpu;
mod registrations;
