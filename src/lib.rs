//! An NCCL network plugin for every interface version.
//!
//! [`plugin`] implements NCCL's calls. [`connect`] makes connections, [`transport`] moves data over
//! them. [`process`] holds what outlives a communicator.

#[cfg(test)]
extern crate mpib_test_env as _;
#[cfg(test)]
extern crate softverbs as _;

#[forbid(unsafe_code)]
pub mod agent;
#[forbid(unsafe_code)]
pub mod async_events;
mod background;
#[forbid(unsafe_code)]
mod clock;
#[forbid(unsafe_code)]
pub mod config;
#[forbid(unsafe_code)]
pub mod connect;
#[forbid(unsafe_code)]
pub mod control;
#[forbid(unsafe_code)]
pub mod device;
pub mod doctor;
mod element;
pub mod error;
#[forbid(unsafe_code)]
pub mod failover;
mod fork_guard;
#[forbid(unsafe_code)]
mod grace;
#[forbid(unsafe_code)]
pub mod housekeeping;
mod latest;
pub mod log;
mod nccl;
#[forbid(unsafe_code)]
pub mod plugin;
#[forbid(unsafe_code)]
pub mod process;
#[forbid(unsafe_code)]
pub mod proto;
#[forbid(unsafe_code)]
pub mod route;
#[forbid(unsafe_code)]
pub mod split;
mod state_lock;
#[forbid(unsafe_code)]
pub mod stats;
mod sync;
#[forbid(unsafe_code)]
pub mod transport;
pub mod verbs;
#[forbid(unsafe_code)]
pub mod warned;
#[forbid(unsafe_code)]
pub mod watchdog;
mod worker;

/// Simulations of private modules, driven by bytes: each panics if a property does not hold.
#[cfg(any(test, feature = "simulation"))]
pub mod simulation {
    pub use crate::agent::simulated as agent;
    pub use crate::connect::simulated as handshake;
    pub use crate::control::simulated as link;
    pub use crate::failover::simulated as episodes;
    pub use crate::transport::simulated_receiver as receiver;
}

pub use plugin::Plugin;

nccl_net_versions::export!(Plugin);
