//! `net_v9.h` (NCCL 2.24 and later): sizes are `size_t`, virtual devices, the hint in `irecv`'s `*request`.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType};

/// `ncclNetDeviceHandle_v9_t`
pub type DeviceHandle = crate::v8::DeviceHandle;

c_struct! {
    /// The physical devices that a device consists of.
    ncclNetVDeviceProps_v9_t as VDeviceProps {
        ndevs: c_int,
        devs: [c_int; crate::NCCL_NET_MAX_DEVS_PER_NIC_V9 as usize],
    }
}

c_struct! {
    /// A device's properties.
    ncclNetProperties_v9_t as Props {
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
    }
}

c_table! {
    /// The table behind `ncclNetPlugin_v9`.
    ncclNet_v9_t as Net {
        init(ncclDebugLogger_t);
        devices(*mut c_int);
        getProperties(c_int, *mut Props);
        listen(c_int, *mut c_void, *mut *mut c_void);
        connect(c_int, *mut c_void, *mut *mut c_void, *mut *mut DeviceHandle);
        accept(*mut c_void, *mut *mut c_void, *mut *mut DeviceHandle);
        regMr(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void);
        regMrDmaBuf(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void);
        deregMr(*mut c_void, *mut c_void);
        isend(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void);
        irecv(*mut c_void, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut *mut c_void, *mut *mut c_void);
        iflush(*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void);
        test(*mut c_void, *mut c_int, *mut c_int);
        closeSend(*mut c_void);
        closeRecv(*mut c_void);
        closeListen(*mut c_void);
        getDeviceMr(*mut c_void, *mut c_void, *mut *mut c_void);
        irecvConsumed(*mut c_void, c_int, *mut c_void);
        makeVDevice(*mut c_int, *mut VDeviceProps);
    }
}
