//! How a connection outlives its rails: what its ends say, decide and send again when rails die and
//! come back.
//!
//! An *episode* is what both ends agree on when rails die. The sender drives it. It gives up its
//! queue pairs on the dead rails and sends STATE: the groups with parts whose completion it does not
//! know. The receiver gives up its own, so nothing can arrive over these rails any more, and answers
//! with a VERDICT: the parts that have not arrived. The sender sends those again on other rails. Each
//! further death is another episode, whose STATE covers the earlier ones.
//!
//! Only the receiver knows what has arrived: an adapter may report a write as failed whose
//! acknowledgement alone was lost. No part is written twice into a buffer that NCCL has back,
//! because both ends destroy their queue pairs before the VERDICT.
//!
//! Rails come back by *attempts*, which stop no traffic. The sender begins an attempt, one at a time.
//! The ends make queue pairs: REBUILD, REBUILT. Then each probes its way to the other: PROVED, UP.
//! The receiver uses the rails from UP on, the sender once it has received UP. An episode at either
//! end ends the attempt.
//!
//! [`Sender`] and [`Receiver`] decide that, and [`Stream`] brings their messages to the peer exactly
//! once and in order, over control connections that break. All three do nothing else: they have no
//! queue pair, no clock and no socket. `transport` drives them. The tests explore them whole.
//!
//! [`PortHealth`] decides which ports and routes are usable, why not, and when they are tried next:
//! one record for each port of the process, which all connections share. Its callers say what they
//! have seen, and when, and it answers. It queries no adapter and reads no clock.

mod failed_routes;
mod health;
mod hold_down;
mod receiver;
mod sender;
mod stream;
#[cfg(any(test, feature = "simulation"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests use all of it"))]
mod tests;

pub(crate) use failed_routes::{EXPIRY, RouteKey};
pub(crate) use health::{Cause, Change, Happening, Moment, PortHealth, PortState};
pub(crate) use receiver::{Held, Receiver, ReceiverAction, ReceiverWorked};
pub(crate) use sender::{Posted, Sender, SenderAction};
pub(crate) use stream::Stream;
#[cfg(any(test, feature = "simulation"))]
pub use tests::simulated;
