//! The constants of `err.h`, `types.h` and `net_device.h` that a plugin needs.

use core::ffi::{c_int, c_ulong};

use crate::{ncclDebugLogLevel, ncclNetDeviceType, ncclResult_t};

/// Declares the constants, and [`all`] with their C names and values.
macro_rules! constants {
    ($($(#[$doc:meta])+ $name:ident: $ty:ident = $value:expr;)*) => {
        $($(#[$doc])+ pub const $name: $ty = $value;)*

        /// Returns the C name and the value of each constant.
        pub(crate) const fn all() -> &'static [(&'static str, i64)] {
            &[$((stringify!($name), number!($ty, $name))),*]
        }
    };
}

/// The value of a constant, which is an integer or a newtype around one.
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
    /// Event of a profiler: a group of operations.
    ncclProfileGroup: i64 = 1 << 0;
    /// Event of a profiler: a collective.
    ncclProfileColl: i64 = 1 << 1;
    /// Event of a profiler: a send or a receive.
    ncclProfileP2p: i64 = 1 << 2;
    /// Event of a profiler: what a channel of an operation sends or receives.
    ncclProfileProxyOp: i64 = 1 << 3;
    /// Event of a profiler: a message of it.
    ncclProfileProxyStep: i64 = 1 << 4;
    /// Event of a profiler: what a network plugin reports (v3 and later).
    ncclProfileNetPlugin: i64 = 1 << 7;
    /// Result: the call succeeded.
    ncclSuccess: ncclResult_t = ncclResult_t(0);
    /// Result: a CUDA call failed.
    ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    /// Result: a system or library call failed. The usual error of a network.
    ncclSystemError: ncclResult_t = ncclResult_t(2);
    /// Result: a bug in the plugin or in its caller.
    ncclInternalError: ncclResult_t = ncclResult_t(3);
    /// Result: an argument has an invalid value.
    ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    /// Result: the user made a mistake or requested an unsupported feature.
    ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    /// Result: the peer died or broke the protocol.
    ncclRemoteError: ncclResult_t = ncclResult_t(6);
    /// Result: NCCL does not treat it as an error. A plugin must never return it.
    ncclInProgress: ncclResult_t = ncclResult_t(7);
    /// Result: a timeout. Known to NCCL 2.30.4 and later.
    ncclTimeout: ncclResult_t = ncclResult_t(8);
    /// Log level: no line is logged.
    NCCL_LOG_NONE: ncclDebugLogLevel = ncclDebugLogLevel(0);
    /// Log level: the version line.
    NCCL_LOG_VERSION: ncclDebugLogLevel = ncclDebugLogLevel(1);
    /// Log level: a failure. NCCL keeps the line as its last error.
    NCCL_LOG_WARN: ncclDebugLogLevel = ncclDebugLogLevel(2);
    /// Log level: information, selected by subsystem.
    NCCL_LOG_INFO: ncclDebugLogLevel = ncclDebugLogLevel(3);
    /// Log level: reserved by NCCL.
    NCCL_LOG_ABORT: ncclDebugLogLevel = ncclDebugLogLevel(4);
    /// Log level: only in builds with tracing.
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
    /// Subsystem flag: host memory allocations.
    NCCL_ALLOC_HOST: c_ulong = 1 << 17;
    /// Subsystem flag: all subsystems.
    NCCL_ALL: c_ulong = !0;
    /// Memory type and `ptrSupport` bit: host memory.
    NCCL_PTR_HOST: c_int = 1;
    /// Memory type and `ptrSupport` bit: GPU memory.
    NCCL_PTR_CUDA: c_int = 2;
    /// Memory type and `ptrSupport` bit: GPU memory through a DMA-BUF.
    NCCL_PTR_DMABUF: c_int = 4;
    /// Size in bytes of the handle that `listen` writes and `connect` reads.
    NCCL_NET_HANDLE_MAXSIZE: usize = 128;
    /// Maximum number of requests in flight per comm, v6.
    NCCL_NET_MAX_REQUESTS_V6: c_int = 8;
    /// Maximum number of requests in flight per comm, v7 and later. A sending comm carries
    /// `maxRecvs` times as many.
    NCCL_NET_MAX_REQUESTS: c_int = 32;
    /// Maximum number of physical devices in a virtual device, v9 to v11.
    NCCL_NET_MAX_DEVS_PER_NIC_V9: c_int = 4;
    /// Maximum number of physical devices in a virtual device, v12.
    NCCL_NET_MAX_DEVS_PER_NIC_V12: c_int = 8;
    /// Upper bound in bytes of `maxP2pBytes` and `maxCollBytes`. NCCL rejects 0 too.
    NCCL_MAX_NET_SIZE_BYTES: usize = 1 << 40;
    /// Value of `*request` on entry to `irecv` if NCCL does not need the completion (v9 and later).
    NCCL_NET_OPTIONAL_RECV_COMPLETION: usize = 0x1;
    /// Value of `*request` reserved from v11 on; no release up to 2.32 uses it.
    NCCL_NET_MULTI_REQUEST: usize = 0x2;
    /// Value of `trafficClass` if it is not set.
    NCCL_NET_TRAFFIC_CLASS_UNDEF: c_int = -1;
    /// Value of an unknown member of `ncclNetAttr`.
    NCCL_NET_ATTR_UNDEF: c_int = -1;
    /// Value of an unknown `railId` or `planeId`.
    NCCL_NET_ID_UNDEF: i16 = -1;
    /// Device type: the host drives the network. The usual case.
    NCCL_NET_DEVICE_HOST: ncclNetDeviceType = ncclNetDeviceType(0);
    /// Device type: the GPU unpacks received data.
    NCCL_NET_DEVICE_UNPACK: ncclNetDeviceType = ncclNetDeviceType(1);
    /// Device type of the table for one-sided transfers: the host drives the network for the GPU.
    NCCL_NET_DEVICE_GIN_PROXY: ncclNetDeviceType = ncclNetDeviceType(2);
    /// `netDeviceVersion` of `NCCL_NET_DEVICE_HOST`.
    NCCL_NET_DEVICE_INVALID_VERSION: c_int = 0;
    /// `netDeviceVersion` of `NCCL_NET_DEVICE_UNPACK`; NCCL accepts no other value.
    NCCL_NET_DEVICE_UNPACK_VERSION: c_int = 7;
    /// Profiler callback type: an event starts.
    ncclProfilerNetEventStart: c_int = 0;
    /// Profiler callback type: an event stops.
    ncclProfilerNetEventStop: c_int = 1;
    /// Profiler callback type: an event is updated. NCCL 2.26 treats it as a stop.
    ncclProfilerNetEventUpdate: c_int = 2;
    /// Profiler callback type: an event is updated and stops. NCCL 2.26 treats it as a stop.
    ncclProfilerNetEventUpdateAndStop: c_int = 3;
    /// Number of low bits of a plugin id that hold the descriptor's version.
    NCCL_PROFILER_NET_VER_BITS: c_int = 16;
    /// Plugin id of InfiniBand descriptors, without the version.
    NCCL_PROFILER_NET_TYPE_IB: i64 = 1 << 16;
    /// Plugin id of socket descriptors, without the version.
    NCCL_PROFILER_NET_TYPE_SOCK: i64 = 2 << 16;
    /// Version of `ncclProfilerNetIbDescr_v1_t`.
    NCCL_PROFILER_NET_IB_VER: c_int = 1;
    /// Version of the socket descriptor.
    NCCL_PROFILER_NET_SOCKET_VER: c_int = 1;
    /// `type` of a descriptor of one work request on a queue pair.
    ncclProfileQp: u8 = 1;
    /// Flag of `regMrSym`: writes to the memory stay in order.
    NCCL_NET_MR_FLAG_FORCE_SO: u64 = 1 << 0;
    /// Flag of `regMrSym`: the words of the memory only grow. Known to NCCL 2.30.7 and later.
    NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET: u64 = 1 << 1;
    /// Operation of a signal: add 1.
    NCCL_NET_SIGNAL_OP_INC: u32 = 0x1;
    /// Operation of a signal: add the value.
    NCCL_NET_SIGNAL_OP_ADD: u32 = 0x2;
    /// Value of `trafficClass` in the settings of an RMA plugin if it is not set.
    NCCL_RMA_TRAFFIC_CLASS_UNDEF: c_int = c_int::MIN;
    /// No flag of a request.
    ncclRmaOptFlagsDefault: u32 = 0;
    /// Flag of a request (RMA v15 and later): more follow at once.
    ncclRmaOptFlagsAggregateRequests: u32 = 1 << 0;
}
