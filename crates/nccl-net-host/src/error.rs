//! What can go wrong between a host and a plugin.

use std::{io, path::PathBuf, time::Duration};

use crate::{Call, Code, logger};

/// A failure of the plugin, of its file, or of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not there, is no plugin, or lacks the table.
    #[error("{}: {reason}", path.display())]
    File {
        /// The plugin's file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// The dynamic linker refused the file.
    #[error("{}: dlopen failed: {reason}", path.display())]
    Load {
        /// The plugin's file.
        path: PathBuf,
        /// The dynamic linker's text.
        reason: String,
    },
    /// A function that NCCL always calls is NULL.
    #[error("the table has no {} (NULL), which every plugin must have", .0.name())]
    NoFunction(Call),
    /// A call returned something else than `ncclSuccess`.
    #[error("the plugin's {} returned {code}; {}", call.name(), last_warning(warning))]
    Returned {
        /// The function.
        call: Call,
        /// Its result.
        code: Code,
        /// The last line that any thread of the plugin logged at WARN. NCCL would show it as its
        /// last error.
        warning: Option<String>,
    },
    /// A call succeeded but left NULL where NCCL needs a pointer.
    #[error("the plugin's {} returned ncclSuccess but no {what} (NULL)", call.name())]
    Null {
        /// The function.
        call: Call,
        /// The missing result.
        what: &'static str,
    },
    /// An `irecv` left NCCL's hint in `*request`; NCCL would use the hint as a request.
    #[error(
        "the plugin's irecv returned ncclSuccess and left NCCL's hint for optional receives (0x1) where it must put a \
         request, or NULL"
    )]
    HintLeft,
    /// Nothing came of repeated calls within the caller's limit.
    #[error("{what}: nothing within {limit:?}")]
    TimedOut {
        /// The calls.
        what: &'static str,
        /// The caller's limit.
        limit: Duration,
    },
    /// This version of the table cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// The caller broke a rule of this crate; the plugin was not called.
    #[error("{0}")]
    Misuse(&'static str),
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

fn last_warning(warning: &Option<String>) -> String {
    match warning {
        Some(line) => format!("its last warning: {line}"),
        None => "it logged no warning".into(),
    }
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::File { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, error: &io::Error) -> Self {
        Self::file(path, error.to_string())
    }

    /// Returns the result code, if a call returned one.
    pub const fn code(&self) -> Option<Code> {
        match self {
            Self::Returned { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Makes an error of every code but success.
#[inline]
pub(crate) fn check(call: Call, code: Code) -> Result<()> {
    if code.is_success() { Ok(()) } else { Err(failed(call, code)) }
}

#[cold]
fn failed(call: Call, code: Code) -> Error {
    match code {
        Code::NoFunction => Error::NoFunction(call),
        code => Error::Returned { call, code, warning: logger::last_warning() },
    }
}
