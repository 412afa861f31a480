//! Unchanged programs of Debian on the shared library.

#[path = "../support/pair.rs"]
mod pair;
#[path = "../support/stand_in.rs"]
mod stand_in;

extern crate mpib_test_env as _;

mod devices;
mod isolation;
mod perftest;
mod pingpong;
