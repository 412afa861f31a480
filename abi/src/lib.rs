//! C types of the NCCL network-plugin interface, v6 to v12.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod constants;
mod types;

pub use constants::*;
pub use types::*;
