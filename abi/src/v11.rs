//! `net_v11.h` (NCCL 2.28 and later): a context for each communicator, `finalize`, `setNetAttr`.

use core::ffi::{c_char, c_int, c_void};

use crate::{ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t};

/// `ncclNetDeviceHandle_v11_t`
pub type DeviceHandle = crate::v10::DeviceHandle;

/// `ncclNetVDeviceProps_v11_t`
pub type VDeviceProps = crate::v10::VDeviceProps;

/// `ncclNetCommConfig_v11_t`
pub type CommConfig = crate::v10::CommConfig;

c_struct! {
    /// How much traffic one direction will carry.
    ncclNetCommAttr_v11_t as CommAttr {
        maxConcurrentPeers: i32,
        minConcurrentPeers: i32,
        maxFlowsPerPeer: i32,
        minFlowsPerPeer: i32,
    }
}

c_struct! {
    /// What NCCL is about to do on a context's connections.
    ncclNetAttr_v11_t as NetAttr {
        sendCommAttr: CommAttr,
        recvCommAttr: CommAttr,
        op: u32,
        algo: u32,
        proto: u32,
    }
}

c_struct! {
    /// A device's properties.
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
    /// The table behind `ncclNetPlugin_v11`.
    ncclNet_v11_t as Net {
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
