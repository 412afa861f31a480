//! How much of a message goes on which rail. No other module decides that.
//!
//! A [`Plan`] is made once per connection, the same at both ends: which rails get queue pairs, and
//! which one carries CTS writes. The sender has a [`Splitter`], which cuts each message by the
//! weights of the rails. A fixed share, reported speeds, measured goodput, an agent's hint and a
//! drained port are all weights.

mod measure;
mod plan;
mod reported;
mod shares;
mod splitter;
#[cfg(test)]
mod tests;

pub(crate) use plan::Stripes;
pub use plan::{Plan, terms};
pub(crate) use plan::{max_connections, speed};
pub(crate) use reported::{Followers, Reported};
pub(crate) use splitter::{HintSource, Splitter};
