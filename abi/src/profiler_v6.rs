//! `profiler_v6.h` (NCCL 2.29 and 2.30): events of copy engines.

use core::ffi::{c_char, c_int, c_void};

use crate::ncclDebugLogger_t;
pub use crate::profiler_v1::{ProxyOp, ProxyStep};
pub use crate::profiler_v3::NetPlugin;
pub use crate::profiler_v4::KernelCh;
pub use crate::profiler_v5::{Coll, CollApi, GroupApi, KernelLaunch, P2p, P2pApi};

c_struct! {
    /// A collective on copy engines.
    ncclProfilerCeColl_v6_t as CeColl {
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
    }
}

c_struct! {
    /// A synchronization of it.
    ncclProfilerCeCollSync_v6_t as CeCollSync {
        isComplete: bool,
        nRanks: c_int,
    }
}

c_struct! {
    /// A batch of its copies.
    ncclProfilerCeCollBatch_v6_t as CeCollBatch {
        numOps: c_int,
        totalBytes: usize,
        useIntraSync: bool,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v6_t as EventOf {
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
    }
}

c_struct! {
    /// The description of an event.
    ncclProfilerEventDescr_v6_t as Event {
        type_: u64,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v6`.
    ncclProfiler_v6_t as Profiler {
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
