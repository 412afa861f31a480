//! Ranks in plain memory for unit tests: communicators with channels and connections, as a host
//! would leave them for kernels.

pub(crate) mod layouts;
pub(crate) mod world;

pub(crate) use world::{Step, World};
