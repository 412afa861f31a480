//! Errors.

use std::ffi::c_char;

use super::LAST_ERROR;
use crate::{patch::EntryPoint, status::Status};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaGetErrorString", get_error_string as *const ()),
    ("cudaGetLastError", get_last_error as *const ()),
    ("cudaPeekAtLastError", peek_at_last_error as *const ()),
];

extern "C" fn get_error_string(status: Status) -> *const c_char {
    status.text().as_ptr()
}

extern "C" fn get_last_error() -> Status {
    LAST_ERROR.replace(Status::SUCCESS)
}

extern "C" fn peek_at_last_error() -> Status {
    LAST_ERROR.get()
}
