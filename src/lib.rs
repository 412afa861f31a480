//! An NCCL network plugin for every interface version.
//!
//! `plugin` implements NCCL's calls. `connect` makes connections, `transport` moves data over them.
//! `process` holds what outlives a communicator. None of it is for other crates: a program gets the
//! tables of the shared object, and the project's own tests the door `simulation`.

#![allow(rustdoc::private_intra_doc_links, reason = "its documentation is for its own developers")]
#![cfg_attr(
    not(any(test, feature = "simulation")),
    allow(dead_code, unused_imports, unreachable_pub, reason = "`simulation` has more than the plugin uses")
)]

#[cfg(test)]
extern crate mpib_test_env as _;
#[cfg(test)]
extern crate softverbs as _;

#[forbid(unsafe_code)]
mod agent;
#[forbid(unsafe_code)]
mod async_events;
mod background;
#[forbid(unsafe_code)]
mod clock;
#[forbid(unsafe_code)]
mod config;
#[forbid(unsafe_code)]
mod connect;
#[forbid(unsafe_code)]
mod control;
#[forbid(unsafe_code)]
mod device;
mod doctor;
mod element;
mod error;
#[forbid(unsafe_code)]
mod failover;
mod fork_guard;
#[forbid(unsafe_code)]
mod grace;
#[forbid(unsafe_code)]
mod housekeeping;
mod latest;
#[forbid(unsafe_code)]
mod limits;
mod log;
mod nccl;
#[forbid(unsafe_code)]
mod operations;
mod plugin;
#[forbid(unsafe_code)]
mod process;
#[forbid(unsafe_code)]
mod reach_file;
mod rma;
mod route;
#[forbid(unsafe_code)]
mod split;
mod state_lock;
#[forbid(unsafe_code)]
mod stats;
mod sync;
#[forbid(unsafe_code)]
mod transport;
mod verbs;
#[forbid(unsafe_code)]
mod warned;
#[forbid(unsafe_code)]
mod watchdog;
mod worker;

/// The inside of the plugin, for its own tests and fuzz targets.
#[cfg(any(test, feature = "simulation"))]
#[allow(missing_docs, reason = "each name has its documentation where it is defined")]
pub mod simulation {
    pub use crate::agent::simulated as agent;
    pub use crate::connect::simulated as handshake;
    pub use crate::control::simulated as link;
    pub use crate::failover::simulated as episodes;
    pub use crate::transport::simulated_receiver as receiver;

    /// Sets the scale of a port, as the agent does. Returns whether the process has the port.
    pub fn set_port_scale(port: &str, scale: u16) -> bool {
        crate::process::Process::global().events.scaler().set(port, scale)
    }

    pub mod agent {
        pub use crate::agent::{Addresses, Clients, Options, PortScales, Subscription};
    }

    pub mod config {
        pub use crate::config::Config;
    }

    pub mod control {
        pub use crate::control::{
            Channel, ChannelEvent, ChannelObserver, ChannelState, Control, Failover, Listener, Options,
            Tolerance, interfaces,
        };
    }

    pub mod device {
        pub use crate::device::{Device, Nic};
    }

    pub mod error {
        pub use crate::error::wc_status;
    }

    pub mod log {
        pub use crate::log::{flush, install};
    }

    pub mod process {
        pub use crate::process::Process;
    }

    pub mod route {
        pub use crate::route::{Choice, End};
    }

    pub mod split {
        pub use crate::split::{Plan, terms};
    }

    pub mod verbs {
        pub use crate::verbs::{
            Access, Batch, Blanks, Chain, Completion, Cq, Fresh, Local, Path, Qp, QpOptions, Ready, Region,
            Remote, Timing,
        };
    }
}

pub use plugin::Plugin;

nccl_net_versions::export!(Plugin);
nccl_net_versions::export_rma!(Plugin);
nccl_net_versions::export_profiler!(Plugin);
