//! v9 (NCCL 2.24 and later): messages are `size_t`, virtual devices, the hint on entry to `irecv`.

use nccl_net_abi::v9::{Net, Props, VDeviceProps};

table! {
    init: thunk::init_v6::<P, 9>,
    listen: thunk::listen_v6::<P>,
    connect: thunk::connect_v7::<P>,
    accept: thunk::accept_v7::<P>,
    regMr: thunk::reg_mr::<P, usize>,
    isend: thunk::isend_v6::<P, usize>,
    irecv: thunk::irecv_v6::<P, usize>,
    ; optional makeVDevice: P::VDEVICES, thunk::make_vdevice::<P, VDeviceProps>,
    ; null getDeviceMr, irecvConsumed
}

properties! {
    regIsGlobal, forceFlush, netDeviceType, netDeviceVersion, vProps, maxP2pBytes, maxCollBytes,
}
