//! The constants of `err.h`, `types.h` and `net_device.h` that a plugin meets.

use core::ffi::{c_int, c_ulong};

use crate::{ncclDebugLogLevel, ncclNetDeviceType, ncclResult_t};

/// Makes each constant and the list [`all`] of their C names and values from the same lines.
macro_rules! constants {
    ($($(#[$doc:meta])+ $name:ident: $ty:ident = $value:expr;)*) => {
        $($(#[$doc])+ pub const $name: $ty = $value;)*

        /// C name and value of each.
        pub(crate) const fn all() -> &'static [(&'static str, i64)] {
            &[$((stringify!($name), number!($ty, $name))),*]
        }
    };
}

/// The value of a constant, whether it is an integer or a newtype around one.
macro_rules! number {
    (ncclResult_t, $name:ident) => {
        $name.0 as i64
    };
    (ncclDebugLogLevel, $name:ident) => {
        $name.0 as i64
    };
    (ncclNetDeviceType, $name:ident) => {
        $name.0 as i64
    };
    ($ty:ident, $name:ident) => {
        $name as i64
    };
}

constants! {
    /// Done.
    ncclSuccess: ncclResult_t = ncclResult_t(0);
    /// A CUDA call failed.
    ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    /// A call to the system or a library failed: the usual error of a network.
    ncclSystemError: ncclResult_t = ncclResult_t(2);
    /// A bug, in the plugin or in the way it was called.
    ncclInternalError: ncclResult_t = ncclResult_t(3);
    /// An argument that no caller may give.
    ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    /// The user's mistake, or a request for what is not offered.
    ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    /// The peer is gone or broke the protocol.
    ncclRemoteError: ncclResult_t = ncclResult_t(6);
    /// Not an error to NCCL: a plugin must never answer it.
    ncclInProgress: ncclResult_t = ncclResult_t(7);
    /// 2.30.4 and later.
    ncclTimeout: ncclResult_t = ncclResult_t(8);
    /// Nothing is logged.
    NCCL_LOG_NONE: ncclDebugLogLevel = ncclDebugLogLevel(0);
    /// The version line.
    NCCL_LOG_VERSION: ncclDebugLogLevel = ncclDebugLogLevel(1);
    /// A failure; NCCL keeps it as its last error.
    NCCL_LOG_WARN: ncclDebugLogLevel = ncclDebugLogLevel(2);
    /// Chosen by subsystem.
    NCCL_LOG_INFO: ncclDebugLogLevel = ncclDebugLogLevel(3);
    /// Reserved by NCCL.
    NCCL_LOG_ABORT: ncclDebugLogLevel = ncclDebugLogLevel(4);
    /// Only in builds with tracing.
    NCCL_LOG_TRACE: ncclDebugLogLevel = ncclDebugLogLevel(5);
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=INIT`.
    NCCL_INIT: c_ulong = 1 << 0;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=COLL`.
    NCCL_COLL: c_ulong = 1 << 1;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=P2P`.
    NCCL_P2P: c_ulong = 1 << 2;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=SHM`.
    NCCL_SHM: c_ulong = 1 << 3;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=NET`.
    NCCL_NET: c_ulong = 1 << 4;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=GRAPH`.
    NCCL_GRAPH: c_ulong = 1 << 5;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=TUNING`.
    NCCL_TUNING: c_ulong = 1 << 6;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=ENV`.
    NCCL_ENV: c_ulong = 1 << 7;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=ALLOC`.
    NCCL_ALLOC: c_ulong = 1 << 8;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=CALL`.
    NCCL_CALL: c_ulong = 1 << 9;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=PROXY`.
    NCCL_PROXY: c_ulong = 1 << 10;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=NVLS`.
    NCCL_NVLS: c_ulong = 1 << 11;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=BOOTSTRAP`.
    NCCL_BOOTSTRAP: c_ulong = 1 << 12;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=REG`.
    NCCL_REG: c_ulong = 1 << 13;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=PROFILE`.
    NCCL_PROFILE: c_ulong = 1 << 14;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=RAS`.
    NCCL_RAS: c_ulong = 1 << 15;
    /// Subsystem flag of `NCCL_DEBUG_SUBSYS=DESTROY`.
    NCCL_DESTROY: c_ulong = 1 << 16;
    /// Subsystem flag of host allocations.
    NCCL_ALLOC_HOST: c_ulong = 1 << 17;
    /// Every subsystem.
    NCCL_ALL: c_ulong = !0;
    /// Host memory.
    NCCL_PTR_HOST: c_int = 1;
    /// GPU memory.
    NCCL_PTR_CUDA: c_int = 2;
    /// GPU memory through a DMA-BUF.
    NCCL_PTR_DMABUF: c_int = 4;
    /// Bytes of the handle that goes from listener to connector.
    NCCL_NET_HANDLE_MAXSIZE: usize = 128;
    /// Requests in flight per comm that v6 promised.
    NCCL_NET_MAX_REQUESTS_V6: c_int = 8;
    /// Requests in flight per comm, times `maxRecvs` on the sending side (v7 and later).
    NCCL_NET_MAX_REQUESTS: c_int = 32;
    /// Physical devices in a virtual one, v9 to v11.
    NCCL_NET_MAX_DEVS_PER_NIC_V9: c_int = 4;
    /// Physical devices in a virtual one, v12.
    NCCL_NET_MAX_DEVS_PER_NIC_V12: c_int = 8;
    /// Upper bound of `maxP2pBytes` and `maxCollBytes`; 0 is refused too.
    NCCL_MAX_NET_SIZE_BYTES: usize = 1 << 40;
    /// `*request` on entry to `irecv` where NCCL does not need the completion (v9 and later).
    NCCL_NET_OPTIONAL_RECV_COMPLETION: usize = 0x1;
    /// Reserved (v11 and later); no release sends it.
    NCCL_NET_MULTI_REQUEST: usize = 0x2;
    /// `trafficClass` that nobody set.
    NCCL_NET_TRAFFIC_CLASS_UNDEF: c_int = -1;
    /// An undefined member of `ncclNetAttr`.
    NCCL_NET_ATTR_UNDEF: c_int = -1;
    /// Undefined `railId` or `planeId`.
    NCCL_NET_ID_UNDEF: i16 = -1;
    /// The host drives the network: the ordinary case.
    NCCL_NET_DEVICE_HOST: ncclNetDeviceType = ncclNetDeviceType(0);
    /// Device-side unpacking.
    NCCL_NET_DEVICE_UNPACK: ncclNetDeviceType = ncclNetDeviceType(1);
    /// `netDeviceVersion` of a host device.
    NCCL_NET_DEVICE_INVALID_VERSION: c_int = 0;
    /// The one `netDeviceVersion` that NCCL takes for unpacking.
    NCCL_NET_DEVICE_UNPACK_VERSION: c_int = 7;
    /// An event begins.
    ncclProfilerNetEventStart: c_int = 0;
    /// An event ends.
    ncclProfilerNetEventStop: c_int = 1;
    /// 2.27 and later: 2.26 takes it for a stop.
    ncclProfilerNetEventUpdate: c_int = 2;
    /// 2.27 and later.
    ncclProfilerNetEventUpdateAndStop: c_int = 3;
    /// Bits of a plugin id that hold the version of its descriptor.
    NCCL_PROFILER_NET_VER_BITS: c_int = 16;
    /// Plugin id of InfiniBand descriptors, version aside.
    NCCL_PROFILER_NET_TYPE_IB: i64 = 1 << 16;
    /// Plugin id of socket descriptors, version aside.
    NCCL_PROFILER_NET_TYPE_SOCK: i64 = 2 << 16;
    /// Version of `ncclProfilerNetIbDescr_v1_t`.
    NCCL_PROFILER_NET_IB_VER: c_int = 1;
    /// Version of the socket descriptor.
    NCCL_PROFILER_NET_SOCKET_VER: c_int = 1;
    /// `type` of a descriptor about one work request of a queue pair.
    ncclProfileQp: u8 = 1;
}
