//! Registrations: the cache, DMA-BUF, GPU memory.

mod dmabuf;
mod gpu;
mod registrations;
