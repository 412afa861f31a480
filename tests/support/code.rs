//! NCCL's result codes.

use nccl_net_abi::ncclResult_t;

/// What a call of the plugin returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

pub use Code::{InvalidArgument, InvalidUsage, RemoteError, Success, SystemError};

impl Code {
    const ALL: [Self; 8] = [
        Success,
        Self::UnhandledCudaError,
        SystemError,
        Self::InternalError,
        InvalidArgument,
        InvalidUsage,
        RemoteError,
        Self::InProgress,
    ];

    /// The code of this number.
    pub fn of(number: i32) -> Self {
        let code = Self::ALL.into_iter().find(|code| *code as i32 == number);
        code.unwrap_or_else(|| panic!("{number} is no result code of NCCL"))
    }

    pub fn failed(self) -> bool {
        self != Success
    }
}

impl From<ncclResult_t> for Code {
    fn from(result: ncclResult_t) -> Self {
        Self::of(result.0)
    }
}

/// The number, as second processes answer it.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", *self as i32)
    }
}
