//! The border to C: symbols, error codes and handles.

pub(crate) mod border;
pub(crate) mod handle;
pub mod symbols;
pub(crate) mod unsupported;
