//! `net_v12.h` (NCCL 2.30 and later): eight physical devices in a virtual one, rail and plane ids.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t};

/// `ncclNetDeviceHandle_v12_t`
pub type DeviceHandle = crate::v11::DeviceHandle;

c_struct! {
    /// The physical devices that a device consists of.
    ncclNetVDeviceProps_v12_t as VDeviceProps {
        ndevs: c_int,
        devs: [c_int; crate::NCCL_NET_MAX_DEVS_PER_NIC_V12 as usize],
    }
}

/// `ncclNetCommConfig_v12_t`
pub type CommConfig = crate::v11::CommConfig;

/// `ncclNetCommAttr_v12_t`
pub type CommAttr = crate::v11::CommAttr;
/// `ncclNetAttr_v12_t`
pub type NetAttr = crate::v11::NetAttr;

c_struct! {
    /// A device's properties.
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
    /// The table behind `ncclNetPlugin_v12`.
    ncclNet_v12_t as Net {
        init(*mut *mut c_void, u64, *mut CommConfig, ncclDebugLogger_t, ncclProfilerCallback_t);
        devices(*mut c_int);
        getProperties(c_int, *mut Props);
        listen(*mut c_void, c_int, *mut c_void, *mut *mut c_void);
        connect(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut DeviceHandle);
        accept(*mut c_void, *mut *mut c_void, *mut *mut DeviceHandle);
        regMr(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void);
        regMrDmaBuf(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void);
        deregMr(*mut c_void, *mut c_void);
        isend(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void);
        irecv(*mut c_void, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut *mut c_void, *mut *mut c_void, *mut *mut c_void);
        iflush(*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void);
        test(*mut c_void, *mut c_int, *mut c_int);
        closeSend(*mut c_void);
        closeRecv(*mut c_void);
        closeListen(*mut c_void);
        getDeviceMr(*mut c_void, *mut c_void, *mut *mut c_void);
        irecvConsumed(*mut c_void, c_int, *mut c_void);
        makeVDevice(*mut c_int, *mut VDeviceProps);
        finalize(*mut c_void);
        setNetAttr(*mut c_void, *mut NetAttr);
    }
}
