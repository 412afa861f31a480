//! The agent over its sockets.

mod http;
mod notify;
mod pages;
mod server;
