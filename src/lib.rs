//! One NCCL network plugin for every interface version.

#[forbid(unsafe_code)]
pub mod bootstrap;
#[forbid(unsafe_code)]
pub mod config;
pub mod device;
pub mod error;
pub mod log;
#[forbid(unsafe_code)]
pub mod proto;
pub mod route;
pub mod verbs;
