//! Debian's programs, unchanged, on the shared library.

mod devices;
mod isolation;
mod perftest;
mod pingpong;
