//! One-sided traffic: puts, signals and gets through the exported RMA tables.

mod order;
mod traffic;
