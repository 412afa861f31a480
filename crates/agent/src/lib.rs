//! The agent of a host: decides which part of each transfer goes on SUP, and which ports are in use.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the configuration file, checked |
//! | [`state`] | [`Agent`]: who is registered, and what each flow and port has been given; no socket, no clock |
//! | [`policy`] | how the measured shares move |
//! | [`Handle`] | what other threads have of the agent |
//! | [`page`] | the statistics page that a process has passed, checked |
//! | [`observe`] | what the page of a process shows of its rails |
//! | [`kept`] | what outlives a restart |
//! | [`folder`] | the folder of socket and hint file |
//! | [`user`] | the user as whom the agent serves |
//! | [`server`] | the socket, the signals, and the loop |
//! | [`http`] | metrics, the API and the page |
//!
//! Everything that decides is in [`Agent`]. The server and the HTTP server share it as [`Handle`].

mod closer;
pub mod config;
mod events;
pub mod folder;
mod handle;
pub mod http;
pub mod kept;
mod notify;
pub mod observe;
mod once;
pub mod page;
mod passed;
mod peer;
mod per_minute;
mod plugin;
pub mod policy;
mod process;
mod quota;
pub mod server;
mod snapshot;
mod socket_file;
pub mod state;
pub mod user;

pub use config::Config;
pub use events::{Event, EventKind};
pub use handle::Handle;
pub use notify::Notify;
pub use once::look_once;
pub use passed::passed_listener;
pub use server::Server;
pub use state::{Agent, Order, Snapshot};
