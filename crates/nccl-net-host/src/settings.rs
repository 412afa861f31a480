//! What NCCL passes to a plugin for a communicator.

use std::ffi::{c_int, c_void};

use nccl_net_abi::{
    NCCL_NET_TRAFFIC_CLASS_UNDEF, ncclDebugLogger_t, ncclProfilerCallback_t, ncclResult_t, ncclSuccess,
};

use crate::logger;

/// What `init`, `connect`, `isend` and `irecv` pass besides the data. Tables of older versions pass
/// the part that they have.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `commId`, from v11 on: the same number at all ends of a communicator.
    pub comm_id: u64,
    /// The traffic class, for `init` from v11 on and for `connect` of v10. `None` passes NULL in
    /// place of the structure. The default is a structure with the value for no class.
    pub traffic_class: Option<c_int>,
    /// NCCL's logger. The default feeds [`logger`].
    pub logger: ncclDebugLogger_t,
    /// The profiler's callback, from v10 on. The default does nothing, as NCCL's does if no
    /// profiler is loaded.
    pub profiler: ncclProfilerCallback_t,
    /// The profiler's handle, which `isend` and `irecv` pass from v10 on. Only the callback may
    /// read what it points to.
    pub operation: *mut c_void,
}

// SAFETY: no method reads through `operation`.
unsafe impl Send for Settings {}
// SAFETY: as above.
unsafe impl Sync for Settings {}

/// Any number; "nethost" in ASCII.
const COMM_ID: u64 = 0x6e65_7468_6f73_7400;

/// Stands for NCCL's description of an operation.
static OPERATION: [u64; 64] = [0; 64];

unsafe extern "C" fn no_profiler(
    _handle: *mut *mut c_void,
    _type: c_int,
    _parent: *mut c_void,
    _id: i64,
    _data: *mut c_void,
) -> ncclResult_t {
    ncclSuccess
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            comm_id: COMM_ID,
            traffic_class: Some(NCCL_NET_TRAFFIC_CLASS_UNDEF),
            logger: logger::callback(),
            profiler: Some(no_profiler),
            operation: (&raw const OPERATION).cast_mut().cast(),
        }
    }
}
