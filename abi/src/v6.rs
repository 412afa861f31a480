//! `net_v6.h` (NCCL 2.18 and later): the oldest version that every release from 2.18 on loads.

use core::ffi::{c_char, c_int, c_void};

use crate::ncclDebugLogger_t;

c_struct! {
    /// A device's properties.
    ncclNetProperties_v6_t as Props {
        name: *mut c_char,
        pciPath: *mut c_char,
        guid: u64,
        ptrSupport: c_int,
        speed: c_int,
        port: c_int,
        latency: f32,
        maxComms: c_int,
        maxRecvs: c_int,
    }
}

c_table! {
    /// The table behind `ncclNetPlugin_v6`.
    ncclNet_v6_t as Net {
        init(ncclDebugLogger_t);
        devices(*mut c_int);
        getProperties(c_int, *mut Props);
        listen(c_int, *mut c_void, *mut *mut c_void);
        connect(c_int, *mut c_void, *mut *mut c_void);
        accept(*mut c_void, *mut *mut c_void);
        regMr(*mut c_void, *mut c_void, c_int, c_int, *mut *mut c_void);
        regMrDmaBuf(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void);
        deregMr(*mut c_void, *mut c_void);
        isend(*mut c_void, *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void);
        irecv(*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut *mut c_void, *mut *mut c_void);
        iflush(*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void);
        test(*mut c_void, *mut c_int, *mut c_int);
        closeSend(*mut c_void);
        closeRecv(*mut c_void);
        closeListen(*mut c_void);
    }
}
