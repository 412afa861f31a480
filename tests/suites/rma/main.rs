//! One-sided traffic: puts, signals and gets through the exported RMA tables.

mod life;
mod order;
mod traffic;
