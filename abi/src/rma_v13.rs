//! `rma_v13.h` (NCCL 2.30.3 and later): one-sided transfers, in the table of GIN plugins.

use core::ffi::{c_int, c_void};

use crate::{ncclDebugLogger_t, v11::DeviceHandle, v12::Props};

c_struct! {
    /// Settings of a context.
    ncclGinConfig_v13_t as Config {
        nSignals: c_int,
        nCounters: c_int,
        nContexts: c_int,
        queueDepth: c_int,
        trafficClass: c_int,
    }
}

c_table! {
    /// The table of functions behind the symbols `ncclRmaPlugin_v13` and `ncclGinPlugin_v13`.
    ncclGin_v13_t as Rma {
        init(ctx: *mut *mut c_void, commId: u64, logFunction: ncclDebugLogger_t);
        devices(ndev: *mut c_int);
        getProperties(dev: c_int, props: *mut Props);
        listen(ctx: *mut c_void, dev: c_int, handle: *mut c_void, listenComm: *mut *mut c_void);
        connect(
            ctx: *mut c_void, handles: *mut *mut c_void, nranks: c_int, rank: c_int,
            listenComm: *mut c_void, collComm: *mut *mut c_void,
        );
        createContext(
            collComm: *mut c_void, config: *mut Config, ginCtx: *mut *mut c_void,
            devHandle: *mut *mut DeviceHandle,
        );
        regMrSym(
            collComm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int, mrFlags: u64,
            mhandle: *mut *mut c_void, ginHandle: *mut *mut c_void,
        );
        regMrSymDmaBuf(
            collComm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int, offset: u64, fd: c_int,
            mrFlags: u64, mhandle: *mut *mut c_void, ginHandle: *mut *mut c_void,
        );
        deregMrSym(collComm: *mut c_void, mhandle: *mut c_void);
        destroyContext(ginCtx: *mut c_void);
        closeColl(collComm: *mut c_void);
        closeListen(listenComm: *mut c_void);
        iput(
            ginCtx: *mut c_void, context: c_int, srcOff: u64, srcMhandle: *mut c_void, size: usize,
            dstOff: u64, dstMhandle: *mut c_void, rank: u32, request: *mut *mut c_void,
        );
        iputSignal(
            ginCtx: *mut c_void, context: c_int, srcOff: u64, srcMhandle: *mut c_void, size: usize,
            dstOff: u64, dstMhandle: *mut c_void, rank: u32, signalOff: u64, signalMhandle: *mut c_void,
            signalValue: u64, signalOp: u32, request: *mut *mut c_void,
        );
        iget(
            ginCtx: *mut c_void, context: c_int, remoteOff: u64, remoteMhandle: *mut c_void, size: usize,
            localOff: u64, localMhandle: *mut c_void, rank: u32, request: *mut *mut c_void,
        );
        iflush(
            ginCtx: *mut c_void, context: c_int, mhandle: *mut c_void, rank: u32, request: *mut *mut c_void,
        );
        test(collComm: *mut c_void, request: *mut c_void, done: *mut c_int);
        ginProgress(ginCtx: *mut c_void);
        queryLastError(ctx: *mut c_void, hasError: *mut bool);
        finalize(ctx: *mut c_void);
    }
}
