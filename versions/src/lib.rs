//! One implementation, every `ncclNetPlugin_vN` table.
mod border;
mod plugin;

pub use border::*;
pub use plugin::*;
