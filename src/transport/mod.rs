//! Established connections: sends, receives, progress, memory registration.

pub(crate) mod comm;
mod comms;
mod episode;
pub(crate) mod failback;
mod failures;
mod hold_down;
#[cfg_attr(not(test), expect(dead_code, reason = "comms do not use it"))]
pub(crate) mod mailbox;
pub(crate) mod memory;
pub(crate) mod peer;
mod profiler;
mod progress;
mod queues;
pub(crate) mod rail;
pub(crate) mod rail_maker;
pub(crate) mod recv;
mod request;
pub(crate) mod send;
pub(crate) mod send_queue;
mod settings;
mod unusual;
pub(crate) mod work;

pub use comms::{RecvComm, SendComm};
pub use memory::Mr;
pub use request::Request;
pub use settings::Settings;
