//! `err.h`, `types.h`, `net_device.h`: what every version shares.

use core::ffi::{c_char, c_int, c_ulong, c_void};

/// What every call of the interface returns. A number and not an enum: another release may know other values.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct ncclResult_t(pub c_int);

/// Severity of a log line. A number and not an enum: 2.32 knows one more than earlier releases.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ncclDebugLogLevel(pub c_int);

/// Which kind of device-side networking a device offers; grows with releases.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ncclNetDeviceType(pub c_int);

/// NCCL's logger: a printf, so `fmt` must never hold foreign text.
pub type ncclDebugLogger_t = Option<
    unsafe extern "C" fn(
        level: ncclDebugLogLevel,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        fmt: *const c_char,
        ...
    ),
>;

/// NCCL's callback for a plugin's own profiler events (v10 and later). On a start `pHandle` must not be NULL.
pub type ncclProfilerCallback_t = Option<
    unsafe extern "C" fn(
        eHandle: *mut *mut c_void,
        r#type: c_int,
        pHandle: *mut c_void,
        pluginId: i64,
        extData: *mut c_void,
    ) -> ncclResult_t,
>;

c_struct! {
    /// One work request, inside [`ncclProfilerNetIbDescr_v1_t`].
    ncclProfilerNetIbQpDescr_v1_t as ncclProfilerNetIbQpDescr_v1_t {
        device: c_int,
        wr_id: u64,
        opcode: c_int,
        qpNum: c_int,
        length: usize,
    }
}

c_struct! {
    /// `extData` of an event whose plugin id is InfiniBand, version 1. The field `type_` is `type` in C.
    ncclProfilerNetIbDescr_v1_t as ncclProfilerNetIbDescr_v1_t {
        type_: u8,
        qp: ncclProfilerNetIbQpDescr_v1_t,
    }
}
