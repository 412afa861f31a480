//! `libibverbs` in user space: RDMA for machines without RDMA hardware.

mod abi;
mod api;
mod clock;
mod config;
mod control;
mod error;
mod limits;
mod log;
mod process;
mod shm;
mod wire;

pub use abi::symbols;
pub use config::{Capability, DEVICES_VAR, DeviceSpec, LinkLayer, MAX_ADDRS, configure, default_devices};
pub use control::faults::{
    EventTarget, fail_fork_init, fail_modify_qp, fail_modify_qp_of, fail_registration, raise_event,
    set_addrs, set_link,
};
pub use control::inspect::{
    LinkTimes, Objects, QpAttributes, completion_times, fork_init_calls, link_times, mr_access_at, objects,
    qp_attributes, registrations_made, revoke_mrs_at,
};
pub use control::json::softverbs_counters_json;
pub use error::Error;
pub use process::counters::{Counters, DeviceCounters, QpCounters, counters};
pub use shm::dir::set_fabric;
