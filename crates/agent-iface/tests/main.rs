//! The interfaces as other processes see them. In a build with loom: models of their sequence locks.

#[cfg(loom)]
mod explore;
#[cfg(loom)]
mod models;

#[cfg(not(loom))]
mod example;
#[cfg(not(loom))]
mod full_disk;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod writer;
