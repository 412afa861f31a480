//! C types of the NCCL network-plugin interface, v6 to v12: data only, no behaviour.
//!
//! NCCL loads a network plugin as a shared library and reads a table of functions from it, a
//! `static` called `ncclNetPlugin_vN`. NCCL 2.18 to 2.32 know seven versions of that table, v6 to
//! v12. This crate has each of them as a `repr(C)` type with the C field names, in the modules
//! [`v6`] to [`v12`]:
//!
//! | module | first NCCL release | what it adds |
//! |---|---|---|
//! | [`v6`] | 2.18 | |
//! | [`v7`] | 2.19 | device-side networking |
//! | [`v8`] | 2.20 | `size_t` in `regMr`, global registrations |
//! | [`v9`] | 2.24 | `size_t` messages, virtual devices, optional receives |
//! | [`v10`] | 2.26 | profiler callback, traffic class per connection |
//! | [`v11`] | 2.28 | a context per communicator, `finalize`, `setNetAttr` |
//! | [`v12`] | 2.30 | eight devices in a virtual device, rail and plane ids |
//!
//! NCCL 2.30.3 and later also look up `ncclRmaPlugin_vN`, a table for one-sided transfers: windows,
//! `ncclPutSignal`, and GIN without support of the adapter.
//!
//! | module | first NCCL release | what it adds |
//! |---|---|---|
//! | [`rma_v13`] | 2.30.3 | |
//! | [`rma_v14`] | 2.30.7 | weak signals |
//! | [`rma_v15`] | 2.31 | flags of requests |
//! | [`rma_v16`] | 2.32 | properties of a group |
//!
//! NCCL 2.23 and later look up `ncclProfiler_vN`, a table to which NCCL reports its operations; 2.28
//! and later in the library of the network, too.
//!
//! | module | first NCCL release | what it adds |
//! |---|---|---|
//! | [`profiler_v1`] | 2.23 | |
//! | [`profiler_v2`] | 2.24 | names instead of numbers |
//! | [`profiler_v3`] | 2.26 | events of network plugins |
//! | [`profiler_v4`] | 2.27 | the communicator in `init` |
//! | [`profiler_v5`] | 2.28 | events of API calls |
//! | [`profiler_v6`] | 2.29 | events of copy engines |
//! | [`profiler_v7`] | 2.31 | tags of users |
//!
//! # Should I use this crate?
//!
//! Use it to call a plugin, to write a checker, or to write a plugin against one table by hand. To
//! write a plugin for all releases, use `nccl-net-versions`: it has one safe trait and produces all
//! seven tables of networks.
//!
//! # Example
//!
//! ```
//! use nccl_net_abi::{self as abi, v8};
//!
//! unsafe extern "C" fn devices(ndev: *mut core::ffi::c_int) -> abi::ncclResult_t {
//!     if ndev.is_null() {
//!         return abi::ncclInvalidArgument;
//!     }
//!     // SAFETY: not NULL, and NCCL passes a writable int.
//!     unsafe { ndev.write(1) };
//!     abi::ncclSuccess
//! }
//!
//! /// Returns the number of devices that a table reports.
//! fn count(net: &v8::Net) -> Result<i32, abi::ncclResult_t> {
//!     let devices = net.devices.ok_or(abi::ncclInternalError)?;
//!     let mut ndev = 0;
//!     // SAFETY: `ndev` is writable.
//!     match unsafe { devices(&raw mut ndev) } {
//!         abi::ncclSuccess => Ok(ndev),
//!         code => Err(code),
//!     }
//! }
//!
//! // SAFETY: NULL and zero are valid in every field of a table.
//! let mut net: v8::Net = unsafe { core::mem::zeroed() };
//! net.devices = Some(devices);
//! assert_eq!(count(&net), Ok(1));
//! ```
//!
//! # How the types are checked
//!
//! `include/nccl/` states the interface as C headers. Building the crate needs neither a C compiler
//! nor libclang; the tests compare both sides:
//!
//! - A C compiler reads the headers and asserts what [`describe`] reports: sizes, alignments,
//!   offsets, the type of every field and slot, and the value of every constant.
//! - bindgen reads the headers into `src/header/`. The crate's own tests compile only if every
//!   layout and the type of every function slot are equal.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

#[macro_use]
mod meanings;
#[macro_use]
mod macros;

pub mod describe;

mod constants;
#[cfg(test)]
mod header;
mod types;

pub mod profiler_v1;
pub mod profiler_v2;
pub mod profiler_v3;
pub mod profiler_v4;
pub mod profiler_v5;
pub mod profiler_v6;
pub mod profiler_v7;
pub mod rma_v13;
pub mod rma_v14;
pub mod rma_v15;
pub mod rma_v16;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

pub use constants::*;
pub use types::*;
