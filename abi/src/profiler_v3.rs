//! `profiler_v3.h` (NCCL 2.26): events of kernels and of network plugins.

use core::ffi::{c_char, c_int, c_void};

pub use crate::profiler_v1::{ProxyOp, ProxyStep};
pub use crate::profiler_v2::P2p;

c_struct! {
    /// A collective.
    ncclProfilerColl_v3_t as Coll {
        name: *const c_char,
        commHash: u64,
        seqNumber: u64,
        func: *const c_char,
        sendBuff: *const c_void,
        recvBuff: *mut c_void,
        count: usize,
        root: c_int,
        datatype: *const c_char,
        nMaxChannels: u8,
        nWarps: u8,
        algo: *const c_char,
        proto: *const c_char,
    }
}

c_struct! {
    /// A channel of a kernel.
    ncclProfilerKernelCh_v3_t as KernelCh {
        channelId: u8,
    }
}

c_struct! {
    /// What a network plugin reports.
    ncclProfilerNetPlugin_v3_t as NetPlugin {
        id: i64,
        data: *mut c_void,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v3_t as EventOf {
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
    ncclProfilerEventDescr_v3_t as Event {
        type_: u8,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v3`.
    ncclProfiler_v3_t as Profiler {
        init(
            context: *mut *mut c_void, eActivationMask: *mut c_int,
        );
        startEvent(context: *mut c_void, eHandle: *mut *mut c_void, eDescr: *mut Event);
        stopEvent(eHandle: *mut c_void);
        recordEventState(eHandle: *mut c_void, eState: c_int, eStateArgs: *mut c_void);
        finalize(context: *mut c_void);
    }
}
