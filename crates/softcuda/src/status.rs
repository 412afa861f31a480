//! Results of runtime and driver functions.

use std::ffi::{CStr, c_int};

/// A result code. The runtime (`cudaError_t`) and the driver (`CUresult`) use the same numbers for
/// the conditions that softcuda reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    /// The call succeeded.
    pub(crate) const SUCCESS: Self = Self(0);
    /// An argument is invalid.
    pub(crate) const INVALID_VALUE: Self = Self(1);
    /// The system has no memory left.
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    /// No device has this number.
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    /// The thread has no context.
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    /// The handle belongs to no object.
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    /// No entry point has this name.
    pub(crate) const NOT_FOUND: Self = Self(500);
    /// The work has not finished.
    pub(crate) const NOT_READY: Self = Self(600);
    /// The host memory is not registered.
    pub(crate) const NOT_REGISTERED: Self = Self(713);
    /// The settings exclude this.
    pub(crate) const NOT_SUPPORTED: Self = Self(801);

    /// Returns the text that `cudaGetErrorString` and `cuGetErrorString` give.
    pub(crate) const fn text(self) -> &'static CStr {
        match self {
            Self::SUCCESS => c"no error",
            Self::INVALID_VALUE => c"softcuda: invalid argument",
            Self::OUT_OF_MEMORY => c"softcuda: out of memory",
            Self::INVALID_DEVICE => c"softcuda: no such device",
            Self::INVALID_CONTEXT => c"softcuda: the thread has no context",
            Self::INVALID_HANDLE => c"softcuda: no such stream, event or handle",
            Self::NOT_FOUND => c"softcuda: no such entry point",
            Self::NOT_READY => c"softcuda: not finished yet",
            Self::NOT_REGISTERED => c"softcuda: the host memory is not registered",
            Self::NOT_SUPPORTED => c"softcuda: excluded by the settings",
            _ => c"softcuda: an error that softcuda does not return",
        }
    }
}

/// What a function of softcuda returns before its result becomes a code.
pub(crate) type Answer<T = ()> = Result<T, Status>;

/// Returns the code of an answer.
pub(crate) const fn code(answer: Answer) -> Status {
    match answer {
        Ok(()) => Status::SUCCESS,
        Err(status) => status,
    }
}
