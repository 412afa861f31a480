//! `profiler_v2.h` (NCCL 2.24 and 2.25): names instead of numbers.

use core::ffi::{c_char, c_int, c_void};

pub use crate::profiler_v1::{ProxyOp, ProxyStep};

c_struct! {
    /// A collective.
    ncclProfilerColl_v2_t as Coll {
        name: *const c_char,
        commHash: u64,
        seqNumber: u64,
        func: *const c_char,
        sendBuff: *const c_void,
        recvBuff: *mut c_void,
        count: usize,
        root: c_int,
        datatype: *const c_char,
        trafficBytes: usize,
        nMaxChannels: u8,
        nWarps: u8,
        algo: *const c_char,
        proto: *const c_char,
    }
}

c_struct! {
    /// A send or a receive.
    ncclProfilerP2p_v2_t as P2p {
        name: *const c_char,
        commHash: u64,
        func: *const c_char,
        buff: *mut c_void,
        datatype: *const c_char,
        count: usize,
        peer: c_int,
    }
}

c_union! {
    /// What an event is about, by its type.
    ncclProfilerEvent_v2_t as EventOf {
        coll: Coll,
        p2p: P2p,
        proxyOp: ProxyOp,
        proxyStep: ProxyStep,
    }
}

c_struct! {
    /// The description of an event.
    ncclProfilerEventDescr_v2_t as Event {
        type_: u8,
        parentObj: *mut c_void,
        rank: c_int,
        event: EventOf,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclProfiler_v2`.
    ncclProfiler_v2_t as Profiler {
        init(
            context: *mut *mut c_void, eActivationMask: *mut c_int,
        );
        startEvent(context: *mut c_void, eHandle: *mut *mut c_void, eDescr: *mut Event);
        stopEvent(eHandle: *mut c_void);
        recordEventState(eHandle: *mut c_void, eState: c_int, eStateArgs: *mut c_void);
        finalize(context: *mut c_void);
    }
}
