//! Unchanged programs of Debian on the shared library.

#[path = "../support/pair.rs"]
mod pair;
#[path = "../support/stand_in.rs"]
mod stand_in;

mod devices;
mod isolation;
mod perftest;
mod pingpong;
