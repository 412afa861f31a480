//! Debian's programs, unchanged, on the stand-in library.

#[path = "../support/pair.rs"]
mod pair;
#[path = "../support/stand_in.rs"]
mod stand_in;

mod devices;
mod isolation;
mod perftest;
mod pingpong;
