//! Somebody's plugin file, called as NCCL's core calls it. Knows nothing of measuring.

mod load;
pub(crate) mod logger;
mod net;
mod tables;
pub(crate) mod watch;

pub(crate) use load::{default_path, exported_versions, open};
pub(crate) use net::{Comm, Device, HANDLE_BYTES, Handle, MAX_GROUP, Mr, Net, Recv, Request};
