//! Established connections: sends, receives, progress, memory registration.

pub(crate) mod comm;
mod lock;
pub(crate) mod memory;
pub(crate) mod peer;
mod profiler;
pub(crate) mod rail;
pub(crate) mod recv;
mod request;
pub(crate) mod send;
pub(crate) mod send_queue;
mod settings;
pub(crate) mod work;

pub use memory::Mr;
pub use recv::RecvComm;
pub use request::Request;
pub use send::SendComm;
pub use settings::Settings;
