//! HCAs, ports and GIDs, and the devices that NCCL sees.
//!
//! Ports are opened once per process and stay open across `finalize` and the next `init`: NCCL
//! keeps the names of devices and expects to find the same devices again.

mod capabilities;
mod discovery;
mod enumeration;
mod gid;
mod gpu;
mod hw_counters;
mod left_out;
mod merge;
mod mr_cache;
mod net_device;
mod nic;
mod partition;
mod pci;
mod planes;
mod port_busy;
mod port_meter;
mod receive_queues;
mod registration;
mod registry;
mod selection;
mod survey;

pub(crate) use capabilities::{Answer, data_direct, dmabuf, findings, receive_queues};
pub(crate) use gpu::Gpu;
pub(crate) use hw_counters::HwCounters;
pub(crate) use mr_cache::{Memory, Registered, Registration};
pub use net_device::Device;
pub use nic::Nic;
pub(crate) use pci::Place;
pub(crate) use port_meter::SCALE_ONE;
pub(crate) use registry::{Devices, Hold};
pub(crate) use selection::INACTIVE;
pub(crate) use survey::{PortView, Survey, survey};
