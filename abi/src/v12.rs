//! `net_v12.h` (NCCL 2.30 and later): eight physical devices in a virtual device, rail and plane
//! ids.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t};

/// `ncclNetDeviceHandle_v12_t` in C: unchanged since v11.
pub type DeviceHandle = crate::v11::DeviceHandle;

c_struct! {
    /// Physical devices behind a device.
    ncclNetVDeviceProps_v12_t as VDeviceProps {
        ndevs: c_int,
        devs: [c_int; crate::NCCL_NET_MAX_DEVS_PER_NIC_V12 as usize],
    }
}

/// `ncclNetCommConfig_v12_t` in C: unchanged since v11.
pub type CommConfig = crate::v11::CommConfig;

/// `ncclNetCommAttr_v12_t` in C: unchanged since v11.
pub type CommAttr = crate::v11::CommAttr;
/// `ncclNetAttr_v12_t` in C: unchanged since v11.
pub type NetAttr = crate::v11::NetAttr;

c_struct! {
    /// Properties of a device.
    ncclNetProperties_v12_t as Props {
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
        railId: i16,
        planeId: i16,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclNetPlugin_v12`.
    ncclNet_v12_t as Net {
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
