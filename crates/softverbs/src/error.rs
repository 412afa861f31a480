//! The error of this crate's own functions. Verbs calls return `errno` values instead.

use std::fmt;

/// Why a configuration or a fault was rejected, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
