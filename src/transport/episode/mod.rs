//! Episodes: what both ends of a connection agree on when rails die.
//!
//! The sender drives an episode. It gives up its queue pairs on the dead rails and sends STATE: the
//! groups with parts whose completion it does not know. The receiver gives up its own, so nothing
//! can arrive over these rails any more, and answers with a VERDICT: the parts that have not
//! arrived. The sender sends those again on other rails. Each further death is another episode,
//! whose STATE covers the earlier ones.
//!
//! Only the receiver knows what has arrived: an adapter may report a write as failed whose
//! acknowledgement alone was lost. No part is written twice into a buffer that NCCL has back,
//! because both ends destroy their queue pairs before the VERDICT.
//!
//! Rails come back by [attempts](SenderAttempts), which stop no traffic.
//!
//! This module decides and does nothing else: it has no queue pair, no clock and no socket. `send`
//! and `recv` drive it.

mod attempts;
mod receiver;
mod running;
mod sender;
#[cfg(any(test, feature = "simulation"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests use all of it"))]
mod tests;

pub(crate) use attempts::{ReceiverAttempts, SenderAttempts};
pub(crate) use receiver::{Answer, Held, ReceiverEpisodes};
pub(crate) use running::Running;
pub(crate) use sender::{Posted, SenderEpisodes};
#[cfg(any(test, feature = "simulation"))]
pub use tests::simulated;
