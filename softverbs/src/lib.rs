//! `libibverbs` in user space: RDMA for machines without RDMA hardware.
#![allow(dead_code, reason = "the object model is not complete")]

mod border;
mod config;
mod device;
mod gid;
mod limits;
mod log;
mod query;
mod rates;
mod strings;
pub mod symbols;
mod sysfs;
mod unsupported;

pub use config::{ConfigError, DEVICES_VAR, DeviceSpec, LinkLayer, MAX_ADDRS, configure, default_devices};
