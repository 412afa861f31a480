//! The agent over its sockets.

mod hostile;
mod http;
mod notify;
mod pages;
mod server;
