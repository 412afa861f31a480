//! Established connections: sends, receives, progress, memory registration.

pub(crate) mod comm;
mod comms;
pub(crate) mod failback;
mod failover;
mod failures;
mod fence;
mod life;
pub(crate) mod mailbox;
pub(crate) mod memory;
mod messages;
mod notifier;
pub(crate) mod peer;
pub(crate) mod ping;
mod profiler;
mod progress;
mod queues;
pub(crate) mod rail;
pub(crate) mod recv;
pub(crate) mod remote_memory;
mod request;
mod running;
pub(crate) mod send;
pub(crate) mod send_queue;
mod settings;
mod unusual;
pub(crate) mod work;

pub(crate) use comms::{RecvComm, SendComm};
pub(crate) use memory::Mr;
#[cfg(any(test, feature = "simulation"))]
pub use recv::simulated as simulated_receiver;
pub(crate) use request::Request;
pub(crate) use settings::Settings;
