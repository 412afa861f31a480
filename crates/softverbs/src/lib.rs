//! `libibverbs` in user space: RDMA for machines without RDMA hardware.

mod abi;
mod api;
mod clock;
mod config;
mod control;
mod limits;
mod log;
mod process;
mod shm;
mod wire;

pub use abi::symbols;
pub use api::sysfs::{fail_fork_init, fork_init_calls};
pub use config::{
    Capability, DEVICES_VAR, DeviceSpec, Error, LinkLayer, MAX_ADDRS, configure, default_devices,
};
pub use control::counters::{Counters, DeviceCounters, QpCounters, counters, softverbs_counters_json};
pub use control::faults::{
    EventTarget, fail_modify_qp, fail_modify_qp_of, fail_registration, raise_event, set_link,
};
pub use control::gid_table::set_addrs;
pub use control::inspect::{
    LinkTimes, Objects, QpAttributes, completion_times, link_times, mr_access_at, objects, qp_attributes,
    registrations_made, revoke_mrs_at,
};
pub use shm::dir::set_fabric;
