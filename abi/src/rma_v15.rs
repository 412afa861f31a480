//! `rma_v15.h` (NCCL 2.31 and later): flags of requests.

use core::ffi::{c_int, c_void};

use crate::{ncclDebugLogger_t, v12::Props};

/// `ncclRmaConfig_v15_t` in C: unchanged since v14.
pub type Config = crate::rma_v14::Config;

c_table! {
    /// The table of functions behind the symbol `ncclRmaPlugin_v15`.
    ncclRma_v15_t as Rma {
        init(ctx: *mut *mut c_void, commId: u64, logFunction: ncclDebugLogger_t);
        devices(ndev: *mut c_int);
        getProperties(dev: c_int, props: *mut Props);
        listen(ctx: *mut c_void, dev: c_int, handle: *mut c_void, listenComm: *mut *mut c_void);
        connect(
            ctx: *mut c_void, handles: *mut *mut c_void, nranks: c_int, rank: c_int,
            listenComm: *mut c_void, collComm: *mut *mut c_void,
        );
        createContext(collComm: *mut c_void, config: *mut Config, rmaCtx: *mut *mut c_void);
        regMrSym(
            collComm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int, mrFlags: u64,
            mhandle: *mut *mut c_void,
        );
        regMrSymDmaBuf(
            collComm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int, offset: u64, fd: c_int,
            mrFlags: u64, mhandle: *mut *mut c_void,
        );
        deregMrSym(collComm: *mut c_void, mhandle: *mut c_void);
        destroyContext(rmaCtx: *mut c_void);
        closeColl(collComm: *mut c_void);
        closeListen(listenComm: *mut c_void);
        iput(
            rmaCtx: *mut c_void, context: c_int, srcOff: u64, srcMhandle: *mut c_void, size: usize,
            dstOff: u64, dstMhandle: *mut c_void, rank: u32, optFlags: u32, request: *mut *mut c_void,
        );
        iputSignal(
            rmaCtx: *mut c_void, context: c_int, srcOff: u64, srcMhandle: *mut c_void, size: usize,
            dstOff: u64, dstMhandle: *mut c_void, rank: u32, signalOff: u64, signalMhandle: *mut c_void,
            signalValue: u64, signalOp: u32, isStrongSignal: bool, optFlags: u32, request: *mut *mut c_void,
        );
        iget(
            rmaCtx: *mut c_void, context: c_int, remoteOff: u64, remoteMhandle: *mut c_void, size: usize,
            localOff: u64, localMhandle: *mut c_void, rank: u32, optFlags: u32, request: *mut *mut c_void,
        );
        iflush(
            rmaCtx: *mut c_void, context: c_int, mhandle: *mut c_void, rank: u32, request: *mut *mut c_void,
        );
        test(collComm: *mut c_void, request: *mut c_void, done: *mut c_int);
        rmaProgress(rmaCtx: *mut c_void);
        queryLastError(ctx: *mut c_void, hasError: *mut bool);
        finalize(ctx: *mut c_void);
    }
}
