//! HCAs, ports and GIDs, and the devices that NCCL sees.
//!
//! Ports are opened once per process and stay open across `finalize` and the next `init`: NCCL
//! keeps the names of devices and expects to find the same devices again.

mod capabilities;
mod discovery;
mod gid;
mod gpu;
mod mr_cache;
mod net_device;
mod nic;
mod pci;
mod port_meter;
mod registration;
mod registry;
mod selection;
mod wires;

pub(crate) use capabilities::{Answer, data_direct, dmabuf, findings, receive_queues, unreached};
pub(crate) use discovery::{PortView, Survey, survey};
pub(crate) use gpu::Gpu;
pub(crate) use mr_cache::{Memory, Registered, Registration};
pub use net_device::Device;
pub use nic::Nic;
pub(crate) use pci::PciLocation;
pub(crate) use port_meter::{HwCounters, PortMeter, SCALE_ONE, Span};
pub(crate) use registry::{Devices, Hold};
pub(crate) use selection::INACTIVE;
