//! `libibverbs` in user space: RDMA for machines without RDMA hardware.

mod border;
mod bounce;
mod channel;
mod clock;
mod config;
mod copy;
mod counters;
mod cq;
mod cqring;
mod device;
mod dmabuf;
mod ece;
mod events;
mod exec;
mod faults;
mod gid;
mod gidtable;
mod handle;
mod inspect;
mod limits;
mod link;
mod log;
mod modify;
mod mover;
mod mr;
mod pd;
mod process;
mod qp;
mod query;
mod rates;
mod reach;
mod recv;
mod recvq;
mod report;
mod respond;
mod send;
mod sendqueue;
mod service;
mod shm;
mod srq;
mod strings;
pub mod symbols;
mod sysfs;
mod unsupported;

pub use config::{
    ConfigError, DEVICES_VAR, DeviceSpec, Lack, LinkLayer, MAX_ADDRS, configure, default_devices,
};
pub use counters::{Counters, DeviceCounters, QpCounters, counters, softverbs_counters_json};
pub use faults::{Raise, fail_modify, fail_modify_of, fail_registration, raise_event, set_link};
pub use gidtable::set_addrs;
pub use inspect::{
    LinkTimes, Objects, QpAttributes, access_at, link_times, objects, qp_attributes, ready_times, registered,
    revoke_at,
};
pub use shm::dir::set_fabric;
pub use sysfs::{fail_fork_init, fork_init_calls};
