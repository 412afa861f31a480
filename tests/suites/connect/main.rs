//! How a connection is made: modes, attributes of queue pairs, retries, many connections at once.

mod broken_handshake;
mod commands;
mod concurrency;
mod doorbells;
mod failing_calls;
mod modes;
mod qp_attributes;
mod retries;
mod silent_paths;
mod simultaneous_connect;
