//! One NCCL network plugin for every interface version.

#[cfg(test)]
extern crate softverbs as _;

#[forbid(unsafe_code)]
pub mod bootstrap;
#[forbid(unsafe_code)]
pub mod config;
#[forbid(unsafe_code)]
pub mod device;
pub mod doctor;
#[forbid(unsafe_code)]
pub mod engine;
pub mod error;
pub mod events;
mod forked;
#[forbid(unsafe_code)]
pub mod hints;
pub mod log;
#[forbid(unsafe_code)]
pub mod net;
#[forbid(unsafe_code)]
pub mod policy;
#[forbid(unsafe_code)]
pub mod proto;
#[forbid(unsafe_code)]
pub mod route;
#[forbid(unsafe_code)]
pub mod stats;
pub mod verbs;

pub use net::Plugin;

nccl_net_versions::export!(Plugin);
