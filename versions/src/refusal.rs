//! The calls that the adapters refuse.

use core::ffi::c_int;

use crate::{Failure, MAX_RECVS};

/// Why the adapters refused a call before the implementation saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A required pointer is NULL.
    #[error("{0} is NULL")]
    Null(&'static str),
    /// A handle is closed, of another kind, or of another plugin.
    #[error("{what} is not a live {expected} of this plugin: it was closed, or is a handle of another kind")]
    WrongHandle {
        /// Name of the argument.
        what: &'static str,
        /// Kind of handle expected.
        expected: &'static str,
    },
    /// A size, index or file descriptor is negative.
    #[error("{what} is {value}, expected 0 or more")]
    Negative {
        /// Name of the argument.
        what: &'static str,
        /// The value found.
        value: c_int,
    },
    /// A message is larger than `test` can report.
    #[error("size is {0} bytes, expected at most {max}: test returns sizes as int", max = c_int::MAX)]
    TooLarge(usize),
    /// A group has no receive, or too many.
    #[error("n is {0}, expected 1 to {MAX_RECVS}")]
    Group(c_int),
    /// A virtual device has no physical device, or more than the version has room for.
    #[error("ndevs is {found}, expected 1 to {max}")]
    Devices {
        /// The value found.
        found: c_int,
        /// The version's maximum.
        max: usize,
    },
    /// A memory type does not exist.
    #[error("type is {0}, expected NCCL_PTR_HOST (1), NCCL_PTR_CUDA (2) or NCCL_PTR_DMABUF (4)")]
    MemKind(c_int),
    /// An operation of a signal does not exist.
    #[error("signalOp is {0}, expected NCCL_NET_SIGNAL_OP_INC (1) or NCCL_NET_SIGNAL_OP_ADD (2)")]
    SignalOp(u32),
    /// A call needs a context, and no `init` has succeeded yet (v6 to v10).
    #[error("no init of this plugin has succeeded yet")]
    NoContext,
    /// A call from within NCCL's logger or profiler, which this plugin has called.
    #[error("called from within a callback, NCCL's logger or profiler: it must return first")]
    InCallback,
}

impl Refusal {
    /// Returns the code that NCCL receives.
    pub const fn failure(&self) -> Failure {
        match self {
            Self::Null(_)
            | Self::WrongHandle { .. }
            | Self::Negative { .. }
            | Self::TooLarge(_)
            | Self::Group(_)
            | Self::Devices { .. }
            | Self::MemKind(_)
            | Self::SignalOp(_) => Failure::InvalidArgument,
            Self::NoContext | Self::InCallback => Failure::InvalidUsage,
        }
    }
}
