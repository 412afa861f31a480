//! The adapters of every version, through their tables.

#[macro_use]
mod common;

mod allocations;
mod border;
mod closed;
mod connections;
mod data;
mod defaults;
mod logger;
mod memory;
mod profiler;
mod properties;
mod rma_calls;
mod rma_example;
mod rma_transfers;
mod setup;
