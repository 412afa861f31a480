//! Result codes, as the tests use them.

pub use nccl_net_host::Code;
pub use nccl_net_host::Code::{InvalidArgument, InvalidUsage, RemoteError, Success, SystemError};

/// Returns a code that every release of NCCL knows. Fails the test for any other number, and for a
/// function that the table lacks.
#[track_caller]
pub fn known(code: Code) -> Code {
    let last = Code::InProgress.number();
    assert!(code.number().is_some_and(|n| n >= 0) && code.number() <= last, "the plugin returned {code}");
    code
}
