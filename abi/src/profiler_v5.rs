//! `profiler_v5.h` (NCCL 2.28): events of API calls.

use core::ffi::{c_char, c_int, c_void};

use crate::ncclDebugLogger_t;
pub use crate::profiler_v1::{ProxyOp, ProxyStep};
pub use crate::profiler_v3::NetPlugin;
pub use crate::profiler_v4::KernelCh;

c_struct! {
    /// A collective.
    ncclProfilerColl_v5_t as Coll {
        seqNumber: u64,
        func: *const c_char,
        sendBuff: *const c_void,
        recvBuff: *mut c_void,
        count: usize,
        root: c_int,
        datatype: *const c_char,
        nChannels: u8,
        nWarps: u8,
        algo: *const c_char,
        proto: *const c_char,
        parentGroup: *mut c_void,
    }
}

c_struct! {
    /// A send or a receive.
    ncclProfilerP2p_v5_t as P2p {
        func: *const c_char,
        buff: *mut c_void,
        datatype: *const c_char,
        count: usize,
        peer: c_int,
        nChannels: u8,
        parentGroup: *mut c_void,
    }
}

c_struct! {
    /// A group of calls.
    ncclProfilerGroupApi_v5_t as GroupApi {
        graphCaptured: bool,
        groupDepth: c_int,
    }
}

c_struct! {
    /// A call of a collective.
    ncclProfilerCollApi_v5_t as CollApi {
        func: *const c_char,
        count: usize,
        datatype: *const c_char,
        root: c_int,
        stream: *mut c_void,
        graphCaptured: bool,
    }
}

c_struct! {
    /// A call of a send or a receive.
    ncclProfilerP2pApi_v5_t as P2pApi {
        func: *const c_char,
        count: usize,
        datatype: *const c_char,
        stream: *mut c_void,
        graphCaptured: bool,
    }
}

c_struct! {
    /// The launch of a kernel.
    ncclProfilerKernelLaunch_v5_t as KernelLaunch {
        stream: *mut c_void,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v5_t as EventOf {
        groupApi: GroupApi,
        collApi: CollApi,
        p2pApi: P2pApi,
        kernelLaunch: KernelLaunch,
        coll: Coll,
        p2p: P2p,
        proxyOp: ProxyOp,
        proxyStep: ProxyStep,
        kernelCh: KernelCh,
        netPlugin: NetPlugin,
    }
}

c_struct! {
    /// The description of an event.
    ncclProfilerEventDescr_v5_t as Event {
        type_: u64,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v5`.
    ncclProfiler_v5_t as Profiler {
        init(
            context: *mut *mut c_void, commId: u64, eActivationMask: *mut c_int, commName: *const c_char,
            nNodes: c_int, nranks: c_int, rank: c_int, logfn: ncclDebugLogger_t,
        );
        startEvent(context: *mut c_void, eHandle: *mut *mut c_void, eDescr: *mut Event);
        stopEvent(eHandle: *mut c_void);
        recordEventState(eHandle: *mut c_void, eState: c_int, eStateArgs: *mut c_void);
        finalize(context: *mut c_void);
    }
}
