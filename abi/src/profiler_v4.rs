//! `profiler_v4.h` (NCCL 2.27): the communicator in init.

use core::ffi::{c_char, c_int, c_void};

use crate::ncclDebugLogger_t;
pub use crate::profiler_v1::{ProxyOp, ProxyStep};
pub use crate::profiler_v3::NetPlugin;

c_struct! {
    /// A collective.
    ncclProfilerColl_v4_t as Coll {
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
    }
}

c_struct! {
    /// A send or a receive.
    ncclProfilerP2p_v4_t as P2p {
        func: *const c_char,
        buff: *mut c_void,
        datatype: *const c_char,
        count: usize,
        peer: c_int,
        nChannels: u8,
    }
}

c_struct! {
    /// A channel of a kernel.
    ncclProfilerKernelCh_v4_t as KernelCh {
        channelId: u8,
        pTimer: u64,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v4_t as EventOf {
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
    ncclProfilerEventDescr_v4_t as Event {
        type_: u8,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v4`.
    ncclProfiler_v4_t as Profiler {
        init(
            context: *mut *mut c_void, eActivationMask: *mut c_int, commName: *const c_char, commHash: u64,
            nNodes: c_int, nranks: c_int, rank: c_int, logfn: ncclDebugLogger_t,
        );
        startEvent(context: *mut c_void, eHandle: *mut *mut c_void, eDescr: *mut Event);
        stopEvent(eHandle: *mut c_void);
        recordEventState(eHandle: *mut c_void, eState: c_int, eStateArgs: *mut c_void);
        finalize(context: *mut c_void);
    }
}
