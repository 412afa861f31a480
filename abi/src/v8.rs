//! `net_v8.h` (NCCL 2.20 and later): `size_t` in `regMr`, global registrations.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType};

/// `ncclNetDeviceHandle_v8_t` in C: unchanged since v7.
pub type DeviceHandle = crate::v7::DeviceHandle;

c_struct! {
    /// Properties of a device.
    ncclNetProperties_v8_t as Props {
        name: *mut c_char,
        pciPath: *mut c_char,
        guid: u64,
        ptrSupport: c_int,
        regIsGlobal: c_int,
        speed: c_int,
        port: c_int,
        latency: f32,
        maxComms: c_int,
        maxRecvs: c_int,
        netDeviceType: ncclNetDeviceType,
        netDeviceVersion: c_int,
    }
}

c_table! {
    /// The table of functions behind the symbol `ncclNetPlugin_v8`.
    ncclNet_v8_t as Net {
        init(logFunction: ncclDebugLogger_t);
        devices(ndev: *mut c_int);
        getProperties(dev: c_int, props: *mut Props);
        listen(dev: c_int, handle: *mut c_void, listenComm: *mut *mut c_void);
        connect(
            dev: c_int, handle: *mut c_void, sendComm: *mut *mut c_void,
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
            sendComm: *mut c_void, data: *mut c_void, size: c_int, tag: c_int,
            mhandle: *mut c_void, request: *mut *mut c_void,
        );
        irecv(
            recvComm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut c_int,
            tags: *mut c_int, mhandles: *mut *mut c_void, request: *mut *mut c_void,
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
    }
}
