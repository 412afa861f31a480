//! `net_v11.h` (NCCL 2.28 and later): a context per communicator, `finalize`, `setNetAttr`.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t};

/// `ncclNetDeviceHandle_v11_t` in C: unchanged since v10.
pub type DeviceHandle = crate::v10::DeviceHandle;

/// `ncclNetVDeviceProps_v11_t` in C: unchanged since v10.
pub type VDeviceProps = crate::v10::VDeviceProps;

/// `ncclNetCommConfig_v11_t` in C: unchanged since v10.
pub type CommConfig = crate::v10::CommConfig;

c_struct! {
    /// Expected traffic in one direction.
    ncclNetCommAttr_v11_t as CommAttr {
        maxConcurrentPeers: i32,
        minConcurrentPeers: i32,
        maxFlowsPerPeer: i32,
        minFlowsPerPeer: i32,
    }
}

c_struct! {
    /// Expected traffic on the connections of a context.
    ncclNetAttr_v11_t as NetAttr {
        sendCommAttr: CommAttr,
        recvCommAttr: CommAttr,
        op: u32,
        algo: u32,
        proto: u32,
    }
}

c_struct! {
    /// Properties of a device.
    ncclNetProperties_v11_t as Props {
        name: *mut c_char,
        pciPath: *mut c_char,
        guid: u64,
        ptrSupport: c_int,
        regIsGlobal: c_int,
        forceFlush: c_int,
        speed: c_int,
        port: c_int,
        latency: f32,
        maxComms: c_int,
        maxRecvs: c_int,
        netDeviceType: ncclNetDeviceType,
        netDeviceVersion: c_int,
        vProps: VDeviceProps,
        maxP2pBytes: usize,
        maxCollBytes: usize,
        maxMultiRequestSize: c_int,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclNetPlugin_v11`.
    ncclNet_v11_t as Net {
        init(
            ctx: *mut *mut c_void, commId: u64, config: *mut CommConfig,
            logFunction: ncclDebugLogger_t, profFunction: ncclProfilerCallback_t,
        );
        devices(ndev: *mut c_int);
        getProperties(dev: c_int, props: *mut Props);
        listen(ctx: *mut c_void, dev: c_int, handle: *mut c_void, listenComm: *mut *mut c_void);
        connect(
            ctx: *mut c_void, dev: c_int, handle: *mut c_void, sendComm: *mut *mut c_void,
            sendDevComm: *mut *mut DeviceHandle,
        );
        accept(
            listenComm: *mut c_void, recvComm: *mut *mut c_void,
            recvDevComm: *mut *mut DeviceHandle,
        );
        regMr(
            comm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int,
            mhandle: *mut *mut c_void,
        );
        regMrDmaBuf(
            comm: *mut c_void, data: *mut c_void, size: usize, r#type: c_int, offset: u64, fd: c_int,
            mhandle: *mut *mut c_void,
        );
        deregMr(comm: *mut c_void, mhandle: *mut c_void);
        isend(
            sendComm: *mut c_void, data: *mut c_void, size: usize, tag: c_int,
            mhandle: *mut c_void, phandle: *mut c_void, request: *mut *mut c_void,
        );
        irecv(
            recvComm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut usize,
            tags: *mut c_int, mhandles: *mut *mut c_void, phandles: *mut *mut c_void,
            request: *mut *mut c_void,
        );
        iflush(
            recvComm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut c_int,
            mhandles: *mut *mut c_void, request: *mut *mut c_void,
        );
        test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int);
        closeSend(sendComm: *mut c_void);
        closeRecv(recvComm: *mut c_void);
        closeListen(listenComm: *mut c_void);
        getDeviceMr(comm: *mut c_void, mhandle: *mut c_void, dptr_mhandle: *mut *mut c_void);
        irecvConsumed(recvComm: *mut c_void, n: c_int, request: *mut c_void);
        makeVDevice(d: *mut c_int, props: *mut VDeviceProps);
        finalize(ctx: *mut c_void);
        setNetAttr(ctx: *mut c_void, netAttr: *mut NetAttr);
    }
}
