//! `profiler_v7.h` (NCCL 2.31 and later): tags of users, phases of kernels.

use core::ffi::{c_char, c_int, c_void};

use crate::ncclDebugLogger_t;
pub use crate::profiler_v1::{ProxyOp, ProxyStep};
pub use crate::profiler_v3::NetPlugin;
pub use crate::profiler_v4::KernelCh;
pub use crate::profiler_v5::{GroupApi, KernelLaunch};
pub use crate::profiler_v6::{CeCollBatch, CeCollSync};

c_struct! {
    /// A collective.
    ncclProfilerColl_v7_t as Coll {
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
        kernelVariant: *const c_char,
        isSymColl: bool,
        userTag: u64,
    }
}

c_struct! {
    /// A send or a receive.
    ncclProfilerP2p_v7_t as P2p {
        func: *const c_char,
        buff: *mut c_void,
        datatype: *const c_char,
        count: usize,
        peer: c_int,
        nChannels: u8,
        parentGroup: *mut c_void,
        userTag: u64,
    }
}

c_struct! {
    /// A call of a collective.
    ncclProfilerCollApi_v7_t as CollApi {
        func: *const c_char,
        count: usize,
        datatype: *const c_char,
        root: c_int,
        stream: *mut c_void,
        graphCaptured: bool,
        userTag: u64,
    }
}

c_struct! {
    /// A call of a send or a receive.
    ncclProfilerP2pApi_v7_t as P2pApi {
        func: *const c_char,
        count: usize,
        datatype: *const c_char,
        stream: *mut c_void,
        graphCaptured: bool,
        userTag: u64,
    }
}

c_struct! {
    /// A collective on copy engines.
    ncclProfilerCeColl_v7_t as CeColl {
        seqNumber: u64,
        func: *const c_char,
        sendBuff: *const c_void,
        recvBuff: *mut c_void,
        count: usize,
        root: c_int,
        datatype: *const c_char,
        syncStrategy: *const c_char,
        intraBatchSync: bool,
        batchSize: u32,
        numBatches: u32,
        ceSeqNum: u32,
        stream: *mut c_void,
        userTag: u64,
    }
}

c_struct! {
    /// A phase of a channel of a kernel.
    ncclProfilerKernelPhase_v7_t as KernelPhase {
        channelId: u8,
        phaseId: u8,
        phaseName: *const c_char,
        pTimer: u64,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v7_t as EventOf {
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
        ceColl: CeColl,
        ceCollSync: CeCollSync,
        ceCollBatch: CeCollBatch,
        kernelPhase: KernelPhase,
    }
}

c_struct! {
    /// The description of an event.
    ncclProfilerEventDescr_v7_t as Event {
        type_: u64,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v7`.
    ncclProfiler_v7_t as Profiler {
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
