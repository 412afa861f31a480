//! `compat-matrix` as a user starts it.

extern crate mpib_test_env as _;

mod faults;
mod gpu;
#[path = "../../crates/cli/tests/loopback_example/mod.rs"]
mod loopback_example;
