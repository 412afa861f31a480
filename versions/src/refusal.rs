//! What the adapters themselves refuse, and in which words.

use core::ffi::c_int;

use crate::{Failure, MAX_RECVS};

/// A call that the adapters refuse before the implementation sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A pointer that must lead somewhere.
    #[error("{0} is NULL")]
    Null(&'static str),
    /// A handle that this plugin did not make, or closed already, or made for other calls.
    #[error("{what} is not a live {expected} of this plugin: it was closed, or is a handle of another kind")]
    WrongHandle {
        /// The argument.
        what: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A size, index or descriptor below zero.
    #[error("{what} is {value}, expected 0 or more")]
    Negative {
        /// The argument.
        what: &'static str,
        /// What was found.
        value: c_int,
    },
    /// A message whose size `test` could not tell.
    #[error("size is {0} bytes, expected at most {max}: test gives sizes as int", max = c_int::MAX)]
    TooLarge(usize),
    /// A group of no receives, or of more than there may be.
    #[error("n is {0}, expected 1 to {MAX_RECVS}")]
    Group(c_int),
    /// A virtual device of no physical ones, or of more than the version has room for.
    #[error("ndevs is {found}, expected 1 to {max}")]
    Devices {
        /// What was found.
        found: c_int,
        /// What the version has room for.
        max: usize,
    },
    /// Memory of a kind that the interface does not have.
    #[error("type is {0}, expected NCCL_PTR_HOST (1), NCCL_PTR_CUDA (2) or NCCL_PTR_DMABUF (4)")]
    MemKind(c_int),
    /// A call that needs a context before any `init` succeeded (v6 to v10).
    #[error("no init of this plugin has succeeded yet")]
    NoContext,
}

impl Refusal {
    /// The code that NCCL gets.
    pub const fn failure(&self) -> Failure {
        match self {
            Self::Null(_)
            | Self::WrongHandle { .. }
            | Self::Negative { .. }
            | Self::TooLarge(_)
            | Self::Group(_)
            | Self::Devices { .. }
            | Self::MemKind(_) => Failure::InvalidArgument,
            Self::NoContext => Failure::InvalidUsage,
        }
    }
}
