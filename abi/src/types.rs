//! Types that all versions share: `err.h`, `types.h`, `net_device.h`.

use core::ffi::{c_char, c_int, c_ulong, c_void};

/// Result of every call. A number, not an enum: other releases may define other values.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct ncclResult_t(
    /// The C value.
    pub c_int,
);

/// Severity of a log line. A number, not an enum: NCCL 2.32 defines one more than earlier releases.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ncclDebugLogLevel(
    /// The C value.
    pub c_int,
);

/// Kind of device-side networking. A number, not an enum: later releases define more.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ncclNetDeviceType(
    /// The C value.
    pub c_int,
);

/// NCCL's logger, a printf: `fmt` must never contain text from outside the plugin.
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

/// NCCL's callback for a plugin's profiler events (v10 and later).
///
/// `pHandle` must not be NULL on a start. A start may leave `*eHandle` unchanged; a stop uses
/// `*eHandle` unchecked.
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
    /// One work request of a queue pair, part of [`ncclProfilerNetIbDescr_v1_t`].
    ncclProfilerNetIbQpDescr_v1_t as ncclProfilerNetIbQpDescr_v1_t {
        device: c_int,
        wr_id: u64,
        opcode: c_int,
        qpNum: c_int,
        length: usize,
    }
}

c_struct! {
    /// Event descriptor (`extData`) for the plugin id of InfiniBand, version 1.
    ncclProfilerNetIbDescr_v1_t as ncclProfilerNetIbDescr_v1_t {
        type_: u8,
        qp: ncclProfilerNetIbQpDescr_v1_t,
    }
}
