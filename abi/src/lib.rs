//! C types of the NCCL network-plugin interface, v6 to v12.
#![allow(non_camel_case_types)]
use core::ffi::{c_char, c_int, c_ulong, c_void};

/// `ncclDebugLogger_t`
pub type ncclDebugLogger_t =
    unsafe extern "C" fn(level: c_int, flags: c_ulong, file: *const c_char, line: c_int, fmt: *const c_char, ...);
/// `ncclProfilerCallback_t`
pub type ncclProfilerCallback_t = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;
