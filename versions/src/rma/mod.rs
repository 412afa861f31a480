//! One-sided transfers: the trait, its values, and the parts of the version modules.

#[macro_use]
mod table;

mod plugin;
mod types;

pub use plugin::RmaPlugin;
pub(crate) use table::thunk;
pub use types::{Get, MrFlags, Place, Put, RmaConfig, RmaInit, RmaProperties, Signal};
