//! The agent over its sockets.

mod authority;
mod hostile;
mod http;
mod notify;
mod pages;
mod server;
mod web;
