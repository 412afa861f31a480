//! Result codes.

use std::{ffi::c_int, fmt};

use nccl_net_abi::ncclResult_t;

use crate::{
    Call,
    error::{Result, check},
};

/// The result of a call of a table's function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum Code {
    /// `ncclSuccess`, 0
    Success,
    /// `ncclUnhandledCudaError`, 1
    UnhandledCudaError,
    /// `ncclSystemError`, 2
    SystemError,
    /// `ncclInternalError`, 3
    InternalError,
    /// `ncclInvalidArgument`, 4
    InvalidArgument,
    /// `ncclInvalidUsage`, 5
    InvalidUsage,
    /// `ncclRemoteError`, 6
    RemoteError,
    /// `ncclInProgress`, 7
    InProgress,
    /// `ncclTimeout`, 8
    Timeout,
    /// A number that is no value of `ncclResult_t`.
    Unknown(c_int),
    /// Nothing was called: this version of the table has no such function, or the table has NULL in
    /// its place.
    NoFunction,
}

/// The values of `ncclResult_t`, by number.
const CODES: [(Code, &str); 9] = [
    (Code::Success, "ncclSuccess"),
    (Code::UnhandledCudaError, "ncclUnhandledCudaError"),
    (Code::SystemError, "ncclSystemError"),
    (Code::InternalError, "ncclInternalError"),
    (Code::InvalidArgument, "ncclInvalidArgument"),
    (Code::InvalidUsage, "ncclInvalidUsage"),
    (Code::RemoteError, "ncclRemoteError"),
    (Code::InProgress, "ncclInProgress"),
    (Code::Timeout, "ncclTimeout"),
];

impl Code {
    /// Returns whether the call succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }

    /// Makes an error of every code but success, with the plugin's last warning.
    pub fn check(self, call: Call) -> Result<()> {
        check(call, self)
    }

    /// Returns the number in C; `None` if nothing was called.
    pub fn number(self) -> Option<c_int> {
        match self {
            Self::NoFunction => None,
            Self::Unknown(number) => Some(number),
            known => CODES.iter().position(|(code, _)| *code == known).map(|at| at as c_int),
        }
    }
}

impl From<ncclResult_t> for Code {
    #[inline]
    fn from(result: ncclResult_t) -> Self {
        // The common case first: this conversion is part of every call.
        if result.0 == 0 {
            return Self::Success;
        }
        let known = usize::try_from(result.0).ok().and_then(|at| CODES.get(at));
        known.map_or(Self::Unknown(result.0), |(code, _)| *code)
    }
}

/// Compares with a value of the C header.
impl PartialEq<ncclResult_t> for Code {
    fn eq(&self, other: &ncclResult_t) -> bool {
        self.number() == Some(other.0)
    }
}

impl fmt::Display for Code {
    /// Writes number and name, as in `2 (ncclSystemError)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFunction => f.write_str("nothing (the table has no such function)"),
            Self::Unknown(number) => write!(f, "{number} (not a value of ncclResult_t)"),
            known => CODES
                .iter()
                .enumerate()
                .filter(|(_, (code, _))| code == known)
                .try_for_each(|(number, (_, name))| write!(f, "{number} ({name})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_shown_as_c_has_it() {
        for number in -1..10 {
            let code = Code::from(ncclResult_t(number));
            assert_eq!(code.number(), Some(number));
            assert_eq!(code, ncclResult_t(number));
            assert_ne!(code, ncclResult_t(number + 1));
            assert!(code.to_string().starts_with(&format!("{number} (")), "{code}");
        }
        assert_eq!(Code::from(ncclResult_t(6)).to_string(), "6 (ncclRemoteError)");
        assert_eq!(Code::from(ncclResult_t(9)).to_string(), "9 (not a value of ncclResult_t)");
        assert_eq!(Code::NoFunction.number(), None);
        assert_ne!(Code::NoFunction, nccl_net_abi::ncclSuccess);
    }
}
