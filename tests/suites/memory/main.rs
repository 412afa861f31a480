//! Registrations: the cache, DMA-BUF, GPU memory.

mod data_direct;
mod dmabuf;
mod gpu;
mod registrations;
