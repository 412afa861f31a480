//! What a failed call tells NCCL.

use nccl_net_abi as abi;

/// The code a failed call gives to NCCL. There is no success among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `ncclSystemError`: a call to the system or to verbs failed.
    System,
    /// `ncclInternalError`: our own bug, a caught panic, or a broken protocol on our side.
    Internal,
    /// `ncclInvalidArgument`
    InvalidArgument,
    /// `ncclInvalidUsage`: NCCL or the user asks for what this plugin does not do.
    InvalidUsage,
    /// `ncclRemoteError`: the peer is gone, or speaks nonsense.
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
