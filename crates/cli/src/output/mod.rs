//! What all commands print: tables, colours and units for people, and documents for programs.

pub mod colour;
pub mod columns;
pub mod document;
pub mod table;
pub mod units;

use std::io::{self, Write};

pub use crate::failure::printable;
use crate::failure::{Failure, Kind};

/// Writes to stdout, with colours as `--color` and the environment request them.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Kind::Closed, "stdout was closed"),
        _ => Failure::new(Kind::Tool, format!("cannot write to stdout: {e}")),
    })
}
