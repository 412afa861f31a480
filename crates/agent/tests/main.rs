//! The agent over its sockets.

mod http;
mod pages;
mod server;
