//! `profiler_v1.h` (NCCL 2.23): NCCL reports its operations.

use core::ffi::{c_char, c_int, c_void};

c_struct! {
    /// A collective.
    ncclProfilerColl_v1_t as Coll {
        name: *const c_char,
        commHash: u64,
        seqNumber: u64,
        func: u8,
        sendBuff: *const c_void,
        recvBuff: *mut c_void,
        count: usize,
        root: c_int,
        datatype: u8,
        op: u32,
        trafficBytes: usize,
        nMaxChannels: u8,
        nWarps: u8,
        algo: u8,
        proto: u8,
        isCollnet: c_int,
        isNvls: c_int,
    }
}

c_struct! {
    /// A send or a receive.
    ncclProfilerP2p_v1_t as P2p {
        name: *const c_char,
        commHash: u64,
        func: u8,
        buff: *mut c_void,
        datatype: u8,
        count: usize,
        peer: c_int,
    }
}

c_struct! {
    /// What a channel of an operation sends or receives.
    ncclProfilerProxyOp_v1_t as ProxyOp {
        pid: c_int,
        channelId: u8,
        peer: c_int,
        nSteps: c_int,
        chunkSize: c_int,
        isSend: c_int,
    }
}

c_struct! {
    /// A message of it.
    ncclProfilerProxyStep_v1_t as ProxyStep {
        step: c_int,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v1_t as EventOf {
        coll: Coll,
        p2p: P2p,
        proxyOp: ProxyOp,
        proxyStep: ProxyStep,
    }
}

c_struct! {
    /// The description of an event.
    ncclProfilerEventDescr_v1_t as Event {
        type_: u8,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v1`.
    ncclProfiler_v1_t as Profiler {
        init(
            context: *mut *mut c_void, eActivationMask: *mut c_int,
        );
        startEvent(context: *mut c_void, eHandle: *mut *mut c_void, eDescr: *mut Event);
        stopEvent(eHandle: *mut c_void);
        recordEventState(eHandle: *mut c_void, eState: c_int, eStateArgs: *mut c_void);
        finalize(context: *mut c_void);
    }
}
