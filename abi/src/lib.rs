//! C types of the NCCL network-plugin interface, v6 to v12: data only, no behaviour.
//!
//! `include/nccl/` restates the interface as C headers, the modules [`v6`] to [`v12`] as `repr(C)` types with the
//! same field names. The build reads the headers and does not pass unless sizes, alignments, offsets and the type
//! of every function slot are equal on both sides. [`describe`] gives the Rust side's view to other checkers.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

#[macro_use]
mod macros;

pub mod describe;

mod constants;
mod types;

pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

pub use constants::*;
pub use types::*;

/// What a C compiler sees in the headers, only to be compared with.
mod header {
    #[allow(dead_code, unreachable_pub, missing_docs, clippy::all, clippy::use_self)]
    pub(crate) mod structs {
        include!(concat!(env!("OUT_DIR"), "/structs.rs"));
    }

    /// The tables, with this crate's structures in the place of the header's.
    #[allow(dead_code, unreachable_pub, unused_imports, missing_docs, clippy::all, clippy::use_self)]
    pub(crate) mod tables {
        include!(concat!(env!("OUT_DIR"), "/tables.rs"));
    }
}
