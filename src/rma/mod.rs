//! One-sided traffic: puts, signals and gets, as NCCL's RMA tables have them.
//!
//! All of it goes as messages of the two-sided transport, over connections that begin at the first
//! use. A put is a command, and data for which the receiver offers the place in the window that the
//! command names; small data goes with the command. The receiver applies a signal when the data of
//! all earlier puts is visible. So what the transport promises of messages holds for puts, too: each
//! arrives once and in order, over all rails by their shares, and through failures of rails.

mod connector;
mod group;
mod host_memory;
mod incoming;
mod link;
mod local;
mod order;
mod outgoing;
mod peers;
mod plugin;
mod requests;
mod signals;
mod window;
