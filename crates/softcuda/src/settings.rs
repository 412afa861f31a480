//! The simulated GPUs of a process.

use serde::{Deserialize, Serialize};

/// What the rank program requests from `softcuda_attach`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// GPUs of this host.
    pub devices: u32,
    /// Compute capability. NCCL flushes received data (iflush) below 9.0.
    pub compute_capability: (u32, u32),
    /// Driver version, for instance 12090 for CUDA 12.9.
    pub driver_version: i32,
    /// Whether NICs reach GPU memory (GPUDirect).
    pub gpudirect: bool,
    /// Whether NCCL uses virtual memory management (cuMem) for its buffers.
    pub vmm: bool,
    /// Whether GPU memory can be exported as a DMA-BUF.
    pub dma_buf: bool,
    /// Names the host in the UUIDs of its GPUs, which differ between hosts.
    pub host: String,
    /// PCI bus numbers of the GPUs. GPUs without an entry have the numbers from 0x41 on.
    pub pci: Vec<String>,
    /// Whether each kernel launch is logged to stderr.
    pub log: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 8,
            compute_capability: (9, 0),
            driver_version: 12090,
            gpudirect: false,
            vmm: false,
            dma_buf: false,
            host: String::new(),
            pci: Vec::new(),
            log: false,
        }
    }
}
