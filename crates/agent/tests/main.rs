//! The agent over its sockets.

mod http;
mod server;
