//! The result codes of failed calls.

use nccl_net_abi as abi;

/// The code that a failed call returns to NCCL. Success is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `ncclSystemError`: a system or library call failed.
    System,
    /// `ncclInternalError`: a bug of the plugin, for example a panic.
    Internal,
    /// `ncclInvalidArgument`: an argument has an invalid value.
    InvalidArgument,
    /// `ncclInvalidUsage`: NCCL or the user requested something that the plugin does not support.
    InvalidUsage,
    /// `ncclRemoteError`: the peer died or broke the protocol.
    Remote,
}

impl From<Failure> for abi::ncclResult_t {
    // No wildcard arm: a new variant must choose its code.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::System => abi::ncclSystemError,
            Failure::Internal => abi::ncclInternalError,
            Failure::InvalidArgument => abi::ncclInvalidArgument,
            Failure::InvalidUsage => abi::ncclInvalidUsage,
            Failure::Remote => abi::ncclRemoteError,
        }
    }
}
