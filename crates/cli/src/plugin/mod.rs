//! Somebody's plugin file, called as NCCL's core calls it. Knows nothing of measuring.

mod doctor;
mod load;
pub mod logger;
mod net;
mod symtab;
mod tables;
pub mod watch;

pub use doctor::{Told, doctor, routes};
pub use load::{default_path, exported_versions, hidden_table, open};
pub use net::{Comm, Device, HANDLE_BYTES, Handle, MAX_GROUP, Mr, Net, Recv, Request, Sizes};
pub use tables::{SYMBOLS, net};
